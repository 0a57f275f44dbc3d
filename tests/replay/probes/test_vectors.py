"""Vectors read of a journal: the bits that the live engine gave, each id read once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from shadow_reader.errors import InvalidInputError, VocabularyError
from shadow_reader.events.ids import Ids
from shadow_reader.replay.probes.labels import Labelled
from shadow_reader.replay.probes.vectors import (
    TOO_LONG,
    Reading,
    Vectors,
    check_reading,
    default_layers,
)
from tests.replay.probes.told import EVERY, KIND, READING, ROUTER, Talk, reading, talk, vectors_of
from tests.replay.router.journals import GRID, IM_END, engine, some_ids


def by_entry(read: Vectors) -> list[tuple[Labelled, NDArray[np.float32]]]:
    """Each label with its vectors [layers, hidden], in the journal's order."""
    rows = np.stack(list(read.layers.values()), axis=1)
    return sorted(zip(read.labels, rows, strict=True), key=lambda pair: pair[0].seq)


@pytest.mark.parametrize("seed", range(6))
async def test_law_2_the_vectors_are_bit_for_bit_the_live_ones(tmp_path: Path, seed: int) -> None:
    """After any history: rewinds, branches, labels of ids that are gone since."""
    told = await talk(tmp_path, seed)
    read, held = await vectors_of(tmp_path, ROUTER)
    assert len(read.labels) == len(told.routed) > 0
    for (_, found), live in zip(by_entry(read), told.routed, strict=True):
        assert found.tobytes() == live.tobytes()
    again, with_snapshots = await vectors_of(tmp_path, ROUTER, snapshots=True)
    assert again.labels == read.labels
    assert all(again.layers[layer].tobytes() == read.layers[layer].tobytes() for layer in EVERY)
    assert with_snapshots.read <= held.read
    assert held.restored == 0


@pytest.mark.parametrize("seed", range(6))
async def test_law_2_also_of_labels_that_somebody_said(tmp_path: Path, seed: int) -> None:
    told = await talk(tmp_path, seed)
    read, _ = await vectors_of(tmp_path, KIND)
    assert 0 < len(read.labels) <= len(told.seen)
    live = {vectors.tobytes() for vectors in told.seen}
    assert {found.tobytes() for _, found in by_entry(read)} <= live


async def test_each_id_is_read_once_in_whatever_order_labels_came(tmp_path: Path) -> None:
    chance = random.Random(1)
    own = engine()
    async with reading(tmp_path, own) as shadow:
        told = Talk(shadow, own, chance)
        first = some_ids(chance, 3 * GRID)
        await told.turn("s", first)
        await told.turn("s", [*told.known["s"], *some_ids(chance, 3 * GRID)])
        longest = len(told.known["s"])
        places = await told.positions("s")
        for position in chance.sample(places, 20):
            await told.label("s", position, "x")
    read, held = await vectors_of(tmp_path, KIND)
    assert len(read.labels) == 20
    assert held.read <= longest // GRID * GRID
    positions = [one.position for one in read.labels]
    assert positions == sorted(positions)


async def test_what_does_not_fit_the_context_is_counted(tmp_path: Path) -> None:
    chance = random.Random(2)
    own = engine()
    async with reading(tmp_path, own) as shadow:
        told = Talk(shadow, own, chance)
        await told.turn("long", some_ids(chance, 5 * GRID), router="chat")
        await told.turn("short", some_ids(chance, GRID), router="debug")
        await told.turn("exact", some_ids(chance, 2 * GRID - 1), router="debug")
    skipped = Counter[str]()
    read, _ = await vectors_of(tmp_path, ROUTER, skipped=skipped, own=engine(context=2 * GRID))
    assert [one.line for one in read.labels] == ["short", "exact"]
    assert skipped == {TOO_LONG: 1}
    with pytest.raises(VocabularyError, match=f"id {IM_END}"):
        await vectors_of(tmp_path, ROUTER, own=engine(vocab=IM_END))


def test_a_reading_that_is_none() -> None:
    check_reading(Reading(Ids.of([1]), (0, 6), last=4096), 6)
    for one, said in (
        (Reading(READING.suffix, (7,)), "layer must be from 0 to 6"),
        (Reading(READING.suffix, (-1,)), "layer must be from 0 to 6"),
        (Reading(READING.suffix, (2, 2)), "named once each: 2, 2"),
        (Reading(READING.suffix, ()), "none"),
        (Reading(READING.suffix, (2,), last=0), "last must be from 1 to 4096, not 0"),
        (Reading(Ids.of([]), (2,)), "suffix must be from 1 to 4096, not 0"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            check_reading(one, 6)


def test_layers_by_default() -> None:
    assert default_layers(24) == (12, 18, 24)
    assert default_layers(1) == (0, 1)
