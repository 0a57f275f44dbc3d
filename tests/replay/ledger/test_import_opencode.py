"""opencode's three forms: the same requests from each, and a live database left as it is."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.errors import RecordError
from shadow_reader.replay.ledger import Turn, ledger_of
from shadow_reader.replay.ledger.imports import Imported, import_records
from tests.replay.ledger.records import (
    T0,
    ms,
    opencode_database,
    opencode_export,
    opencode_message,
    opencode_store,
    write_opencode_rows,
)
from tests.replay.sessions import real


def _imported(tmp_path: Path, *messages: dict[str, Any], **info: Any) -> Imported:
    file = tmp_path / "export.json"
    file.write_text(json.dumps(opencode_export(*messages, **info)))
    return import_records([file])


def _parts(*parts: dict[str, Any]) -> dict[str, Any]:
    return {**opencode_message(0, 0.0), "parts": list(parts)}


EXPECTED = [
    Turn("ses_1", "ses_0", 0, T0, T0 + 1.0, T0 + 3.0, 1000, 0, 100),
    Turn("ses_1", "ses_0", 1, T0 + 9.2, T0 + 10.2, T0 + 12.2, 1000, 1000, 100, ("prefix_ids",)),
]


@pytest.mark.parametrize("form", ["export", "store", "storage", "database"])
def test_every_form_gives_the_same_turns(tmp_path: Path, form: str) -> None:
    export = opencode_export(opencode_message(0, 0.0), opencode_message(1, 9.2), parentID="ses_0")
    path = tmp_path / "export.json"
    if form == "export":
        path.write_text(json.dumps(export))
    elif form == "database":
        path = opencode_database(tmp_path / "opencode.db", export)
    else:
        path = opencode_store(tmp_path, export) / ("storage" if form == "storage" else "")
    steps: list[tuple[int, int]] = []
    found = import_records([path], lambda done, total: steps.append((done, total)))
    assert [_rounded(turn) for turn in found.turns] == EXPECTED
    assert dict(found.left_out) == {}
    assert found.sources == {"opencode": 1}
    if form != "export":
        assert steps == [(1, 1)]


def _rounded(turn: Turn) -> Turn:
    times = {name: round(getattr(turn, name), 3) for name in ("start_s", "first_s", "end_s")}
    return Turn(**{**turn.row, **times, "assumed": turn.assumed})


def test_a_live_database_is_read_with_its_log_and_not_changed(tmp_path: Path) -> None:
    file = opencode_database(tmp_path / "opencode.db", opencode_export(opencode_message(0, 0.0)))
    with closing(sqlite3.connect(file)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        later = opencode_export(opencode_message(1, 50.0), id="ses_2")
        write_opencode_rows(writer, later)
        log = Path(f"{file}-wal")
        before = (file.read_bytes(), log.read_bytes())
        found = import_records([file])
        assert {turn.session for turn in found.turns} == {"ses_1", "ses_2"}
        assert (file.read_bytes(), log.read_bytes()) == before
    import_records([file])
    assert [path.name for path in tmp_path.iterdir()] == ["opencode.db"]


def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as other:
        other.execute("CREATE TABLE x (y)")
        other.commit()
    with pytest.raises(RecordError, match=r"other\.db cannot be read as opencode's database"):
        import_records([file])


@pytest.mark.parametrize(
    ("tokens", "output", "assumed"),
    [
        ({"output": 40, "reasoning": 60, "total": 200}, 100, False),  # beside it
        ({"output": 100, "reasoning": 60, "total": 200}, 100, False),  # within it
        ({"output": 40, "reasoning": 0}, 40, False),
        ({"output": 100, "reasoning": 60}, 100, True),
        ({"output": 0, "reasoning": 60}, 60, True),  # more than the completion itself
        ({"output": 0, "reasoning": 60, "total": 153}, 60, True),  # counters that make no sense
    ],
)
def test_reasoning_is_counted_once(
    tmp_path: Path, tokens: dict[str, int], output: int, assumed: bool
) -> None:
    found = _imported(tmp_path, opencode_message(0, 0.0, tokens={"input": 100, **tokens}))
    (turn,) = found.turns
    assert (turn.output_ids, "output_ids" in turn.assumed) == (output, assumed)


def test_a_text_that_starts_when_it_ends_tells_no_first_id(tmp_path: Path) -> None:
    text = {"type": "text", "time": {"start": ms(4), "end": ms(4)}}
    (turn,) = _imported(tmp_path, _parts(text)).turns
    assert (turn.first_s, turn.end_s, turn.assumed) == (None, T0 + 4, ())


def test_without_any_part_the_end_is_the_message_s_and_assumed(tmp_path: Path) -> None:
    found = _imported(tmp_path, _parts())
    assert (found.turns[0].end_s, found.turns[0].assumed) == (T0 + 9.1, ("end_s",))
    assert dict(found.notes) == {"end_s assumed": 1, "first_s unknown": 1}


def test_a_retried_request_starts_at_its_last_attempt(tmp_path: Path) -> None:
    message = opencode_message(0, 0.0)
    message["parts"].insert(0, {"type": "retry", "time": {"created": ms(0.5)}})
    found = _imported(tmp_path, message)
    assert (found.turns[0].start_s, found.turns[0].assumed) == (T0 + 0.5, ("start_s",))
    assert found.notes["retried requests"] == 1


def test_what_has_no_counts_or_no_end_is_counted(tmp_path: Path) -> None:
    aborted = opencode_message(1, 20.0, tokens={"input": 0, "output": 0})
    running = opencode_message(2, 40.0, time={"created": ms(40)})
    running["parts"] = []
    found = _imported(tmp_path, opencode_message(0, 0.0), aborted, running)
    assert len(found.turns) == 1
    assert found.left_out == {"requests without counts": 1, "requests without an end": 1}


def test_the_prompt_after_a_compaction_keeps_nothing(tmp_path: Path) -> None:
    summed = opencode_message(1, 20.0, summary=True)
    found = _imported(tmp_path, opencode_message(0, 0.0), summed, opencode_message(2, 40.0))
    assert [turn.prefix_ids for turn in found.turns] == [0, 1000, 0]
    assert found.turns[2].assumed == ("prefix_ids",)
    assert found.notes["compactions"] == 1


def test_old_messages_hold_several_requests(tmp_path: Path) -> None:
    message = opencode_message(0, 0.0)
    second = [
        {"type": "step-start"},
        {"type": "text", "time": {"start": ms(11), "end": ms(12)}},
        {"type": "step-finish", "tokens": {"input": 1300, "output": 7}},
    ]
    message["parts"] += second
    found = _imported(tmp_path, message)
    one, two = found.turns
    assert (one.end_s, one.prompt_ids, one.assumed) == (T0 + 3, 1000, ("output_ids",))
    assert (two.start_s, two.first_s, two.end_s) == (T0 + 9, T0 + 11, T0 + 12)
    assert (two.prompt_ids, two.output_ids, two.assumed) == (1300, 7, ("start_s", "prefix_ids"))


def test_a_message_that_stands_twice_counts_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(
            json.dumps(opencode_export(opencode_message(0, 0.0)))
        )
    found = import_records([tmp_path])
    assert (len(found.turns), found.left_out) == (1, {"requests that stand twice": 1})


@pytest.mark.parametrize("file", real("opencode"), ids=lambda path: path.stem)
def test_real_exports(file: Path) -> None:
    export = json.loads(file.read_text())
    answers = [m["info"] for m in export["messages"] if m["info"]["role"] == "assistant"]
    found = import_records([file])
    ledger_of(file.name, found.turns)
    assert len(found.turns) + sum(found.left_out.values()) == len(answers)
    told = [info for info in answers if info["tokens"]["input"] + info["tokens"]["cache"]["read"]]
    for turn, info in zip(found.turns, told, strict=True):
        tokens = info["tokens"]
        assert turn.prompt_ids == tokens["input"] + sum(tokens["cache"].values())
        assert turn.output_ids >= max(tokens["output"], tokens["reasoning"])
        assert turn.end_s * 1000 <= info["time"]["completed"] + 1
