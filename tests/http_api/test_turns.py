"""Turns: one in each round of the loop, first come first served, none lost."""

from __future__ import annotations

import asyncio

from shadow_reader.http.turns import Turns


async def test_one_turn_in_each_round_in_order() -> None:
    turns = Turns()
    taken: list[tuple[int, int]] = []
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0)
            rounds += 1

    async def take(who: int) -> None:
        for _ in range(3):
            await turns.next()
            taken.append((rounds, who))

    counting = asyncio.create_task(count())
    await asyncio.gather(*(take(who) for who in range(4)))
    counting.cancel()
    assert [who for _, who in taken] == [0, 1, 2, 3] * 3
    at = [moment for moment, _ in taken]
    assert len(set(at)) == len(at), "two turns in one round"
    assert at[-1] - at[0] <= 2 * len(taken), "a round without a turn, again and again"


async def test_who_went_away_takes_no_turn() -> None:
    turns = Turns()
    waiting = [asyncio.create_task(turns.next()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    async with asyncio.timeout(5):
        await waiting[2]
        await turns.next()
