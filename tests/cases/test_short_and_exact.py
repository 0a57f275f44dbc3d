"""Short prompts, chunk multiples, forks that end half-way: the state and the answers are exact.

The numbers are those of the list of reported faults. Each goes through a whole service.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from shadow_reader.events import types as t
from tests.cases.service import (
    CHOICES,
    GRID,
    LETTERS,
    PATIENCE_S,
    QUESTION,
    assert_like_fresh,
    events,
    fresh_odds,
    ids,
    served,
    turn,
    twin,
)
from tests.shadow.models import Watched, small_model
from tests.shadow.states import same_bits


def one_pass(known: list[int], model: Watched) -> list[float]:
    """The answer after one forward over everything, no chunks at all."""
    other = twin(model)
    given = torch.tensor([*known, *QUESTION])
    with torch.inference_mode():
        step = other.forward(given, position=0, past=[], state=other.empty_state())
        logits = other.logits(step.hidden[-1:], torch.tensor(LETTERS))[0]
        return [float(p) for p in logits.double().softmax(0)]


@pytest.mark.parametrize("count", [1, 3, 4, 63, 64, 511, 512, 513])
async def test_case_18_short_prompts_are_answerable_and_checkpointed(
    tmp_path: Path, count: int
) -> None:
    model = small_model()
    prompt = ids(count, count, model)
    due = (GRID,) if count >= GRID else ()
    for start in ("new", "again"):
        async with served(tmp_path, model) as shadow:
            if start == "new":
                await turn(shadow, "s", "t1", prompt)
            reply = await shadow.ask("s", QUESTION, CHOICES)
            assert (reply.position, reply.behind) == (count, 0)
            odds = tuple(reply.probabilities.values())
            assert odds == fresh_odds(prompt, model)
            assert odds == pytest.approx(one_pass(prompt, model), abs=1e-5)
            assert (await shadow.session_status("s")).checkpoints == due
            await assert_like_fresh(shadow, "s", prompt, model)
            assert len(await events(shadow, "s", "checkpoint")) == len(due)
            assert len(await events(shadow, "s", "restore")) == (len(due) if start != "new" else 0)


@pytest.mark.parametrize("count", [k * GRID + off for k in (1, 2, 3) for off in (-1, 0, 1)])
async def test_case_21_asked_at_once_at_a_chunk_multiple(tmp_path: Path, count: int) -> None:
    """At twice the chunk the last ids are output, and the line is crossed by a delta."""
    model = small_model()
    known = ids(count, 7, model)
    end = count - 130 if abs(count - 2 * GRID) <= 1 else count
    async with served(tmp_path, model) as shadow:
        await turn(shadow, "s", "t1", known[:end], known[end:])
        reply = await shadow.ask("s", QUESTION, CHOICES)
        assert (reply.position, reply.behind) == (count, 0)
        assert tuple(reply.probabilities.values()) == fresh_odds(known, model)
        await assert_like_fresh(shadow, "s", known, model)
        now = await shadow.ask("s", QUESTION, CHOICES, wait="now")
        assert now.probabilities == reply.probabilities


async def test_case_28_a_fork_answered_then_one_cancelled_half_way(tmp_path: Path) -> None:
    """The base keeps every bit, in memory and in the snapshot, and is read on from."""
    model = small_model()
    known = ids(1_300, 1, model)
    half_way, go_on = threading.Event(), threading.Event()

    def trip(stage: str) -> None:
        if stage == "forwarded":
            half_way.set()
            assert go_on.wait(PATIENCE_S)

    async with served(tmp_path, model) as shadow:
        await turn(shadow, "s", "t1", known)
        await assert_like_fresh(shadow, "s", known, model)
        before = load(await shadow.export("s"))
        answered = await shadow.ask("s", QUESTION, CHOICES)
        assert same_bits(before, load(await shadow.export("s")))

        model.trip = trip
        asking = asyncio.create_task(shadow.ask("s", QUESTION, CHOICES))
        assert await asyncio.to_thread(half_way.wait, PATIENCE_S)
        asking.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asking
        model.trip = lambda _stage: None

        assert same_bits(before, load(await shadow.export("s")))
        again = await shadow.ask("s", QUESTION, CHOICES)
        assert again.probabilities == answered.probabilities
        ended = await events(shadow, "s", "question.ended")
        assert [type(event) for event in ended] == [t.QuestionEnded]
    async with served(tmp_path, model) as shadow:
        await assert_like_fresh(shadow, "s", known, model)
        assert same_bits(before, load(await shadow.export("s"))), "restored"
        longer = [*known, *ids(600, 3, model)]
        await turn(shadow, "s", "t2", longer)
        await assert_like_fresh(shadow, "s", longer, model)
