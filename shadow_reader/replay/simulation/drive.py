"""Lets a ledger's turns happen to live sessions: prompt, first id, output, end, at their times.

Laws:

1. The ledger's times are kept, whatever the reader does.
2. Rounds come after every ``ROUND_IDS`` of output. One is called only when the ration will afford
   the next chunk and there is one to read: in the others the reader would do nothing.
3. No two prompts share an id beyond what the ledger and the policy say.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from shadow_reader.events.ids import Ids
from shadow_reader.replay.ledger.freshness import Behind
from shadow_reader.replay.ledger.ledger import Ledger, Session
from shadow_reader.replay.ledger.turn import Turn
from shadow_reader.replay.simulation.cost_engine import CostEngine
from shadow_reader.replay.simulation.policy import Policy
from shadow_reader.shadow.reader import Reader
from shadow_reader.shadow.sessions import Sessions

ROUND_IDS: Final = 3
"""Ids that the big model decodes between two rounds: a token and two drafted ones."""

DECODE_IDS_S: Final = 36.0
"""Ids a second that are assumed where nobody recorded when the first one came."""


def first_s(turn: Turn) -> float:
    """When its first id came; where the record does not say, as long before the end as its output
    takes at ``DECODE_IDS_S``, but not before its start."""
    if turn.first_s is not None:
        return turn.first_s
    return max(turn.start_s, turn.end_s - turn.output_ids / DECODE_IDS_S)


@dataclass(slots=True)
class Driver:
    """Drives all sessions of one ledger.

    Attributes:
        behind: at each turn's start, by session, in the order of its turns.
    """

    ledger: Ledger
    policy: Policy
    sessions: Sessions
    reader: Reader
    engine: CostEngine
    behind: dict[str, list[Behind]] = field(default_factory=dict)
    _epoch_s: float = 0.0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _known: dict[str, int] = field(default_factory=dict)
    _owing: dict[str, None] = field(default_factory=dict)
    _prefill: dict[str, float] = field(default_factory=dict)
    _marks: int = 0

    async def run(self) -> None:
        """Every turn, to the last one's end."""
        self._epoch_s = min(turn.start_s for turn in self.ledger.turns)
        self.behind = {name: [] for name in self.ledger.sessions}
        async with asyncio.TaskGroup() as group:
            for session in self.ledger.sessions.values():
                group.create_task(self._session(session))

    async def _session(self, session: Session) -> None:
        for turn in session.turns:
            await self._until(turn.start_s - self._epoch_s)
            await self._turn(turn, str(turn.turn))

    async def _turn(self, turn: Turn, name: str) -> None:
        session, first = turn.session, first_s(turn) - self._epoch_s
        mark = self._begin(turn)
        self._prefill[session] = first
        new = self._ids(turn, mark)
        await self.sessions.prompt(session, new, turn=name, keep=turn.prefix_ids)
        self._wake(session)
        await self._until(first)
        await self.sessions.first_token(session, name)
        self._wake(session)
        del self._prefill[session]
        said = await self._decode(turn, name, mark, first)
        await self._until(turn.end_s - self._epoch_s)
        if turn.output_ids > said:
            await self._say(turn, name, mark, said, turn.output_ids)
        await self.sessions.end(session, name)
        self._wake(session)

    def _begin(self, turn: Turn) -> int:
        """Look how far behind the reader is; the id that is new with this turn."""
        session = turn.session
        known, read = self._known.get(session, 0), self.engine.position(session)
        shared = min(self.policy.shared_ids, turn.prompt_ids)
        agree = max(turn.prefix_ids, min(shared, known))
        valid = self.engine.stands_after(session, agree, shared)
        self.behind[session].append(
            Behind(a=known - read, b=turn.prompt_ids - valid, c=max(0, agree - valid))
        )
        self._grew(session, turn.prompt_ids)
        self._marks += 1
        return self._marks

    def _ids(self, turn: Turn, mark: int) -> Ids:
        """The prompt's ids beyond what it keeps."""
        new = np.full(turn.prompt_ids - turn.prefix_ids, mark, dtype=np.uint32)
        new[: max(0, self.policy.shared_ids - turn.prefix_ids)] = 0
        return Ids.of(new)

    async def _decode(self, turn: Turn, name: str, mark: int, first: float) -> int:
        """Output in pieces, each just before a round that may read; how many ids came so."""
        end = turn.end_s - self._epoch_s
        if not (self.policy.share and turn.output_ids and end > first):
            return 0
        round_s = (end - first) / turn.output_ids * ROUND_IDS
        rounds = said = 0
        while True:
            at = max(self._worth_s(turn, first, round_s), first + (rounds + 1) * round_s)
            rounds = math.ceil((at - first) / round_s - 1e-9) if at < end else 0
            at = first + rounds * round_s
            if not first < at < end:
                return said
            await self._until(at)
            if self._worth_s(turn, first, round_s) > at + round_s / 2:
                continue
            produced = min(rounds * ROUND_IDS, turn.output_ids)
            if produced > said:
                await self._say(turn, name, mark, said, produced)
                said = produced
            opened = await self.reader.round()
            if not opened.read:  # somebody else's ration, or a session that cannot be read
                rounds += max(0, math.floor(self._earned_s() / round_s))

    def _worth_s(self, turn: Turn, first: float, round_s: float) -> float:
        """When a round can read next, as far as can be told now; infinity: not in this turn."""
        policy, session = self.policy, turn.session
        cost_s = self._cost_s(session)
        if cost_s > policy.slice_s:
            return math.inf
        at = first + cost_s / policy.share
        for account in self.reader.rounds.ration.accounts.values():
            at = max(at, account.since_s + (account.used_s + cost_s) / policy.share)
        if self._prefill:
            at = max(at, *self._prefill.values())
        if not self._any_owes():
            missing = self.engine.position(session) + policy.grid - turn.prompt_ids
            at = max(at, first + missing * round_s / ROUND_IDS)
        return at

    def _cost_s(self, session: str) -> float:
        cost_s = self.reader.cost_s(self.engine.position(session))
        return self.policy.slice_s if cost_s is None else cost_s

    def _earned_s(self) -> float:
        """How long a turn decodes for one chunk."""
        return self.policy.chunk_s / self.policy.share

    async def _say(self, turn: Turn, name: str, mark: int, start: int, stop: int) -> None:
        ids = Ids.of(np.full(stop - start, mark, dtype=np.uint32))
        await self.sessions.output(turn.session, name, offset=start, ids=ids)
        self._grew(turn.session, turn.prompt_ids + stop)

    def _grew(self, session: str, known: int) -> None:
        self._known[session] = known
        self._owing[session] = None

    def _any_owes(self) -> bool:
        """Whether any session has a whole chunk to be read."""
        for session in tuple(self._owing):
            if self._known[session] - self.engine.position(session) >= self.policy.grid:
                return True
            del self._owing[session]
        return False

    def _wake(self, session: str) -> None:
        """Tell the reader once this is committed. What it journals itself need not wake it, and a
        round does so anyway; live it is told of every commit, and finds nothing new."""
        self._loop.call_soon(self.reader.wake, session)

    async def _until(self, at_s: float) -> None:
        left_s = at_s - self._loop.time()
        if left_s > 0:
            await asyncio.sleep(left_s)
