"""The engine over its states: what it tells, refuses, exports and lets go of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from safetensors.torch import load

from shadow_reader.errors import ModelError, OutOfRoomError, TooLargeError
from shadow_reader.events.ids import EMPTY, Ids
from shadow_reader.shadow.engine import Aligned, Engine
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.models import SMALL, Fake, Watched, small_model, tripping
from tests.shadow.states import GIB, make_ids, metadata, read_all, same_bits, tensors

GRID = 64


def make_engine(**changes: Any) -> TorchEngine:
    options: dict[str, Any] = {"grid": GRID, "cap_bytes": GIB, "poison": True}
    return TorchEngine(changes.pop("model", None) or small_model(), **options | changes)


def test_it_is_an_engine() -> None:
    engine: Engine = make_engine()
    assert (engine.vocabulary, engine.context_ids) == (SMALL.vocab, SMALL.context)


def test_a_session_it_does_not_know_stands_at_zero_and_stays_unknown() -> None:
    engine = make_engine()
    known = make_ids(GRID - 1, 1)
    assert engine.align("s", known) == Aligned(0)
    assert engine.digest("s") == engine.checkpoint("s") == engine.digest("other")
    assert sum(engine.ask("s", tail=known, question=known, letters=(1, 2))) == pytest.approx(1)
    assert tensors(engine, "s")["rows"].shape == (2, 2, 2, 0, 16)
    assert engine.drop("s") == 0
    assert engine.state_stats("s") is None
    assert (engine.stats().sessions, engine.stats().bytes) == (0, 0)


def test_a_first_chunk_that_fails_leaves_no_session() -> None:
    model = small_model()
    engine = make_engine(model=model)
    with tripping(model, "attention:1", RuntimeError("injected")), pytest.raises(RuntimeError):
        engine.read_chunk("s", make_ids(GRID, 1))
    assert engine.state_stats("s") is None
    assert (engine.stats().sessions, engine.stats().bytes) == (0, 0)


def test_a_session_that_goes_back_to_zero_takes_nothing() -> None:
    engine = make_engine()
    read_all(engine, "s", make_ids(3 * GRID, 1))
    assert engine.align("s", make_ids(3 * GRID, 2)) == Aligned(0, 0)
    assert (engine.stats().sessions, engine.stats().bytes) == (0, 0)


def test_stats_say_what_is_held() -> None:
    engine = make_engine()
    read_all(engine, "a", make_ids(3 * GRID, 1))
    read_all(engine, "b", make_ids(GRID, 2))
    engine.checkpoint("a")
    page, state = GRID * SMALL.row_bytes(4), SMALL.state_bytes(4)
    a, b, total = engine.state_stats("a"), engine.state_stats("b"), engine.stats()
    assert a is not None
    assert b is not None
    assert (a.committed, a.pages, a.bytes, a.checkpoints) == (
        3 * GRID,
        3,
        3 * page + state,
        (3 * GRID,),
    )
    assert (b.committed, b.pages, b.bytes, b.checkpoints) == (GRID, 1, page + state, ())
    assert (total.bytes, total.sessions) == (16 * page + 2 * state, 2)
    assert total.weights_bytes == small_model().weight_bytes
    assert engine.drop("a") == a.bytes
    assert engine.drop("b") == b.bytes
    assert engine.stats().bytes == 0


def test_probabilities_are_the_softmax_over_the_letters_alone() -> None:
    model = small_model()
    engine = make_engine(model=model)
    known, question = make_ids(GRID + 11, 1), make_ids(17, 2)
    read_all(engine, "s", known)
    letters = (7, 3, 250, 0)
    found = engine.ask("s", tail=Ids.of(known.array(GRID)), question=question, letters=letters)
    ids = torch.tensor([*known, *question])
    step = model.forward(ids, position=0, past=[], state=model.empty_state())
    logits = model.logits(step.hidden[-1:])[0].double()[list(letters)]
    expected = (logits.exp() / logits.exp().sum()).tolist()
    assert found == pytest.approx(expected, abs=1e-6)
    assert sum(found) == pytest.approx(1.0, abs=1e-12)


def test_on_a_checkpoint_and_on_nothing_it_is_what_a_fresh_prefill_gives() -> None:
    engine = make_engine()
    known, question, letters = make_ids(4 * GRID, 1), make_ids(17, 2), (7, 3, 250)
    read_all(engine, "s", known.take(2 * GRID))
    engine.checkpoint("s")
    read_all(engine, "s", known)
    before, held = tensors(engine, "s"), engine.stats().bytes
    for line in (0, 2 * GRID, 4 * GRID):
        other = make_engine()
        read_all(other, "s", known.take(line))
        for more in (0, 1, GRID - 1):
            tail = Ids.of(make_ids(line + more, 1).array(line))
            found = engine.ask("s", tail=tail, question=question, letters=letters, line=line)
            assert found == other.ask("s", tail=tail, question=question, letters=letters)
    assert same_bits(tensors(engine, "s"), before)
    assert engine.stats().bytes == held
    alone = make_engine().ask("", tail=EMPTY, question=question, letters=letters)
    assert engine.ask("", tail=EMPTY, question=question, letters=letters, line=0) == alone


def test_a_model_without_finite_logits_is_named() -> None:
    class Broken(Fake):
        def logits(self, hidden: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
            return super().logits(hidden, ids) * float("inf")

    engine = make_engine(model=Broken())
    with pytest.raises(ModelError, match="fake gives no finite logits"):
        engine.ask("s", tail=EMPTY, question=make_ids(3, 1), letters=(1, 2))


def test_a_device_without_memory_is_out_of_room_and_changes_nothing() -> None:
    model = small_model()
    engine = make_engine(model=model)
    read_all(engine, "s", make_ids(GRID, 1))
    before, held = tensors(engine, "s"), engine.stats().bytes
    jobs = (
        lambda: engine.read_chunk("s", make_ids(GRID, 1).extend(make_ids(GRID, 2))),
        lambda: engine.ask("s", tail=EMPTY, question=make_ids(3, 1), letters=(1, 2)),
    )
    for job in jobs:
        out = torch.OutOfMemoryError("CUDA out of memory")
        with tripping(model, "forwarded", out), pytest.raises(OutOfRoomError, match="no memory"):
            job()
        assert same_bits(before, tensors(engine, "s"))
        assert engine.stats().bytes == held


@pytest.mark.parametrize("make_model", [small_model, Fake])
def test_a_state_is_what_the_model_gives_by_hand(make_model: Callable[[], Watched]) -> None:
    """Chunk after chunk, each over the rows before it in order: no pool, no state class."""
    model, known = make_model(), make_ids(5 * GRID, 1)
    engine = make_engine(model=model)
    read_all(engine, "s", known)
    past, state = list[torch.Tensor](), model.empty_state()
    for start in range(0, len(known), GRID):
        ids = torch.tensor(known.array(start, start + GRID).tolist())
        step = model.forward(ids, position=start, past=past, state=state)
        past, state = [*past, step.rows], step.state
    by_hand = {
        "rows": torch.cat(past, dim=3),
        "recurrent": state.recurrent,
        "conv": state.conv,
        "ids": torch.from_numpy(known.array().copy()),
    }
    assert same_bits(tensors(engine, "s"), by_hand)


@pytest.mark.parametrize("chunks", [0, 2])
def test_a_fork_counts_its_rows_and_state_and_may_be_refused(chunks: int) -> None:
    engine = make_engine()
    known, question = make_ids(chunks * GRID + 10, 1), make_ids(40, 2)
    read_all(engine, "s", known)
    tail, account = Ids.of(known.array(chunks * GRID)), engine._account
    zeros = 0 if chunks else SMALL.state_bytes(4)
    scratch = 50 * SMALL.row_bytes(4) + SMALL.state_bytes(4) + zeros
    before = tensors(engine, "s")
    with account.hold(account.left_bytes - scratch, "all but the fork's"):
        engine.ask("s", tail=tail, question=question, letters=(1, 2))
        assert account.peak_bytes == account.cap_bytes
    with account.hold(account.left_bytes - scratch + 1, "one more"):
        with pytest.raises(OutOfRoomError, match="a fork of 50 ids needs") as refused:
            engine.ask("s", tail=tail, question=question, letters=(1, 2))
        assert refused.value.details["asked"] == scratch
        assert refused.value.details["left"] == scratch - 1
    assert same_bits(before, tensors(engine, "s"))


def test_an_export_says_what_decided_its_bits() -> None:
    engine = make_engine()
    known = make_ids(2 * GRID + 5, 1)
    read_all(engine, "s", known)
    file = engine.export("s", limit_bytes=GIB)
    identity = engine.identity
    assert metadata(file) == {
        "model": "small",
        "weights": "small",
        "grid": "64",
        "dtype": "float32",
        "device": identity.device,
        "build": identity.build,
        "layout": str(identity.layout),
        "position": "128",
        "digest": engine.digest("s"),
    }
    found = load(file)
    assert {key: (tuple(t.shape), t.dtype) for key, t in found.items()} == {
        "rows": ((2, 2, 2, 128, 16), torch.float32),
        "recurrent": ((3, 4, 16, 16), torch.float32),
        "conv": ((3, 128, 3), torch.float32),
        "ids": ((128,), torch.uint32),
    }
    assert found["ids"].tolist() == known.array(0, 128).tolist()


def test_an_export_hashes_the_bytes_it_holds() -> None:
    """A page spoilt behind the engine's back must not travel under the remembered digest."""
    engine = make_engine()
    read_all(engine, "s", make_ids(2 * GRID, 1))
    honest = engine.digest("s")
    with torch.inference_mode():
        engine._sessions["s"].pages[0].rows[0, 0, 0, 0, 0] += 1
    assert metadata(engine.export("s", limit_bytes=GIB))["digest"] != honest


@pytest.mark.parametrize("session", ["s", "unknown"])
def test_an_export_over_its_limit_is_refused(session: str) -> None:
    engine = make_engine()
    read_all(engine, "s", make_ids(2 * GRID, 1))
    size = sum(t.nbytes for t in tensors(engine, session).values())
    with pytest.raises(TooLargeError) as refused:
        engine.export(session, limit_bytes=size - 1)
    assert refused.value.details == {"field": "export_bytes", "found": size, "limit": size - 1}
    assert load(engine.export(session, limit_bytes=size))


def test_identity_changes_with_whatever_may_change_a_bit() -> None:
    threads = torch.get_num_threads()
    engines = [
        make_engine(),
        make_engine(grid=128),
        make_engine(model=small_model(dtype=torch.bfloat16)),
        make_engine(model=Fake()),
    ]
    try:
        torch.set_num_threads(threads + 1)
        engines.append(make_engine())
    finally:
        torch.set_num_threads(threads)
    assert len({engine.identity.engine for engine in engines}) == len(engines)
    assert make_engine(cap_bytes=2**24).identity == engines[0].identity
    assert engines[0].identity.device.startswith("cpu ")
    assert torch.__version__ in engines[0].identity.build


def test_the_context_is_the_smaller_of_the_setting_and_the_model() -> None:
    asked_for = (0, 1000, SMALL.context, SMALL.context + 1)
    found = [make_engine(context_ids=ids).context_ids for ids in asked_for]
    assert found == [SMALL.context, 1000, SMALL.context, SMALL.context]


def test_close_lets_go_of_everything_and_may_come_twice() -> None:
    engine = make_engine()
    read_all(engine, "s", make_ids(3 * GRID, 1))
    engine.close()
    stats = engine.stats()
    assert (stats.bytes, stats.sessions, stats.weights_bytes) == (0, 0, 0)
    assert engine._pool.slabs == 0
    engine.close()
    with pytest.raises(AssertionError, match="closed"):
        engine.read_chunk("s", make_ids(GRID, 1))


def test_another_thread_makes_the_same_bits() -> None:
    known = make_ids(5 * GRID, 1)
    here, there = make_engine(), make_engine()
    read_all(here, "s", known)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(read_all, there, "s", known).result()
    assert same_bits(tensors(here, "s"), tensors(there, "s"))


def test_statistics_hold_together_on_any_thread() -> None:
    engine = make_engine(model=Fake())
    known, stop, seen = make_ids(40 * GRID, 1), threading.Event(), set[int]()
    wrong: list[object] = []

    def watch() -> None:
        while not stop.wait(0.0005):
            stats, total = engine.state_stats("s"), engine.stats()
            if stats is not None:
                seen.add(stats.committed)
                if stats.pages * GRID != stats.committed:
                    wrong.append(stats)
            if not 0 <= total.bytes <= total.cap_bytes:
                wrong.append(total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(5):
            read_all(engine, "s", known)
            engine.checkpoint("s")
            engine.align("s", known.take(GRID - 1))
    finally:
        stop.set()
        watcher.join()
    assert not wrong
    assert seen
