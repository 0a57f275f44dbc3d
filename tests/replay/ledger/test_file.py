"""Reading ledgers: what is written comes back; whatever is wrong is refused by line and field."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from shadow_reader.errors import LedgerError
from shadow_reader.replay.ledger import Turn, file, read_ledger, write_ledger
from tests.replay.ledger.turns import ledger_turns, row, write_rows


@settings(max_examples=60, deadline=None)
@given(turns=ledger_turns())
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, name: str, turns: list[Turn]
) -> None:
    path = tmp_path_factory.mktemp("ledger") / name
    assert write_ledger(path, turns) == len(turns)
    ledger = read_ledger(path)
    assert list(ledger.turns) == turns
    assert [t for s in ledger.sessions.values() for t in s.turns] == sorted(
        turns, key=lambda t: list(ledger.sessions).index(t.session)
    )
    starts = [turn.start_s for turn in ledger.by_start()]
    assert starts == sorted(starts)
    assert all(gap >= 0 for s in ledger.sessions.values() for gap in s.gaps_s)
    again = path.with_name("b" + path.suffix)
    write_ledger(again, ledger.turns)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("line", "field", "rows"),
    [
        (1, "model", [row(model="m")]),
        (1, "end_s", [{k: v for k, v in row().items() if k != "end_s"}]),
        (1, "end_s", [row(end_s=None)]),
        (1, "end_s", [row(end_s=99.0)]),
        (1, "first_s", [row(first_s=99.0)]),
        (1, "first_s", [row(first_s=106.0)]),
        (1, "start_s", [row(start_s="100")]),
        (1, "start_s", [row(start_s=-1)]),
        (1, "start_s", [row(start_s=10**400)]),
        (1, "prompt_ids", [row(prompt_ids=True)]),
        (1, "prompt_ids", [row(prompt_ids=1000.0)]),
        (1, "prompt_ids", [row(prompt_ids=0)]),
        (1, "prompt_ids", [row(prompt_ids=1 << 31)]),
        (1, "output_ids", [row(output_ids=-1)]),
        (1, "session", [row(session="")]),
        (1, "session", [row(session=7)]),
        (1, "parent", [row(parent="s")]),
        (1, "assumed", [row(assumed="prefix_ids")]),
        (1, "assumed", [row(assumed=["turn"])]),
        (1, "assumed", [row(assumed=["end_s", "end_s"])]),
        (1, "prefix_ids", [row(prefix_ids=1)]),
        (1, "turn", [row(turn=1)]),
        (2, "turn", [row(), row()]),  # a turn twice
        (2, "turn", [row(), row(2)]),  # one is missing
        (3, "turn", [row(), row(1), row(0)]),  # out of order
        (2, "start_s", [row(), row(1, start_s=104.9)]),  # overlapping: a negative gap
        (2, "prefix_ids", [row(), row(1, prefix_ids=1101)]),
        (2, "prefix_ids", [row(), row(1, prefix_ids=1501)]),
        (2, "parent", [row(), row(1, parent="p")]),
        (1, "parent", [row(session="a", parent="b"), row(session="b", parent="a")]),
    ],
)
def test_a_wrong_line_is_refused_by_line_and_field(
    tmp_path: Path, line: int, field: str, rows: list[dict[str, Any]]
) -> None:
    with pytest.raises(LedgerError) as caught:
        read_ledger(write_rows(tmp_path / "l.jsonl", *rows))
    assert (caught.value.details["line"], caught.value.details["field"]) == (line, field)
    assert f"line {line}: {field}" in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no turn"),
        ("\n", "line 1: line is empty"),
        (json.dumps(row()) + "\n\n", "line 2: line is empty"),
        ("{\n", "line 1: line is not valid JSON"),
        ("[1]\n", "must be an object, found list"),
        (json.dumps(row()).replace("105.0", "NaN"), "NaN is not a number"),
        (json.dumps(row()).replace("105.0", "1e999"), "finite"),
        (json.dumps(row()).replace('"turn": 0', '"turn": 0, "turn": 0'), "turn stands twice"),
        ("[" * 100_000, "line 1: line is not valid JSON"),
    ],
)
def test_text_that_is_no_ledger_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text(text)
    with pytest.raises(LedgerError, match=said):
        read_ledger(path)


def test_files_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LedgerError, match="cannot be read"):
        read_ledger(tmp_path / "nowhere")
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(json.dumps(row()).encode())[:-9])
    with pytest.raises(LedgerError, match="damaged gzip"):
        read_ledger(broken)
    latin = tmp_path / "latin"
    latin.write_bytes(b"\xff")
    with pytest.raises(LedgerError, match="byte 0"):
        read_ledger(latin)
    monkeypatch.setattr(file, "MAX_BYTES", 10)
    with pytest.raises(LedgerError, match="more than 10 bytes"):
        read_ledger(write_rows(tmp_path / "long", row()))


def test_a_writer_refuses_what_a_reader_would(tmp_path: Path) -> None:
    turn = Turn("s", None, 0, 5.0, None, 4.0, 10, 0, 1)
    with pytest.raises(LedgerError, match="line 1: end_s"):
        write_ledger(tmp_path / "l.jsonl", [turn])
    assert not (tmp_path / "l.jsonl").exists()
    with pytest.raises(LedgerError, match="cannot be written"):
        write_ledger(tmp_path / "none" / "l.jsonl", [Turn("s", None, 0, 1.0, None, 4.0, 10, 0, 1)])
