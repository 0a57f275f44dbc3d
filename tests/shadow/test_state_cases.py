"""Faults that people reported of such systems, as inputs; the numbers are those of the list."""

from __future__ import annotations

import asyncio
import threading
from itertools import cycle, islice

import pytest
import torch

from shadow_reader.errors import OutOfRoomError
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.model.facts import least_bytes
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.models import SMALL, Fake, Watched, small_model
from tests.shadow.states import (
    GIB,
    assert_like_fresh,
    joined,
    make_ids,
    read_all,
    really_held,
    same_bits,
    tensors,
)

THINK, END_THINK = 250, 251
LETTERS = (3, 4, 7)


def make_engine(model: Watched, grid: int = 64, cap_bytes: int = GIB) -> TorchEngine:
    return TorchEngine(model, grid=grid, cap_bytes=cap_bytes, poison=True)


def one_pass(model: Watched, known: Ids, question: Ids) -> list[float]:
    """The same question after one forward over everything, no chunks at all."""
    ids = torch.tensor([*known, *question])
    step = model.forward(ids, position=0, past=[], state=model.empty_state())
    logits = model.logits(step.hidden[-1:], torch.tensor(LETTERS))[0]
    return [float(p) for p in logits.double().softmax(0)]


def asked(engine: TorchEngine, known: Ids, question: Ids) -> tuple[float, ...]:
    stats = engine.state_stats("s")
    tail = Ids.of(known.array(stats.committed if stats else 0))
    return engine.ask("s", tail=tail, question=question, letters=LETTERS)


@pytest.mark.parametrize("left_over", [[], [THINK, END_THINK]], ids=["dropped", "empty pair"])
def test_case_1_earlier_reasoning_is_dropped_from_the_next_prompt(left_over: list[int]) -> None:
    model = small_model()
    engine = make_engine(model)
    prompt, thought, said = make_ids(200, 1), make_ids(150, 2), make_ids(60, 3)
    read_all(engine, "s", prompt)
    engine.checkpoint("s")
    with_thought = joined(prompt, [THINK], thought, [END_THINK], said)
    read_all(engine, "s", with_thought)
    second = joined(prompt, left_over, said, make_ids(120, 4))
    aligned = engine.align("s", second)
    assert (aligned.committed, aligned.cut) == (192, 200 + len(left_over[:1]))
    read_all(engine, "s", second)
    assert_like_fresh(engine, "s", second, model)


@pytest.mark.parametrize(
    ("prompt_ends", "back_to"),
    [
        ((8_000, 20_000, 32_300, 60_000, 90_000, 111_000), 32_256),
        ((8_000, 20_000, 40_000, 60_000, 90_000, 111_000), 19_968),
        ((8_000, 20_000, 30_000, 60_000, 70_000, 80_000, 90_000, 111_000), 29_696),
        ((8_000, 40_000, 50_000, 60_000, 70_000, 90_000, 111_000), 0),
    ],
)
def test_case_2_a_111k_session_that_agrees_only_up_to_32379(
    prompt_ends: tuple[int, ...], back_to: int
) -> None:
    model = Fake()
    engine = make_engine(model, grid=512)
    known = make_ids(111_000, 1)
    for end in prompt_ends:
        read_all(engine, "s", known.take(end))
        engine.checkpoint("s")
    stripped = joined(known.take(32_379), make_ids(10_000, 2))
    aligned = engine.align("s", stripped)
    assert (aligned.committed, aligned.cut) == (back_to, 32_379)
    assert read_all(engine, "s", stripped) == (len(stripped) - back_to) // 512
    assert_like_fresh(engine, "s", stripped, model)


@pytest.mark.parametrize(
    ("grid", "output", "committed", "cut"),
    [(512, 0, 0, None), (64, 0, 256, None), (64, 100, 192, 263)],
    ids=["nothing read yet", "cut above committed", "cut below committed"],
)
def test_case_3_a_tool_round_rendered_differently(
    grid: int, output: int, committed: int, cut: int | None
) -> None:
    model = small_model()
    engine = make_engine(model, grid)
    first = make_ids(308 + output, 1)
    read_all(engine, "s", first.take(199))
    engine.checkpoint("s")
    read_all(engine, "s", first)
    second = joined(first.take(263), make_ids(700, 2))
    assert first.common_prefix(second) == 263
    aligned = engine.align("s", second)
    assert (aligned.committed, aligned.cut) == (committed, cut)
    read_all(engine, "s", second)
    assert_like_fresh(engine, "s", second, model)


def test_case_8_the_same_text_in_other_ids_is_a_rewind() -> None:
    model = Fake()
    engine = make_engine(model)
    before, after = make_ids(130, 1, 65_536), make_ids(140, 2, 65_536)
    read_all(engine, "s", before)
    engine.checkpoint("s")
    read_all(engine, "s", joined(before, [53_122, 316], after))
    rendered = joined(before, [393, 30_002], after)
    aligned = engine.align("s", rendered)
    assert (aligned.committed, aligned.cut, aligned.reread) == (128, 130, 2)
    read_all(engine, "s", rendered)
    assert_like_fresh(engine, "s", rendered, model)


@pytest.mark.parametrize("count", [1, 3, 4, 63, 64, 511, 512, 513])
def test_case_18_short_prompts_are_answerable_and_checkpointed(count: int) -> None:
    model = small_model()
    engine = make_engine(model, grid=512)
    known, question = make_ids(count, count), make_ids(20, 2)
    assert read_all(engine, "s", known) == count // 512
    digest = engine.checkpoint("s")
    stats = engine.state_stats("s")
    assert (stats.checkpoints if stats else ()) == ((512,) if count >= 512 else ())
    assert digest == engine.digest("s")
    odds = asked(engine, known, question)
    assert odds == pytest.approx(one_pass(model, known, question), abs=1e-5)
    assert_like_fresh(engine, "s", known, model)


@pytest.mark.parametrize("count", [k * 512 + off for k in (1, 2, 3) for off in (-1, 0, 1)])
def test_case_21_wrong_state_at_a_chunk_multiple(count: int) -> None:
    model = small_model()
    engine, other = make_engine(model, grid=512), make_engine(model, grid=512)
    known, question = make_ids(count, 7), make_ids(33, 8)
    for length in (300, count - 130, count):
        read_all(engine, "s", known.take(length))
    read_all(other, "s", Ids.of(known.array()))
    odds = asked(engine, known, question)
    assert odds == asked(other, known, question)
    assert odds == pytest.approx(one_pass(model, known, question), abs=1e-5)
    assert same_bits(tensors(engine, "s"), tensors(other, "s"))


def test_case_24_a_session_beside_others_is_the_session_alone() -> None:
    model = small_model()
    together, alone = make_engine(model), make_engine(model)
    chunks = {"a": 3, "b": 6, "c": 2, "d": 5}
    known = {name: make_ids(64 * count + 7, count) for name, count in chunks.items()}
    order = islice(cycle("abcdba"), 40)
    for name in order:
        stats = together.state_stats(name)
        if (stats.committed if stats else 0) + 64 <= len(known[name]):
            together.read_chunk(name, known[name])
            together.ask("b", tail=known["c"], question=known["a"].take(9), letters=LETTERS)
    for name, ids in known.items():
        read_all(alone, name, ids)
        expected = tensors(alone, name)
        alone.drop(name)
        assert same_bits(tensors(together, name), expected)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 70, 127, 128, 129, 200])
def test_case_27_padding_updates_nothing(length: int) -> None:
    """Forks of lengths that are no multiple of 64, and the chunk read after them."""
    model = small_model()
    engine = make_engine(model)
    known, question = make_ids(128 + length, 1), make_ids(37, 2)
    read_all(engine, "s", known.take(128))
    odds = asked(engine, known, question)
    assert odds == pytest.approx(one_pass(model, known, question), abs=1e-5)
    longer = joined(known, make_ids(200, 3))
    read_all(engine, "s", longer)
    assert_like_fresh(engine, "s", longer, model)


async def test_case_28_a_fork_answered_then_one_cancelled_half_way() -> None:
    model = small_model()
    engine, device = make_engine(model), JobThread()
    known = make_ids(200, 1)
    read_all(engine, "s", known)
    before = tensors(engine, "s")
    answered = await device.run(asked, engine, known, make_ids(9, 2))
    assert same_bits(before, tensors(engine, "s"))

    half_way, go_on = threading.Event(), threading.Event()

    def trip(stage: str) -> None:
        if stage == "forwarded":
            half_way.set()
            assert go_on.wait(30)

    model.trip = trip
    task = asyncio.create_task(device.run(asked, engine, known, make_ids(9, 2)))
    assert await asyncio.to_thread(half_way.wait, 30)
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    model.trip = lambda _stage: None
    assert same_bits(before, tensors(engine, "s"))
    assert await device.run(asked, engine, known, make_ids(9, 2)) == answered
    await device.close()
    longer = joined(known, make_ids(100, 3))
    read_all(engine, "s", longer)
    assert_like_fresh(engine, "s", longer, model)


@pytest.mark.parametrize("spare_states", [0, 1, 3, 9, 30, 150])
def test_case_29_four_sessions_of_six_checkpoints_under_a_small_cap(spare_states: int) -> None:
    model = small_model()
    state_bytes = SMALL.state_bytes(4)
    cap_bytes = least_bytes(SMALL, torch.float32.itemsize, 64) + spare_states * state_bytes
    engine = make_engine(model, cap_bytes=cap_bytes)
    known = {name: make_ids(7 * 64, seed) for seed, name in enumerate("abcd")}
    refused = 0
    for turn in range(1, 8):
        for name, ids in known.items():
            try:
                read_all(engine, name, ids.take(turn * 64))
                engine.checkpoint(name)
            except OutOfRoomError:
                refused += 1
            stats = engine.stats()
            assert really_held(engine) <= stats.bytes <= stats.peak_bytes <= cap_bytes
    kept = [engine.state_stats(name) for name in known]
    assert all(len(stats.checkpoints) <= 6 for stats in kept if stats)
    assert (refused == 0) == (spare_states == 150)
    for name, ids in known.items():
        assert_like_fresh(engine, name, ids, model)
