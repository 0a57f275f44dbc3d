"""Whatever happens while batches wait: each question ends once, and no answer is another's."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import ModelError, ShadowError
from shadow_reader.events import types as t
from shadow_reader.shadow.questions import Ask, calibrated
from tests.fake_journal import script
from tests.fakes import EFFORT, GRID, FakeEngine, run_virtual, settle, steps
from tests.shadow.rig import CHUNK_S, QUESTION, Rig, ids, quiet

LETTERS = [ord("A"), ord("B")]
OTHER = [9, 8]
ASKS = st.fixed_dictionaries(
    {
        "count": st.integers(1, 4),
        "calibrate": st.booleans(),
        "wait": st.sampled_from(["fresh", "now", "position"]),
        "place": st.floats(0, 1),
        "patient": st.booleans(),
        "timeout_s": st.sampled_from([0.25, 3.0, 300.0]),
    }
)
DEEDS = st.sampled_from(["cancel", "erase", "away", "prompt", "more", "request", "turn"])
MOVES = st.tuples(ASKS, DEEDS, st.integers(0, 9), st.integers(0, 5))


@settings(max_examples=50 * EFFORT)
@given(
    moves=st.lists(MOVES, min_size=1, max_size=5),
    failures=st.lists(st.sampled_from([False, False, False, True]), max_size=20),
    shares=st.booleans(),
)
def test_batches_end_once_whatever_happens(
    moves: list[tuple[dict[str, Any], str, int, int]], failures: list[bool], *, shares: bool
) -> None:
    async def main() -> None:
        world = World(Rig(engine=FakeEngine(shares=shares)).start())
        for turn, chunks in (("t1", 5), ("t2", 9)):
            await world.rig.whole_turn("other", ids(chunks * GRID), turn)
            await quiet(5)
        await world.rig.whole_turn("s", ids(7 * GRID + 3), "t0")
        world.rig.journal.fails = script(failures)
        for asks, deed, tenths, pace in moves:
            world.ask(**asks)
            await asyncio.sleep(tenths * CHUNK_S / 2)
            await steps(pace)
            await world.do(deed)
        world.rig.journal.fails = script([])
        world.rig.line.away = None
        await world.check()

    run_virtual(main())


class World:
    """One reader, and who asks of session ``s`` and disturbs it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.known = ids(7 * GRID + 3)
        self.asking: list[asyncio.Task[Any]] = []
        self.others: list[asyncio.Task[Any]] = []
        self.turns = 0

    def ask(self, *, count: int, calibrate: bool, wait: Any, place: float, **more: Any) -> None:
        texts = [QUESTION, OTHER][:count] + [QUESTION] * (count - 2)
        asked = [Ask(text, ["yes", "no"], calibrate) for text in texts]
        position = round(place * len(self.known)) if wait == "position" else None
        base = self.known[:position] if position is not None else None
        asking = self.rig.line.ask_many("s", asked, wait=wait, position=position, **more)
        self.asking.append(asyncio.create_task(self._checked(asking, texts, base)))

    async def _checked(self, asking: Any, texts: list[list[int]], base: list[int] | None) -> None:
        """A reply about a position is what a fresh prefill of the ids known then says."""
        for text, reply in zip(texts, await asking, strict=True):
            if base is not None:
                expected = FakeEngine.answer_to([*base, *text], LETTERS)
                if reply.prior is not None:
                    prior = FakeEngine.answer_to(text, LETTERS)
                    assert tuple(reply.prior.values()) == prior
                    expected = calibrated(expected, prior)
                assert tuple(reply.probabilities.values()) == expected

    async def do(self, deed: str) -> None:
        self.turns += 1
        turn = f"t{self.turns}"
        match deed:
            case "cancel":
                self.asking[-1].cancel()
            case "away":
                self.rig.line.send_away(ModelError("released"))
                await steps(3)
                self.rig.line.away = None
            case "request":
                async with self.rig.lease.request():
                    await asyncio.sleep(0.3)
            case _:
                unexpected(await settle(asyncio.create_task(self._change(deed, turn))))

    async def _change(self, deed: str, turn: str) -> None:
        rig = self.rig
        if deed == "erase":
            await rig.erase("s")
            await asyncio.sleep(5 * CHUNK_S)
            assert "s" not in rig.engine.states, "an erased session's state came back"
            self.known = ids(4 * GRID, self.turns)
        elif deed == "prompt":
            self.known = [*self.known[: 3 * GRID + 1], *ids(3 * GRID, self.turns)]
        elif deed == "more":
            self.known = [*self.known, *ids(2 * GRID, self.turns)][: 20 * GRID]
        await rig.prompt("s", self.known, turn)
        if deed != "turn":
            await rig.end("s", turn)

    async def check(self) -> None:
        rig = self.rig
        await rig.whole_turn("s", self.known, "last")
        unexpected(await settle(*self.asking))
        await quiet()
        await ends_once(rig)
        rig.assert_exact("s")
        assert rig.lease.free
        assert not rig.line.waiting()
        assert not rig.view("s").questions
        assert set(rig.engine.states) <= {"s", "other"}
        await rig.stop()


def unexpected(results: list[Any]) -> None:
    """Raise what is no error of the world."""
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, ShadowError):
            raise result


async def ends_once(rig: Rig) -> None:
    """Every journaled question of the session as it is now."""
    ends: dict[str, int] = {}
    for event in await rig.events("s", t.Question, t.Answer, t.QuestionEnded):
        ends[event.question] = ends.get(event.question, -1) + 1
    assert set(ends.values()) <= {1}, ends
