"""The laws of the state, each over random histories (``histories.py``) and where it bites."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from safetensors.torch import load

from shadow_reader.events.ids import Ids
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.histories import Histories
from tests.shadow.models import Fake, Watched, small_model, tripping
from tests.shadow.states import GIB, joined, make_ids, metadata, read_all, same_bits, tensors

REAL_STAGES = (
    *("forward", "delta:0", "attention:0", "delta:1", "delta:2", "attention:1"),
    *("forwarded", "logits"),
)


class RealHistories(Histories):
    stages = REAL_STAGES

    def make_model(self) -> Watched:
        return small_model()


class FakeHistories(Histories):
    def make_model(self) -> Watched:
        return Fake()


class TightFakeHistories(FakeHistories):
    tight = True


class TightRealHistories(RealHistories):
    tight = True


def run_as(machine: type[Histories], examples: int, steps: int, *, same: bool = True) -> type:
    """A machine as a test class; ``same`` histories every time, or new ones."""
    case: type = type(machine.__name__, (machine.TestCase,), {})
    case.settings = settings(  # type: ignore[attr-defined]  # made by hypothesis
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=same,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    return case


TestLaws234RealModel = run_as(RealHistories, 12, 25)
TestLaws234FakeModel = run_as(FakeHistories, 100, 30)
TestLaw2UnderTightCapsFakeModel = run_as(TightFakeHistories, 60, 30)
TestLaw2UnderTightCapsRealModel = run_as(TightRealHistories, 8, 25)


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestManyHistories:
    """New ones at every run; a failure prints how to have it again."""

    RealModel = run_as(RealHistories, 60, 50, same=False)
    FakeModel = run_as(FakeHistories, 200, 60, same=False)
    TightFakeModel = run_as(TightFakeHistories, 200, 60, same=False)
    TightRealModel = run_as(TightRealHistories, 60, 50, same=False)


def read_with_history(engine: TorchEngine, session: str) -> Ids:
    """A history with every kind of turn; what is known at its end."""
    grid = engine.identity.grid
    first = make_ids(4 * grid + 9, 1)
    read_all(engine, session, first)
    engine.checkpoint(session)
    with_output = joined(first, make_ids(2 * grid, 2))
    read_all(engine, session, with_output)
    engine.ask(session, tail=make_ids(5, 3), question=make_ids(7, 4), letters=(1, 2))
    off_the_line = joined(with_output.take(4 * grid + 1), make_ids(grid, 5))
    read_all(engine, session, off_the_line)
    on_the_line = joined(off_the_line.take(4 * grid), make_ids(2 * grid + 1, 6))
    read_all(engine, session, on_the_line)
    return on_the_line


PREFILL = """
import sys
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.models import small_model
from tests.shadow.states import GIB, read_all
engine = TorchEngine(small_model(), grid=int(sys.argv[1]), cap_bytes=GIB)
read_all(engine, "s", Ids.from_bytes(sys.stdin.buffer.read()))
sys.stdout.buffer.write(engine.export("s", limit_bytes=GIB))
"""


@pytest.mark.parametrize("grid", [64, 512])
def test_law_2_another_process_reads_the_same_bits(grid: int) -> None:
    engine = TorchEngine(small_model(), grid=grid, cap_bytes=GIB, poison=True)
    known = read_with_history(engine, "s")
    root = Path(__file__).parents[2]
    other = subprocess.run(
        [sys.executable, "-c", PREFILL, str(grid)],
        input=known.to_bytes(),
        stdout=subprocess.PIPE,
        cwd=root,
        check=True,
        timeout=100,
    )
    assert same_bits(load(other.stdout), tensors(engine, "s"))
    assert metadata(other.stdout) == metadata(engine.export("s", limit_bytes=GIB))


def test_law_2_the_bits_depend_on_the_grid_alone_not_on_the_pool() -> None:
    known, exports = make_ids(7 * 64, 3), list[dict[str, torch.Tensor]]()
    for cap_bytes in (2**20, 2**21, GIB):
        engine = TorchEngine(small_model(), grid=64, cap_bytes=cap_bytes, poison=True)
        read_all(engine, "other", make_ids(64, 4))
        read_all(engine, "s", known)
        exports.append(tensors(engine, "s"))
    assert same_bits(exports[0], exports[1])
    assert same_bits(exports[0], exports[2])


@pytest.mark.parametrize("stage", REAL_STAGES)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_law_3_a_fork_that_fails_anywhere_leaves_nothing(
    stage: str, error: type[BaseException]
) -> None:
    model = small_model()
    engine = TorchEngine(model, grid=64, cap_bytes=GIB, poison=True)
    read_all(engine, "s", make_ids(150, 1))
    engine.checkpoint("s")
    before, stats = tensors(engine, "s"), (engine.stats(), engine.state_stats("s"))
    tail, question = make_ids(22, 2), make_ids(30, 3)
    with tripping(model, stage, error("injected")), pytest.raises(error, match="injected"):
        engine.ask("s", tail=tail, question=question, letters=(1, 2, 3))
    assert same_bits(before, tensors(engine, "s"))
    assert engine.state_stats("s") == stats[1]
    assert engine.stats().bytes == stats[0].bytes
    answer = engine.ask("s", tail=tail, question=question, letters=(1, 2, 3))
    assert same_bits(before, tensors(engine, "s"))
    fresh = TorchEngine(model, grid=64, cap_bytes=GIB)
    read_all(fresh, "s", make_ids(150, 1))
    assert answer == fresh.ask("s", tail=tail, question=question, letters=(1, 2, 3))


@pytest.mark.parametrize(
    ("cut", "reads", "committed"),
    [
        (10 * 64, 0, 640),  # at committed
        (10 * 64 + 30, 0, 640),  # above committed
        (10 * 64 - 1, 2, 512),  # one below: back to the checkpoint at 512
        (8 * 64 + 1, 2, 512),
        (8 * 64, 2, 512),  # at the checkpoint's own line
        (8 * 64 - 1, 7, 192),  # one off: back to the one at 192
        (3 * 64, 7, 192),
        (3 * 64 - 1, 10, 0),  # below every checkpoint
        (0, 10, 0),
    ],
)
def test_law_4_a_rewind_reads_no_more_than_it_must(cut: int, reads: int, committed: int) -> None:
    model = small_model()
    engine = TorchEngine(model, grid=64, cap_bytes=GIB, poison=True)
    known = make_ids(10 * 64 + 40, 1)
    for line in (3 * 64, 8 * 64, 10 * 64):
        read_all(engine, "s", Ids.of(known.array(0, line)))
        if line < 10 * 64:
            engine.checkpoint("s")
    changed = known.array().copy()
    changed[cut:] = (changed[cut:] + 1) % 256
    aligned = engine.align("s", Ids.of(changed))
    assert aligned.committed == committed
    assert aligned.cut == (cut if cut < 640 else None)
    assert aligned.reread == (cut - committed if cut < 640 else 0)
    model.calls.clear()
    assert read_all(engine, "s", Ids.of(changed)) == reads
    assert model.calls == [(committed + 64 * i, 64) for i in range(reads)]


def test_law_4_a_prompt_that_only_gets_shorter_goes_back_to_a_checkpoint() -> None:
    engine = TorchEngine(small_model(), grid=64, cap_bytes=GIB)
    known = make_ids(6 * 64, 1)
    read_all(engine, "s", Ids.of(known.array(0, 2 * 64)))
    engine.checkpoint("s")
    read_all(engine, "s", known)
    aligned = engine.align("s", known.take(4 * 64 + 3))
    assert (aligned.committed, aligned.cut, aligned.reread) == (128, 4 * 64 + 3, 2 * 64 + 3)
