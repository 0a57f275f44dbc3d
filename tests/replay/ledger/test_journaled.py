"""A journal as a ledger, held against what the simulation that wrote it says itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from shadow_reader.errors import LedgerError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.replay.ledger.journaled import JournalLedger, journal_ledger
from shadow_reader.replay.ledger.ledger import Ledger
from shadow_reader.replay.simulation.drive import first_s
from shadow_reader.replay.simulation.policy import PRESETS, Policy
from shadow_reader.replay.simulation.quiet_journal import QuietJournal
from shadow_reader.replay.simulation.simulate import Outcome, simulate
from tests.replay.simulation.ledgers import made


class Recording(QuietJournal):
    """Keeps every entry, too."""

    def __init__(self, kept: list[t.Entry]) -> None:
        super().__init__()
        self.kept = kept

    def submit(self, drafts: Sequence[t.Draft]) -> asyncio.Future[range]:
        for draft in drafts:
            self.kept.append(t.Entry(*draft, len(self.kept) + 1))
        return super().submit(drafts)


def read(entries: Sequence[t.Entry], name: str = "j") -> JournalLedger:
    async def given() -> AsyncIterator[t.Entry]:
        for entry in entries:
            yield entry

    return asyncio.run(journal_ledger(name, given()))


def lived(ledger: Ledger, policy: Policy) -> tuple[Outcome, JournalLedger]:
    kept: list[t.Entry] = []
    outcome = simulate(ledger, policy, lambda: Recording(kept))
    return outcome, read(kept)


@pytest.mark.parametrize("policy", ["original-idle", "original", "events", "shared"])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_journal_says_is_what_happened(seed: int, policy: str) -> None:
    ledger = made(seed)
    outcome, found = lived(ledger, PRESETS[policy])
    measured = {session: list(every) for session, every in found.measured.behind.items()}
    assert measured == outcome.by_session()
    assert found.measured.figures() == outcome.figures()
    assert found.measured.share_used == pytest.approx(outcome.share_used, rel=0.01)
    assert found.measured.read_ms_per_1000 == pytest.approx(87.0, rel=1e-3)
    assert found.unfinished == 0


def test_the_turns_are_the_ledger_s() -> None:
    ledger = made(3)
    _, found = lived(ledger, PRESETS["events"])
    assert found.ledger.sessions.keys() == ledger.sessions.keys()
    for name, session in ledger.sessions.items():
        for turn, again in zip(session.turns, found.ledger.sessions[name].turns, strict=True):
            times = (again.start_s, again.first_s, again.end_s)
            assert times == pytest.approx((turn.start_s, first_s(turn), turn.end_s), abs=0.05)
            counts = (again.prompt_ids, again.prefix_ids, again.output_ids)
            assert counts == (turn.prompt_ids, turn.prefix_ids, turn.output_ids)


def test_it_can_be_replayed_and_comes_out_the_same() -> None:
    outcome, found = lived(made(4), PRESETS["events"])
    again = simulate(found.ledger, PRESETS["events"])
    assert again.figures().fresh == pytest.approx(outcome.figures().fresh, abs=0.03)


# -- what only happens outside simulations -----------------------------------------------------


def entries(*events: tuple[float, str, t.Event], turn: str = "t1") -> list[t.Entry]:
    return [
        t.Entry(at, session, turn, event, seq)
        for seq, (at, session, event) in enumerate(events, start=1)
    ]


def ids(count: int) -> Ids:
    return Ids.of([1] * count)


OPENED = (0.0, "s", t.SessionOpened())
TURN: list[tuple[float, str, t.Event]] = [
    OPENED,
    (1.0, "s", t.Prompt(0, ids(2000))),
    (3.0, "s", t.Output(0, ids(10))),
    (4.0, "s", t.TurnEnded("stop")),
]


def behind_after(*events: tuple[float, str, t.Event]) -> int:
    """At the start of a turn that comes after these."""
    more: list[tuple[float, str, t.Event]] = [
        (20.0, "s", t.Prompt(2010, ids(5))),
        (21.0, "s", t.TurnEnded("stop")),
    ]
    found = read(entries(*TURN, *events, *more))
    assert [turn.turn for turn in found.ledger.turns] == [0, 1]
    assert found.measured.behind["s"][0] == 0
    return found.measured.behind["s"][1]


READ: tuple[float, str, t.Event] = (6.0, "s", t.Read(0, 1536, "idle", 1000.0))
LOADED = t.EngineLoaded("e", "m", "w", 512, "d", "cpu", "b", 1)


@pytest.mark.parametrize(
    ("events", "behind"),
    [
        ([], 2010),
        ([READ], 2010 - 1536),
        ([READ, (7.0, "s", t.Rewind(600, 512, 88))], 2010 - 512),
        ([READ, (7.0, "s", t.Spill(1536, 9, 1.0, kept=True))], 2010 - 1536),
        ([READ, (7.0, "s", t.Spill(1536, 9, 1.0, kept=False))], 2010),
        ([READ, (7.0, "s", t.Dropped("cap", 1536))], 2010),
        ([READ, (7.0, "", LOADED)], 2010),
        ([READ, (7.0, "", LOADED), (8.0, "s", t.Restore(1024, 9, 1.0))], 2010 - 1024),
        ([READ, (7.0, "", LOADED), (8.0, "s", t.Restore(0, 0, 1.0, "broken"))], 2010),
        ([(6.0, "s", t.Shared(1024))], 2010 - 1024),
        ([(6.0, "other", t.SessionOpened()), (7.0, "other", t.Dropped("cap", 5))], 2010),
    ],
)
def test_every_way_a_state_moves(events: list[Any], behind: int) -> None:
    assert behind_after(*events) == behind


@pytest.mark.parametrize(("asked_s", "begun"), [(5.0, 0), (5.1, 1), (5.34, 2), (5.99, 3)])
def test_of_a_burst_the_chunks_that_had_begun_count(asked_s: float, begun: int) -> None:
    """It is journaled behind the prompt that ended it."""
    more: list[tuple[float, str, t.Event]] = [
        (asked_s, "s", t.Prompt(2010, ids(5))),
        READ,
        (21.0, "s", t.TurnEnded("stop")),
    ]
    found = read(entries(*TURN, *more))
    assert found.measured.behind["s"][1] == 2010 - 512 * begun


def test_turns_that_nobody_ended() -> None:
    found = read(
        entries(
            *TURN[:3],
            (9.0, "s", t.TurnEnded("superseded")),
            (9.0, "s", t.Prompt(2010, ids(5))),
        )
    )
    (turn,) = found.ledger.turns
    assert (turn.end_s, turn.assumed) == (3.0, ("end_s",))
    assert found.unfinished == 1
    assert len(found.measured.behind["s"]) == 1


def test_a_clock_that_jumps_back_leaves_a_ledger() -> None:
    found = read(
        entries(
            *TURN,
            (2.0, "s", t.Prompt(2010, ids(5))),
            (1.0, "s", t.Output(0, ids(1))),
            (0.5, "s", t.TurnEnded("stop")),
        )
    )
    last = found.ledger.turns[-1]
    assert (last.start_s, last.first_s, last.end_s) == (4.0, 4.0, 4.0)


def test_an_erased_session_is_gone_and_begins_anew() -> None:
    found = read(entries(*TURN, (9.0, "s", t.SessionErased(4, 2010)), *TURN[:1], *TURN[1:]))
    assert [turn.turn for turn in found.ledger.turns] == [0]
    assert found.measured.behind == {"s": (0,)}


def test_a_journal_without_a_whole_turn_is_no_ledger() -> None:
    for few in ([], TURN[:3]):
        with pytest.raises(LedgerError, match="holds no turn"):
            read(entries(*few))


def test_another_grid_is_the_engine_s() -> None:
    loaded = replace(LOADED, grid=128)
    found = read(entries((0.0, "", loaded), *TURN))
    assert found.measured.grid == 128
