"""Hidden vectors: of which rows and layers, the same whatever the history, and nothing is left."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shadow_reader.errors import ModelError, OutOfRoomError
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.hidden import LastRows
from shadow_reader.shadow.model.facts import least_bytes
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.models import SMALL, Fake, Watched, small_model, tripping
from tests.shadow.states import GIB, joined, make_ids, read_all, same_bits, tensors

GRID = 64
EVERY = tuple(range(SMALL.layers + 1))


def engine_of(model: Watched | None = None, cap: int = GIB) -> TorchEngine:
    return TorchEngine(model or small_model(), grid=GRID, cap_bytes=cap, poison=True)


def watched_rows(model: Watched, ids: Ids) -> list[torch.Tensor]:
    """What every layer leaves of a read from zero, and then the final norm: [n, hidden] each."""
    rows: list[torch.Tensor] = []
    step = model.forward(
        torch.tensor(list(ids)),
        position=0,
        past=[],
        state=model.empty_state(),
        watch=lambda _layer, x: rows.append(x.clone()),
    )
    return [*rows, step.hidden]


@pytest.mark.parametrize("last", [1, 2, 7, 40, 41, 1000])
def test_it_is_the_mean_of_the_last_rows_of_each_layer_in_the_order_asked(last: int) -> None:
    engine, ids = engine_of(), make_ids(40, 1)
    rows = watched_rows(small_model(), ids)
    layers = (5, 0, 3, 3, 1)
    found = engine.vectors("s", tail=ids, layers=layers, last=last)
    assert found.dtype == np.float32
    assert found.shape == (len(layers), engine.hidden) == (5, SMALL.hidden)
    assert engine.layers == SMALL.layers
    for vector, layer in zip(found, layers, strict=True):
        expected = rows[layer][-last:].double().mean(dim=0)
        torch.testing.assert_close(
            torch.from_numpy(vector).double(), expected, rtol=1e-5, atol=1e-6
        )
    if last == 1:
        assert np.array_equal(found[0], rows[5][-1].numpy())


def test_one_layer_alone_gives_the_bits_that_it_gives_among_all() -> None:
    engine, known, tail = engine_of(), make_ids(3 * GRID, 1), make_ids(30, 2)
    read_all(engine, "s", known)
    every = engine.vectors("s", tail=tail, layers=EVERY, last=5)
    for layer in EVERY:
        alone = engine.vectors("s", tail=tail, layers=[layer], last=5)
        assert alone[0].tobytes() == every[layer].tobytes()


def test_law_2_the_same_ids_give_the_same_vector_whatever_the_history() -> None:
    known, suffix = make_ids(2 * GRID + 20, 1), make_ids(2, 9)
    tail = Ids.of([*known.array(2 * GRID), *suffix])
    straight = engine_of()
    read_all(straight, "s", known)
    expected = straight.vectors("s", tail=tail, layers=EVERY, last=8)

    further = engine_of()  # it has read on, and the line is a checkpoint's by now
    read_all(further, "s", known.take(2 * GRID))
    further.checkpoint("s")
    read_all(further, "s", joined(known, make_ids(3 * GRID, 3)))
    found = further.vectors("s", tail=tail, layers=EVERY, last=8, line=2 * GRID)
    assert found.tobytes() == expected.tobytes()

    rewound = engine_of()  # it went another way, and back
    read_all(rewound, "s", known.take(GRID))
    rewound.checkpoint("s")
    read_all(rewound, "s", Ids.of([*known.array(0, GRID + 7), *make_ids(200, 4)]))
    read_all(rewound, "s", known)
    assert rewound.vectors("s", tail=tail, layers=EVERY, last=8).tobytes() == expected.tobytes()

    shared = engine_of()  # it stands on what another session has read
    read_all(shared, "other", known)
    read_all(shared, "s", known)
    assert shared.vectors("s", tail=tail, layers=EVERY, last=8).tobytes() == expected.tobytes()


def test_on_nothing_at_all_there_is_only_the_tail() -> None:
    engine, suffix = engine_of(), make_ids(1, 9)
    found = engine.vectors("nobody", tail=suffix, layers=EVERY, last=3)
    rows = watched_rows(small_model(), suffix)
    assert [vector.tobytes() for vector in found] == [r[0].numpy().tobytes() for r in rows]
    assert engine.state_stats("nobody") is None


@pytest.mark.parametrize("stage", ["forward", "delta:1", "attention:1", "forwarded"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_law_3_vectors_leave_nothing_wherever_they_fail(
    stage: str, error: type[BaseException]
) -> None:
    model = small_model()
    engine = engine_of(model)
    read_all(engine, "s", make_ids(150, 1))
    engine.checkpoint("s")
    before, stats = tensors(engine, "s"), (engine.state_stats("s"), engine.stats().bytes)
    with tripping(model, stage, error("injected")), pytest.raises(error, match="injected"):
        engine.vectors("s", tail=make_ids(22, 2), layers=EVERY, last=4)
    assert same_bits(before, tensors(engine, "s"))
    assert (engine.state_stats("s"), engine.stats().bytes) == stats
    engine.vectors("s", tail=make_ids(22, 2), layers=EVERY, last=4)
    assert same_bits(before, tensors(engine, "s"))
    assert (engine.state_stats("s"), engine.stats().bytes) == stats


def test_a_fork_that_passes_the_cap_is_refused() -> None:
    engine = engine_of(cap=least_bytes(SMALL, 4, GRID))
    with pytest.raises(OutOfRoomError):
        engine.vectors("s", tail=make_ids(40_000, 1), layers=[0], last=1)
    assert engine.stats().bytes == 0


class Broken(Fake):
    def forward(self, *args: torch.Tensor, **more: object) -> object:  # type: ignore[override]
        step = super().forward(*args, **more)  # type: ignore[arg-type]
        step.hidden[-1, 0] = float("nan")
        return step


def test_numbers_that_are_none_are_an_error() -> None:
    with pytest.raises(ModelError, match="no finite vectors"):
        engine_of(Broken()).vectors("s", tail=make_ids(4, 1), layers=[2], last=1)


@pytest.mark.parametrize("parts", [(10,), (1, 9), (4, 4, 2), (1,) * 10])
@pytest.mark.parametrize("last", [1, 3, 10, 20])
def test_rows_that_come_in_parts_are_kept_as_if_they_came_at_once(
    parts: tuple[int, ...], last: int
) -> None:
    rows, final = torch.randn(10, 3), torch.randn(10, 3)
    kept = LastRows([1, 2], final=2, last=last)
    for part in torch.split(rows, list(parts)):
        for layer in (0, 1):
            kept.watch(layer, part * (layer + 1))
    whole = LastRows([1, 2], final=2, last=last)
    whole.watch(1, rows * 2)
    assert kept.mean(final).tobytes() == whole.mean(final).tobytes()


def test_what_a_layer_leaves_is_copied() -> None:
    rows = LastRows([0], final=1, last=2)
    scratch = torch.ones(2, 3)
    rows.watch(0, scratch)
    scratch.zero_()
    assert rows.mean(scratch).tolist() == [[1.0, 1.0, 1.0]]
