"""One policy over one ledger: how far behind the reader was whenever a turn started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from shadow_reader.bounds import Bound
from shadow_reader.events.decide import Limits
from shadow_reader.events.types import RationUsed
from shadow_reader.replay.ledger.freshness import (
    GRID_IDS,
    Behind,
    Figures,
    Interval,
    figures,
    fresh_share,
    resampled,
)
from shadow_reader.replay.ledger.ledger import Ledger
from shadow_reader.replay.simulation.cost_engine import (
    CONTEXT_IDS,
    VOCABULARY,
    CostEngine,
    VirtualDevice,
)
from shadow_reader.replay.simulation.drive import DECODE_IDS_S, ROUND_IDS, Driver, first_s
from shadow_reader.replay.simulation.policy import Policy
from shadow_reader.replay.simulation.quiet_journal import QuietJournal
from shadow_reader.replay.simulation.virtual_time import VirtualClock, run_virtual
from shadow_reader.shadow.box_lock import BoxLock
from shadow_reader.shadow.holds import Holds
from shadow_reader.shadow.lease import Lease
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.reader import Reader
from shadow_reader.shadow.sessions import Sessions
from shadow_reader.shadow.windows import Windows

RESAMPLE_SEED: Final = 41
"""Of the intervals: the same ledger gives the same ones."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one policy.

    Attributes:
        behind: at the start of each turn, by session. decode_s: of all turns together.
        used: what the journal says of rations, by session, turn after turn.
    """

    policy: Policy
    behind: Mapping[str, tuple[Behind, ...]]
    decode_s: float
    used: tuple[tuple[str, RationUsed], ...]

    def values(self, definition: str = "a") -> list[int]:
        """Ids behind at every turn's start, under one definition of behind: a, b or c."""
        return [n for by in self.by_session(definition).values() for n in by]

    def by_session(self, definition: str = "a") -> dict[str, list[int]]:
        """The same, by session."""
        return {
            name: [getattr(one, definition) for one in every] for name, every in self.behind.items()
        }

    def figures(self, definition: str = "a") -> Figures:
        """Fresh share, p50, p90."""
        return figures(self.values(definition))

    @property
    def share_used(self) -> float:
        """Of all turns' time since their first ids, as a fraction."""
        used_ms = sum(event.used_ms for _, event in self.used)
        return used_ms / 1000 / self.decode_s if self.decode_s else 0.0

    def interval(self, draws: int = 500) -> Interval:
        """Where the fresh share lies when sessions are drawn again."""
        return resampled(self.by_session(), fresh_share, seed=RESAMPLE_SEED, draws=draws)


def simulate(
    ledger: Ledger, policy: Policy, journal: Callable[[], QuietJournal] = QuietJournal
) -> Outcome:
    """Run the live reader over a ledger; the same input gives exactly the same outcome.

    Args:
        journal: makes the one that everything is journaled in.
    """
    return run_virtual(_simulate(ledger, policy, journal))


def conventions(ledger: Ledger) -> dict[str, str | int]:
    """What the figures mean, and what was assumed of this ledger."""
    return {
        "behind": "A: what was known before the new prompt arrived, less what was read of it",
        "fresh": f"less than {GRID_IDS} ids behind",
        "percentiles": "nearest rank",
        "interval": "95 % of resamplings of whole sessions",
        "poll": "looks go on every poll_s from the last burst's end, whatever happens meanwhile",
        "share": "of the time since a turn's first id",
        "rounds": f"after every {ROUND_IDS} ids of output",
        "chunk_in_flight": "counts as read at a turn's start: the request waits for it",
        "times": "the ledger's, whatever the reader does",
        "first_unknown": f"{DECODE_IDS_S:g} ids a second to the end, where no first id is recorded",
        "turns_without_first": sum(turn.first_s is None for turn in ledger.turns),
    }


async def _simulate(
    ledger: Ledger, policy: Policy, journal_of: Callable[[], QuietJournal]
) -> Outcome:
    loop = asyncio.get_running_loop()
    clock = VirtualClock(loop, min(turn.start_s for turn in ledger.turns))
    engine = CostEngine(policy)
    journal = journal_of()
    limits = Limits(VOCABULARY, CONTEXT_IDS, question_ids=1, open_questions=1)
    sessions = Sessions(journal, clock, limits, len(ledger.sessions) + 1)
    reader = Reader(
        sessions=sessions,
        engine=engine,
        device=VirtualDevice(engine),
        lease=Lease(clock),
        line=QuestionLine(sessions, clock, None, 1.0),
        clock=clock,
        windows=Windows(
            holds=Holds(clock, Bound("holds", 1), 1.0),
            box=BoxLock(None),
            burst_s=policy.burst_s,
            share=policy.share,
            slice_s=policy.slice_s,
            streamed=False,
            idle_poll_s=policy.poll_s or None,
        ),
        recent_sessions=1,
    )
    reading = asyncio.create_task(reader.run(journal), name="reader")
    driver = Driver(ledger, policy, sessions, reader, engine)
    await driver.run()
    reader.stop()
    await reading
    return Outcome(
        policy,
        {name: tuple(every) for name, every in driver.behind.items()},
        sum(turn.end_s - first_s(turn) for turn in ledger.turns),
        tuple(journal.used),
    )


Advance = Callable[[int, int], None]
"""Told how many policies are done, of how many."""


def simulate_all(
    ledger: Ledger, policies: tuple[Policy, ...], advance: Advance = lambda _done, _all: None
) -> list[Outcome]:
    """Every policy over the same ledger."""
    outcomes: list[Outcome] = []
    for policy in policies:
        advance(len(outcomes), len(policies))
        outcomes.append(simulate(ledger, policy))
    return outcomes
