"""Rounds and holds through the service, over HTTP and from an engine's own thread."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from shadow_reader.cli.journal_share import shares
from shadow_reader.cli.journal_source import FileSource
from shadow_reader.errors import ConflictError, InvalidInputError, NotFoundError, SettingsError
from shadow_reader.events import types as t
from shadow_reader.runtime import Runtime
from shadow_reader.store.reader import JournalReader
from tests.fakes import GRID
from tests.http_api.serving import serving
from tests.runtimes import entries, runtime, until, whole_turn

PROMPT = list(range(50 * GRID))


async def test_an_engine_that_pauses_calls_its_rounds(tmp_path: Path) -> None:
    async with runtime(tmp_path, turn_share=0.5, rounds="called") as shadow:
        await shadow.prompt("s", PROMPT, turn="t1")
        early = await shadow.round("s", "t1")
        assert (early.read, early.used_ms) == (0, 0.0), "it has no first token yet"
        await shadow.first_token("s", "t1")
        await asyncio.sleep(0.35)
        loop = asyncio.get_running_loop()
        call = partial(shadow.round_from_thread, "s", "t1", timeout_s=10)
        slices = 0

        async def something_was_read() -> bool:
            nonlocal slices
            reply = await loop.run_in_executor(None, call)
            slices += reply.used_ms > 0
            return reply.read > 0

        await until(something_was_read)  # in the first, a snapshot is looked for
        (ration,) = (await shadow.status()).windows.rations
        assert (ration.session, ration.turn, ration.slices) == ("s", "t1", slices)
        await shadow.end("s", "t1")
        with pytest.raises(ConflictError, match="has ended"):
            await shadow.round("s", "t1")
        with pytest.raises(NotFoundError):
            await shadow.round("s", "t2")
        with pytest.raises(NotFoundError):
            await shadow.round("nobody", "t1")
        await shadow.wait_fresh("s")
    async with await JournalReader.open(tmp_path / "shadow.db") as reader:
        found = await shares(FileSource(reader), None, 0.5)
    (turn,) = found.turns
    assert (turn.session, turn.turn, turn.slices, found.over) == ("s", "t1", slices, 0)
    assert 0 < turn.used_ms <= 0.5 * turn.decode_ms + found.chunk_ms
    assert found.read_ms <= found.used_ms + 1


async def test_holds_over_http_are_journaled(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        path = "/v1/conductor/shadow/hold"
        hold = await served.ok("POST", path, {"owner": "a benchmark", "seconds": 30})
        assert 29 < hold["left_s"] <= 30
        longer = await served.ok("POST", path, {"hold": hold["hold"], "seconds": 60})
        assert longer["left_s"] > 59
        status = await served.ok("GET", "/v1/conductor/shadow/status")
        assert [h["owner"] for h in status["windows"]["holds"]] == ["a benchmark"]
        for body in ({"seconds": 1}, {"owner": "a", "hold": "b", "seconds": 1}, {"owner": "a"}):
            assert (await served.call("POST", path, body))[0] == 422
        code, answer = await served.call("POST", path, {"owner": "a", "seconds": 1e9})
        assert (code, answer["error"]["details"]["limit"]) == (422, 3600.0)
        await served.ok("POST", f"{path}/end", {"hold": hold["hold"]})
        assert (await served.call("POST", f"{path}/end", {"hold": hold["hold"]}))[0] == 404
        kept = await served.ok("POST", path, {"owner": "kept", "seconds": 30})
        runtime_ = served.runtime

        async def written() -> bool:
            return len(await entries(runtime_, kinds=["hold", "hold.ended"])) == 3

        await until(written)
    async with await JournalReader.open(tmp_path / "shadow.db") as reader:
        found = [e.event async for e in reader.entries(kinds=["hold", "hold.ended"])]
    assert found == [
        t.HoldBegun(hold["hold"], "a benchmark", 30.0),
        t.HoldEnded(hold["hold"], "released"),
        t.HoldBegun(kept["hold"], "kept", 30.0),
        t.HoldEnded(kept["hold"], "closed"),
    ]


async def test_a_hold_keeps_the_reader_away(tmp_path: Path) -> None:
    async with runtime(tmp_path) as shadow:
        hold = shadow.hold("a benchmark", 30.0)
        await whole_turn(shadow, "s", PROMPT)
        await asyncio.sleep(0.05)
        status = await shadow.session_status("s")
        assert (status.committed, "a benchmark" in status.note) == (0, True)
        with pytest.raises(InvalidInputError):
            shadow.extend_hold(hold.hold, -1.0)
        shadow.extend_hold(hold.hold, 0.05)
        await shadow.wait_fresh("s")


async def test_a_box_lock_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    shadow: Runtime = runtime(tmp_path, box_lock=tmp_path / "nowhere" / "box.lock")
    with pytest.raises(SettingsError, match="cannot be opened"):
        await shadow.__aenter__()
