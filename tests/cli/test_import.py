"""``shadow-reader import``: a file in, a ledger and an account of it out."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from shadow_reader.cli.main import app
from shadow_reader.replay.ledger import read_ledger
from tests.cli.recordings import write_recording
from tests.replay.ledger.records import claude_block, claude_line, lines


def _record(folder: Path) -> Path:
    rows = [
        claude_line("u0", "user", 0),
        claude_block("a1", 2, "m1"),
        claude_line("e", "assistant", 3, isApiErrorMessage=True),
        claude_line("u1", "user", 4),
        claude_block("b1", 6, "m2", output=9, stop="end_turn"),
    ]
    return lines(folder / "s.jsonl", rows)


def test_it_writes_a_ledger_and_says_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "usage.jsonl.gz"
    done = CliRunner().invoke(app, ["import", str(_record(tmp_path)), "--out", str(out)])
    assert done.exit_code == 0
    assert "1 of claude-code" in done.stdout
    assert "failed requests" in done.stderr
    assert "output_ids assumed" in done.stderr
    assert len(read_ledger(out).turns) == 2


def test_json_has_the_same_account(tmp_path: Path) -> None:
    out = tmp_path / "usage.jsonl"
    record = str(_record(tmp_path))
    done = CliRunner().invoke(app, ["import", record, "--out", str(out), "--json"])
    body = json.loads(done.stdout)
    assert body["left_out"] == {"failed requests": 1}
    assert body["not_as_recorded"]["start_s assumed"] == 2
    assert (body["sources"], body["summary"]["turns"]) == ({"claude-code": 1}, 2)
    again = CliRunner().invoke(app, ["import", record, "--out", str(out)])
    assert again.exit_code == 2
    assert "--force replaces it" in again.stderr
    assert CliRunner().invoke(app, ["import", record, "-o", str(out), "--force"]).exit_code == 0


def test_nothing_to_import_is_bad_input(tmp_path: Path) -> None:
    out = tmp_path / "usage.jsonl"
    record = write_recording(tmp_path)  # a transcript without counts
    done = CliRunner().invoke(app, ["import", str(record), "--out", str(out)])
    assert done.exit_code == 2
    assert "no request to import; left out: 3 requests without counts" in done.stderr
    assert not out.exists()
