"""The model's slot: loaded in an idle window, released, and back with the next turn."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.config import Settings, load_settings
from shadow_reader.errors import (
    AskTimeoutError,
    ConflictError,
    InvalidInputError,
    ModelError,
    OutOfRoomError,
    SettingsError,
    ShutDownError,
)
from shadow_reader.events import types as t
from shadow_reader.making import Maker
from shadow_reader.profiles import Profile, ShadowProfile
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.claim import Claim, claim_of
from shadow_reader.shadow.lease import Rank
from tests.fakes import GRID, FakeEngine, fake_vocabulary
from tests.runtimes import entries, nothing_left_open, settings, until, whole_turn

PROMPT = list(range(5 * GRID + 3))


class Factory:
    """Makes fake engines, when it may.

    Attributes:
        free: bytes said to be free. error: raised instead of making an engine.
        may: while clear, making waits. making: it is being made.
        made: all engines so far.
    """

    def __init__(self, *, free: int = 1 << 40) -> None:
        self.free = free
        self.error: Exception | None = None
        self.may = threading.Event()
        self.may.set()
        self.making = threading.Event()
        self.made: list[FakeEngine] = []

    def claim(self, _settings: Settings) -> Claim:
        return Claim(1000, self.free)

    def build(self, _settings: Settings) -> FakeEngine:
        self.making.set()
        assert self.may.wait(30)
        if self.error is not None:
            raise self.error
        self.made.append(FakeEngine())
        return self.made[-1]

    @property
    def maker(self) -> Maker:
        return Maker(self.claim, self.build, lambda _spec: fake_vocabulary())


def service(folder: Path, factory: Factory, **changes: Any) -> Runtime:
    changes = {"model": "random:tiny", **changes}
    return Runtime(settings(folder, **changes), maker=factory.maker)


async def state_is(shadow: Runtime, state: str) -> bool:
    return (await shadow.status()).slot.state == state


async def becomes(shadow: Runtime, state: str) -> str:
    """Wait for the slot's state; its reason then."""
    await until(partial(state_is, shadow, state))
    return (await shadow.status()).slot.reason


async def engine_events(shadow: Runtime) -> list[object]:
    kinds = ["engine.loaded", "engine.released", "engine.stopped"]
    return [type(e.event) for e in await entries(shadow, kinds=kinds)]


async def test_messages_are_taken_before_the_model_is_there(tmp_path: Path) -> None:
    factory = Factory()
    factory.may.clear()
    async with nothing_left_open(), service(tmp_path, factory) as shadow:
        await asyncio.to_thread(factory.making.wait, 30)
        assert shadow.state == "ready"
        await whole_turn(shadow, "s", PROMPT)
        status = await shadow.session_status("s")
        assert (status.known, status.committed) == (len(PROMPT), 0)
        assert (await shadow.status()).model is None
        asking = asyncio.create_task(shadow.ask("s", [1], ["a", "b"]))
        fresh = asyncio.create_task(shadow.wait_fresh("s"))
        with pytest.raises(AskTimeoutError, match="not loaded within"):
            await shadow.ask("s", [1], ["a", "b"], timeout_s=0.01)
        with pytest.raises(ModelError):
            await shadow.digest("s")
        factory.may.set()
        assert (await asking).position == len(PROMPT)
        assert (await fresh).fresh
        slot = (await shadow.status()).slot
        assert (slot.state, slot.reason, slot.claim_bytes) == ("loaded", "", 1000)


async def test_it_is_loaded_in_the_first_idle_window(tmp_path: Path) -> None:
    factory = Factory()
    shadow = service(tmp_path, factory)
    grant = shadow.lease.try_acquire(Rank.REQUEST, "engine")
    assert grant is not None
    async with shadow:
        await until(partial(reason_has, shadow, "holds the lease"))
        await shadow.prompt("s", PROMPT, turn="t1")
        shadow.lease.release(grant)
        await until(partial(reason_has, shadow, "while turns run"))
        assert not factory.made
        await shadow.end("s", "t1")
        await becomes(shadow, "loaded")
        await shadow.wait_fresh("s")


async def reason_has(shadow: Runtime, words: str) -> bool:
    return words in (await shadow.status()).slot.reason


async def test_what_does_not_fit_is_said_and_tried_again_when_asked(tmp_path: Path) -> None:
    factory = Factory(free=999)
    async with service(tmp_path, factory) as shadow:
        await until(partial(reason_has, shadow, "999 are free"))
        with pytest.raises(OutOfRoomError, match="weights and cap_gb take 1000 bytes"):
            await shadow.load(timeout_s=20)
        assert shadow.state == "ready", "messages are taken all the same"
        assert not factory.made
        factory.free = 1000
        assert (await shadow.load(timeout_s=20)).state == "loaded"


async def test_release_spills_and_the_next_turn_brings_it_back(tmp_path: Path) -> None:
    factory = Factory()
    async with nothing_left_open(), service(tmp_path, factory) as shadow:
        await shadow.load(timeout_s=20)
        await whole_turn(shadow, "s", PROMPT)
        await shadow.wait_fresh("s")
        slot = await shadow.release()
        assert (slot.state, factory.made[0].closed) == ("released", 1)
        assert "the next turn" in slot.reason
        (spilled,) = [e.event for e in await entries(shadow, kinds=["spill"])]
        assert isinstance(spilled, t.Spill)
        disk = (await shadow.status()).snapshots
        assert disk is not None
        assert disk.sessions == 1, "as it is after the spilling"
        for call in (shadow.ask("s", [1], ["a", "b"]), shadow.wait_fresh("s")):
            with pytest.raises(ModelError, match="was released"):
                await call
        assert (await shadow.release()).state == "released", "twice is once"
        await whole_turn(shadow, "s", [*PROMPT, *range(2 * GRID)], "t2")
        await becomes(shadow, "loaded")
        await shadow.wait_fresh("s")
        (restored,) = [e.event for e in await entries(shadow, kinds=["restore"])]
        assert isinstance(restored, t.Restore)
        assert restored.position == 5 * GRID
        assert await engine_events(shadow) == [t.EngineLoaded, t.EngineReleased, t.EngineLoaded]


async def test_a_question_that_waits_is_told_of_a_release(tmp_path: Path) -> None:
    factory = Factory()
    async with service(tmp_path, factory) as shadow:
        await shadow.load(timeout_s=20)
        await shadow.prompt("s", PROMPT, turn="t1")  # it runs: nothing is read
        asking = asyncio.create_task(shadow.ask("s", [1], ["a", "b"]))
        await until(partial(open_questions, shadow, 1))
        await shadow.release()
        with pytest.raises(ModelError, match="was released"):
            await asking
        await until(partial(open_questions, shadow, 0))


async def open_questions(shadow: Runtime, count: int) -> bool:
    return (await shadow.status()).totals.open_questions == count


async def test_one_that_cannot_be_loaded_is_named_and_tried_again_only_when_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    factory = Factory()
    factory.error = RuntimeError("a broken shard")
    async with service(tmp_path, factory) as shadow:
        assert "a broken shard" in await becomes(shadow, "failed")
        await whole_turn(shadow, "s", PROMPT)
        with pytest.raises(ModelError, match="a broken shard"):
            await shadow.ask("s", [1], ["a", "b"])
        with pytest.raises(ModelError, match="a broken shard"):
            await shadow.load(timeout_s=20)
        factory.error = None
        assert (await shadow.load(timeout_s=20)).state == "loaded"
        await shadow.wait_fresh("s")


async def test_whatever_stops_the_slot_s_task_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    factory = Factory()
    factory.error = AssertionError("a bug of ours")
    async with service(tmp_path, factory) as shadow:
        assert "a bug of ours" in await becomes(shadow, "failed")
        with pytest.raises(ModelError, match="a bug of ours"):
            await shadow.load(timeout_s=20)
        await whole_turn(shadow, "s", PROMPT)


def test_cuda_where_there_is_none_is_a_clear_error() -> None:
    if torch_has_cuda():
        pytest.skip("there is CUDA here")
    with pytest.raises(ModelError, match="no CUDA"):
        claim_of(Settings(model="random:tiny", device="cuda"))


def torch_has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


async def test_load_waits_for_an_idle_window_or_says_that_none_came(tmp_path: Path) -> None:
    """Case 35: the big model starts and measures while somebody asks for the load."""
    factory = Factory()
    async with service(tmp_path, factory) as shadow:
        await shadow.load(timeout_s=20)
        await shadow.release()
        async with shadow.lease.request("the big model's start"):
            with pytest.raises(AskTimeoutError, match="a request holds the lease"):
                await shadow.load(timeout_s=0.05)
            assert len(factory.made) == 1
        assert (await shadow.load(timeout_s=20)).state == "loaded"
        assert len(factory.made) == 2


async def test_the_last_word_counts(tmp_path: Path) -> None:
    factory = Factory()
    factory.may.clear()
    async with service(tmp_path, factory) as shadow:
        await asyncio.to_thread(factory.making.wait, 30)
        loading = asyncio.create_task(shadow.load(timeout_s=20))
        await asyncio.sleep(0.01)
        releasing = asyncio.create_task(shadow.release())
        await asyncio.sleep(0.01)
        factory.may.set()
        with pytest.raises(ConflictError, match="released meanwhile"):
            await loading
        assert (await releasing).state == "released"
        assert factory.made[0].closed == 1


async def test_a_turn_that_takes_back_a_release_tells_who_waits_for_it(tmp_path: Path) -> None:
    factory = Factory()
    factory.may.clear()
    async with service(tmp_path, factory) as shadow:
        await asyncio.to_thread(factory.making.wait, 30)
        releasing = asyncio.create_task(shadow.release())
        await asyncio.sleep(0.01)
        await whole_turn(shadow, "s", PROMPT)
        factory.may.set()
        with pytest.raises(ConflictError, match="loaded again meanwhile"):
            async with asyncio.timeout(20):
                await releasing
        assert (await shadow.status()).slot.state == "loaded"


async def test_many_who_load_and_release_at_once_all_get_an_answer(tmp_path: Path) -> None:
    factory = Factory()
    async with nothing_left_open(), service(tmp_path, factory) as shadow:
        await whole_turn(shadow, "s", PROMPT)
        calls: list[Callable[[], Awaitable[object]]] = [
            partial(shadow.load, timeout_s=20),
            shadow.release,
        ] * 6
        tasks = [asyncio.ensure_future(call()) for call in calls]
        await asyncio.sleep(0.02)
        for task in tasks[::5]:
            task.cancel()
        async with asyncio.timeout(30):
            found = await asyncio.gather(*tasks, return_exceptions=True)
        wrong = [f for f in found if isinstance(f, BaseException)]
        assert all(isinstance(w, ConflictError | asyncio.CancelledError) for w in wrong)
        assert (await shadow.load(timeout_s=20)).state == "loaded"
        await shadow.wait_fresh("s")
        assert sum(engine.closed for engine in factory.made) == len(factory.made) - 1


async def test_closing_while_it_loads_or_is_released(tmp_path: Path) -> None:
    factory = Factory()
    factory.may.clear()
    async with nothing_left_open():
        async with service(tmp_path, factory) as shadow:
            await asyncio.to_thread(factory.making.wait, 30)
            loading = asyncio.create_task(shadow.load(timeout_s=20))
            asyncio.get_running_loop().call_later(0.05, factory.may.set)
        with pytest.raises(ShutDownError):
            await loading
        async with service(tmp_path, factory) as shadow:
            await shadow.load(timeout_s=20)
            releasing = asyncio.create_task(shadow.release())
            await asyncio.sleep(0)
        with pytest.raises((ShutDownError, asyncio.CancelledError)):
            await releasing


async def test_an_erasure_while_nothing_is_loaded_takes_the_snapshot(tmp_path: Path) -> None:
    factory = Factory()
    async with service(tmp_path, factory) as shadow:
        await shadow.load(timeout_s=20)
        await whole_turn(shadow, "s", PROMPT)
        await shadow.wait_fresh("s")
        await shadow.release()
        folder = tmp_path / "shadow.db-snapshots"
        assert list(folder.rglob("head*"))
        await shadow.erase("s")
        assert not list(folder.rglob("head*"))
        snapshots = (await shadow.status()).snapshots
        assert snapshots is not None
        assert snapshots.sessions == 0


async def test_an_engine_that_was_handed_in_is_not_ours_to_release(tmp_path: Path) -> None:
    engine = FakeEngine()
    shadow = Runtime(settings(tmp_path), engine=engine, vocabulary=fake_vocabulary())
    async with shadow:
        assert (await shadow.status()).slot.state == "loaded"
        for call in (shadow.load(), shadow.release()):
            with pytest.raises(ModelError, match="handed in"):
                await call
        await whole_turn(shadow, "s", PROMPT)
        await shadow.wait_fresh("s")
    assert engine.closed == 1


async def test_without_a_model_there_is_nothing_to_load(tmp_path: Path) -> None:
    async with Runtime(settings(tmp_path)) as shadow:
        assert (await shadow.status()).slot.state == "off"
        for call in (shadow.load(), shadow.release(), shadow.ask("s", [1], ["a", "b"])):
            with pytest.raises(ModelError, match="no model"):
                await call


# -- profiles ----------------------------------------------------------------------------------

PROFILES = {
    "coding": Profile(shadow=ShadowProfile(mode="on")),
    "chat": Profile(shadow=ShadowProfile(mode="off")),
}


async def test_a_session_is_read_as_the_profile_of_its_last_turn_says(tmp_path: Path) -> None:
    factory = Factory()
    async with service(tmp_path, factory, profiles=PROFILES) as shadow:
        await shadow.load(timeout_s=20)
        await shadow.prompt("s", PROMPT, turn="t1", profile="chat")
        await shadow.end("s", "t1")
        await asyncio.sleep(0.05)
        status = await shadow.session_status("s")
        assert (status.committed, status.fresh) == (0, False)
        assert "has the shadow off" in status.note
        for call in (shadow.ask("s", [1], ["a", "b"]), shadow.wait_fresh("s")):
            with pytest.raises(ModelError, match="has the shadow off"):
                await call
        await shadow.prompt("s", PROMPT, turn="t2", profile="coding")
        await shadow.end("s", "t2")
        assert (await shadow.wait_fresh("s")).committed == 5 * GRID
        with pytest.raises(InvalidInputError, match=r"there are \['chat', 'coding'\]"):
            await shadow.prompt("s", PROMPT, turn="t3", profile="Coding")


async def test_only_a_turn_that_is_read_brings_a_released_model_back(tmp_path: Path) -> None:
    factory = Factory()
    async with service(tmp_path, factory, profiles=PROFILES) as shadow:
        await shadow.load(timeout_s=20)
        await shadow.release()
        await shadow.prompt("s", PROMPT, turn="t1", profile="chat")
        await shadow.end("s", "t1")
        await asyncio.sleep(0.05)
        assert (await shadow.status()).slot.state == "released"
        await shadow.prompt("s", PROMPT, turn="t2", profile="coding")
        await shadow.end("s", "t2")
        await becomes(shadow, "loaded")


async def test_where_no_profile_reads_nothing_is_loaded_unless_asked(tmp_path: Path) -> None:
    factory = Factory()
    off = {"chat": Profile()}
    async with service(tmp_path, factory, profiles=off) as shadow:
        slot = (await shadow.status()).slot
        assert (slot.state, slot.reason) == ("off", "no profile of the settings has the shadow on")
        assert (await shadow.load(timeout_s=20)).state == "loaded"


async def test_a_turn_without_a_profile_has_the_default_one(tmp_path: Path) -> None:
    factory = Factory()
    profiles = {**PROFILES, "default": Profile()}
    async with service(tmp_path, factory, profiles=profiles) as shadow:
        await shadow.load(timeout_s=20)
        await whole_turn(shadow, "s", PROMPT)
        assert "shadow off" in (await shadow.session_status("s")).note


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ('[profiles.a.shadow]\nmode = "maybe"', "profiles.a.shadow.mode"),
        ('[profiles.a.shadow]\nrouter = "shadow"', "profiles.a.shadow"),
        ('[profiles.a.shadow]\nnarrator = "on"', "profiles.a.shadow"),
        ('[profiles.a.shadow]\nnarrator = "loud"', "profiles.a.shadow.narrator"),
        ("[profiles.a.shadow]\nspeed = 3", "profiles.a.shadow.speed"),
        ("[profiles.a]\nvoice = 3", "profiles.a.voice"),
        ("profiles = 3", "profiles"),
    ],
)
def test_a_bad_profile_stops_the_start(tmp_path: Path, toml: str, key: str) -> None:
    file = tmp_path / "shadow.toml"
    file.write_text(toml)
    with pytest.raises(SettingsError) as caught:
        load_settings(file=file)
    assert [problem["key"] for problem in caught.value.details["problems"]] == [key]


def test_a_good_profile_is_read(tmp_path: Path) -> None:
    file = tmp_path / "shadow.toml"
    file.write_text('model = "random:tiny"\n[profiles.coding.shadow]\nmode = "on"\n')
    found = load_settings(file=file)
    assert found.profiles["coding"].shadow.mode == "on"
    assert found.wants_model


# -- the claim ---------------------------------------------------------------------------------
