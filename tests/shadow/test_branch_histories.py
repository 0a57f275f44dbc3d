"""Any conversations under one key: their lines are never mixed, and their states are exact."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import ShadowError
from shadow_reader.shadow.sessions import Sessions
from tests.fakes import GRID, FakeEngine, run_virtual
from tests.shadow.branching import a_rig, known
from tests.shadow.rig import quiet

STARTS = [[line, *range(10 * line, 10 * line + 3 * GRID)] for line in range(1, 5)]


class Client:
    """Several conversations under one key, and what each was acknowledged."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.talks: dict[int, list[int]] = {}
        self.running: dict[int, tuple[str, int]] = {}
        self.count = 0

    async def begin(self, talk: int) -> None:
        ids = self.talks.get(talk, STARTS[talk])
        self.count += 1
        turn = f"t{self.count}"
        accepted = await (await self.sessions.prompt("s", ids, turn=turn))
        assert accepted.known == len(ids)
        self.talks[talk] = list(ids)
        self.running[talk] = (turn, 0)

    async def output(self, talk: int, ids: Sequence[int]) -> None:
        turn, offset = self.running[talk]
        accepted = await (await self.sessions.output("s", turn, offset=offset, ids=list(ids)))
        self.talks[talk] += ids
        assert (accepted.known, accepted.output) == (len(self.talks[talk]), offset + len(ids))
        self.running[talk] = (turn, offset + len(ids))

    async def end(self, talk: int) -> None:
        turn, _ = self.running.pop(talk)
        await (await self.sessions.end("s", turn))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["begin", "output", "end", "restart"])),
        max_size=40,
    )
)
def test_conversations_under_one_key_are_never_mixed(steps: list[tuple[int, str]]) -> None:
    """Four at once, with room for four lines: each line is one conversation, whole."""

    async def main() -> None:
        rig = a_rig(branches=3)
        client = Client(rig.sessions)
        for number, (talk, what) in enumerate(steps):
            await asyncio.sleep(0.5)
            if what == "restart":
                fresh = a_rig(rig.journal, branches=3)
                rig, client.sessions = fresh, fresh.sessions
            elif what == "begin" and talk not in client.running:
                await client.begin(talk)
            elif what != "begin" and talk in client.running:
                if what == "end":
                    await client.end(talk)
                else:
                    await client.output(talk, [800 + number, 850 + number])
        lines = [await known(rig, row.session) for row in await rig.journal.sessions()]
        assert sorted(lines) == sorted(client.talks.values())

    run_virtual(main())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=4 * GRID),
            st.booleans(),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_any_prompts_leave_states_that_are_exact(
    turns: list[tuple[list[int], bool, bool]],
) -> None:
    """Two ids only, so that prompts share beginnings of every length."""

    async def main() -> None:
        rig = a_rig(engine=FakeEngine(cap=24, shares=True), turns_block=False).start()
        for number, (ids, goes_on, ends) in enumerate(turns):
            live = await rig.sessions.load("s")
            before = list(live.tentative.known) if goes_on and live.tentative else []
            try:
                accepted = await rig.prompt("s", [*before, *ids], f"t{number}")
            except ShadowError as error:
                raise AssertionError(error) from error
            assert accepted.known == len(before) + len(ids)
            if ends:
                await rig.end("s", f"t{number}")
            await asyncio.sleep(0.35)
        await quiet(60)
        for row in await rig.journal.sessions():
            rig.assert_exact(row.session, fresh=False)
            await rig.check_laws(row.session)
        await rig.stop()

    run_virtual(main())
