from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from shadow_reader.cli.output import ExitCode
from shadow_reader.clock import SystemClock
from tests.cli.conftest import Outcome, run
from tests.cli.server_thread import Served, server_thread
from tests.store.snapshot_samples import opened, sample, spill


@pytest.fixture
def fed(tmp_path: Path) -> Served:
    """A server that was told of two sessions and has ended; its journal is left."""
    with server_thread(tmp_path, model=False) as served:
        tell(served)
    return served


def tell(served: Served) -> None:
    shadow = served.runtime
    served.run(shadow.prompt("a", [1, 2, 3], turn="t1"))
    served.run(shadow.output("a", "t1", offset=0, ids=[4, 5]))
    served.run(shadow.end("a", "t1"))
    served.run(shadow.prompt("b", [9], turn="t1", router="code"))
    served.run(shadow.prompt("a", [1, 2, 3, 4, 5, 6], turn="t2"))


def kinds(found: Outcome) -> list[str]:
    assert found.code == ExitCode.OK, found.err
    return [row["kind"] for row in found.rows]


def test_file_and_server_give_the_same_rows(tmp_path: Path) -> None:
    with server_thread(tmp_path, model=False) as served:
        tell(served)
        for words in (
            ["list"],
            ["list", "--ids"],
            ["list", "--session", "a", "--kind", "prompt", "--kind", "output"],
            ["list", "--after", "2", "--limit", "3", "--newest-first"],
            ["list", "--turn", "t2"],
            ["tail", "-n", "2"],
            ["sessions"],
        ):
            by_file = run("journal", *words, "--journal", served.journal, "--json")
            by_http = run("journal", *words, "--url", served.url, "--json")
            assert by_file.code == by_http.code == ExitCode.OK
            assert by_file.rows
            assert by_file.rows == by_http.rows


def test_filters(fed: Served) -> None:
    def found(*words: object) -> list[str]:
        return kinds(run("journal", "list", "--journal", fed.journal, "--json", *words))

    everything = found()
    assert everything == [
        *("session.opened", "prompt", "output", "turn.ended"),
        *("session.opened", "prompt", "prompt"),
    ]
    assert found("-s", "b") == ["session.opened", "prompt"]
    assert found("-k", "prompt", "--turn", "t2") == ["prompt"]
    assert found("--after", "5") == ["prompt", "prompt"]
    assert found("--limit", "1", "--newest-first") == ["prompt"]
    assert found("--since", "2001-01-01T00:00:00+00:00") == everything
    assert found("--until", "978307200") == []
    assert found("--since", "2199-01-01") == []


def test_ids_are_counted_or_shown(fed: Served) -> None:
    words = ["journal", "list", "--journal", fed.journal, "-s", "a", "-k", "prompt", "--json"]
    assert [row["ids"] for row in run(*words).rows] == [{"count": 3}, {"count": 1}]
    assert [row["ids"] for row in run(*words, "--ids").rows] == [[1, 2, 3], [6]]


def test_lines_for_people(fed: Served) -> None:
    found = run("journal", "tail", "--journal", fed.journal, "-n", "2")
    lines = found.out.splitlines()
    assert len(lines) == 2
    assert lines[0].split()[0] == "6"
    assert "prompt" in lines[0]
    assert "router=code" in lines[0]
    assert "keep=5 ids=[1]" in lines[1]
    table = run("journal", "sessions", "--journal", fed.journal).out
    assert all(word in table for word in ("session", "last seq", "a", "b"))


def test_wrong_filters(fed: Served) -> None:
    words = ["journal", "list", "--journal", fed.journal]
    for more, why in (
        (["--kind", "nothing"], "'nothing' is no kind; known are"),
        (["--since", "yesterday"], "since must be unix seconds or an ISO 8601 time"),
        (["--url", "http://127.0.0.1:1"], "one of --journal and --url"),
    ):
        found = run(*words, *more)
        assert (found.code, found.out) == (ExitCode.USAGE, "")
        assert why in found.err


def test_a_journal_that_cannot_be_opened(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database" * 100)
    for file in (tmp_path / "nothing.db", tmp_path, garbage):
        for words in (["list"], ["tail"], ["sessions"], ["verify"]):
            found = run("journal", *words, "--journal", file, "--json")
            assert (found.code, found.err) == (ExitCode.JOURNAL, "")
            assert found.json["error"]["code"] in ("journal_error", "journal_format")


def test_a_whole_journal_is_verified(fed: Served) -> None:
    found = run("journal", "verify", "--journal", fed.journal, "--json")
    assert found.code == ExitCode.OK
    assert found.json == {
        "journal": str(fed.journal),
        "entries": 7,
        "sessions": 2,
        "known": 7,
        "kinds": {"output": 1, "prompt": 3, "session.opened": 2, "turn.ended": 1},
        "bad_seq": None,
        "problem": None,
    }
    assert "known ids" in run("journal", "verify", "--journal", fed.journal).out


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE events SET data = x'7b7d' WHERE seq = 3", "missing or extra fields: offset"),
        ("UPDATE events SET ids = x'00' WHERE seq = 3", "1 bytes are no whole number of ids"),
        ("DELETE FROM events WHERE seq = 1", "the session was never opened"),
        (
            """UPDATE events SET data = CAST('{"offset":7}' AS BLOB) WHERE seq = 3""",
            "offset 7, 0 ids are known",
        ),
        ("UPDATE kinds SET version = 9 WHERE kind = 'output'", "has version 9"),
    ],
)
def test_the_first_bad_entry_is_named(fed: Served, change: str, problem: str) -> None:
    bad_seq = 2 if "DELETE" in change else 3
    with sqlite3.connect(fed.journal) as db:
        db.execute(change)
    db.close()
    found = run("journal", "verify", "--journal", fed.journal, "--json")
    assert found.code == ExitCode.FAILED
    assert found.json["bad_seq"] == bad_seq
    assert problem in found.json["problem"]
    assert found.json["entries"] == (0 if "DELETE" in change else 2)
    people = run("journal", "verify", "--journal", fed.journal)
    assert people.code == ExitCode.FAILED
    assert people.err.startswith(f"error: entry {bad_seq}: ")


def test_the_settings_name_the_journal(fed: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWEN38_SHADOW_JOURNAL", str(fed.journal))
    assert run("journal", "verify", "--json").json["entries"] == 7


def test_prune_erases_what_is_old_and_nothing_else(tmp_path: Path) -> None:
    with server_thread(tmp_path, model=False) as served:
        tell(served)
        served.run(served.runtime.end("a", "t2"))
        words = ["journal", "prune", "--url", served.url, "--json"]
        assert run(*words, "--older-than", "1h").json["sessions"] == 0
        dry = run(*words, "--older-than", "0s", "--dry-run").json
        assert dry == {"sessions": 1, "events": 6, "ids": 6, "dry_run": True}, "b still runs"
        done = run(*words, "--older-than", "0s").json
        assert done == {"sessions": 1, "events": 6, "ids": 6, "dry_run": False}
        left = run("journal", "sessions", "--url", served.url, "--json").rows
        assert [row["session"] for row in left] == ["b"]


def test_prune_of_a_file_takes_the_snapshots_along(fed: Served, tmp_path: Path) -> None:
    folder = Path(f"{fed.journal}-snapshots")
    store = opened(folder, clock=SystemClock())
    spill(store, sample("a"))
    store.close()
    with server_thread(tmp_path, model=False) as served:
        served.run(served.runtime.end("a", "t2"))
    words = ["journal", "prune", "--journal", fed.journal, "--json", "--older-than"]
    assert run(*words, "1h").json["sessions"] == 0
    assert list(folder.rglob("head*"))
    assert run(*words, "0s").json["sessions"] == 1
    assert not list(folder.rglob("head*"))
    absent = run("journal", "prune", "--journal", tmp_path / "absent", "--older-than", "1d")
    assert "there is no journal" in absent.err


@pytest.mark.parametrize("text", ["", "3", "h", "-1h", "1w", "1h30m"])
def test_prune_wants_a_time_it_understands(text: str, fed: Served) -> None:
    found = run("journal", "prune", "--journal", fed.journal, f"--older-than={text}")
    assert found.code == ExitCode.USAGE
