"""The same laws on a GPU; skipped where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from shadow_reader.shadow.model.layers import rms_norm
from shadow_reader.shadow.model.load import load_model
from shadow_reader.shadow.model.qwen35 import Qwen35, RecurrentState, Step
from tests.shadow.model.oracle import distance
from tests.shadow.model.small import step_bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

IDS = torch.randint(0, 248_077, (1100,), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> Qwen35:
    return load_model("random:tiny", device="cuda")


def read(model: Qwen35, cuts: list[int]) -> tuple[list[torch.Tensor], RecurrentState, list[Step]]:
    pages: list[torch.Tensor] = []
    state, steps, position = model.empty_state(), [], 0
    for part in torch.split(IDS.to(model.device), cuts):
        step = model.forward(part, position=position, past=pages, state=state)
        pages, state, position = [*pages, step.rows], step.state, position + len(part)
        steps.append(step)
    return pages, state, steps


def cpu_bits(step: Step) -> list[bytes]:
    state = RecurrentState(step.state.recurrent.cpu(), step.state.conv.cpu())
    return step_bits(Step(step.hidden.cpu(), step.rows.cpu(), state))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_reading_as_on_the_cpu(dtype: torch.dtype) -> None:
    on_gpu = load_model("random:tiny", device="cuda", dtype=dtype)
    on_cpu = load_model("random:tiny", device="cpu", dtype=torch.float32)
    assert on_gpu.weights_hash == on_cpu.weights_hash
    within = 2e-5 if dtype == torch.float32 else 5e-2
    cuts = [512, 512, 1, 75]
    _, gpu_state, gpu_steps = read(on_gpu, cuts)
    _, cpu_state, cpu_steps = read(on_cpu, cuts)
    for mine, wanted in zip(gpu_steps, cpu_steps, strict=True):
        assert distance(mine.hidden.cpu(), wanted.hidden) < within
        assert distance(mine.rows.cpu(), wanted.rows) < within
    assert distance(gpu_state.recurrent.cpu(), cpu_state.recurrent) < within


def test_bits_depend_on_the_arguments_alone(model: Qwen35) -> None:
    pages, state, steps = read(model, [512, 512, 76])
    again = read(model, [512, 512, 76])[2]
    assert [cpu_bits(step) for step in steps] == [cpu_bits(step) for step in again]
    ids = IDS[:300].to(model.device)
    plain = cpu_bits(model.forward(ids, position=1100, past=pages, state=state))
    slab = torch.full((5, *pages[0].shape), float("nan"), device="cuda", dtype=model.dtype)
    slab[3], slab[0] = pages[0], pages[1]
    scattered = [slab[3], slab[0], pages[2].clone()]
    assert cpu_bits(model.forward(ids, position=1100, past=scattered, state=state)) == plain


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_forward_never_waits_for_the_device(model: Qwen35) -> None:
    pages, state, _ = read(model, [512, 512, 76])
    ids = IDS[:300].to(model.device)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step = model.forward(ids, position=1100, past=pages, state=state)
        model.logits(step.hidden[-1:], ids[:3])
    finally:
        torch.cuda.set_sync_debug_mode("default")


needs_kernels = pytest.mark.skipif(
    not torch.cuda.is_available() or load_model("random:tiny", device="cuda").arithmetic == "plain",
    reason="needs triton",
)
CUTS = [512, 512, 3, 73]


@needs_kernels
def test_a_graph_gives_the_bits_of_its_kernels(model: Qwen35) -> None:
    alone = load_model("random:tiny", device="cuda")
    assert alone._graphs is not None
    alone._graphs._use_graphs = False
    one_by_one, in_graphs = read(alone, CUTS)[2], read(model, CUTS)[2]
    assert [cpu_bits(step) for step in in_graphs] == [cpu_bits(step) for step in one_by_one]


@pytest.mark.parametrize("n", [2, 300, 1030])
def test_watching_changes_no_bit(model: Qwen35, n: int) -> None:
    pages, state, _ = read(model, [512, 512, 76])
    ids = torch.cat([IDS, IDS])[:n].to(model.device)
    seen: list[tuple[int, torch.Tensor]] = []
    plain = model.forward(ids, position=1100, past=pages, state=state)
    watched = model.forward(
        ids, position=1100, past=pages, state=state, watch=lambda i, x: seen.append((i, x.clone()))
    )
    assert cpu_bits(watched) == cpu_bits(plain)
    last = torch.cat([x for i, x in seen if i == model.config.layers - 1])
    assert last.shape == plain.hidden.shape
    normed = rms_norm(last, model._parameters.norm, model.config.norm_eps)
    assert distance(normed, plain.hidden) < 1e-2
    assert len(seen) == model.config.layers * (1 if n <= 1024 else 3)


@needs_kernels
@pytest.mark.parametrize("n", [1, 2, 70, 128, 620, 1024, 1030])
def test_padding_and_what_it_holds_touch_nothing(model: Qwen35, n: int) -> None:
    """What an earlier, longer call left in the buffers changes no bit; the plain way agrees."""
    plain = load_model("random:tiny", device="cuda")
    plain._graphs = None
    before = read(model, [512, 588])[2][0]
    pages, state = [before.rows], before.state
    ids = torch.cat([IDS, IDS])[512 : 512 + n].to(model.device)
    first = model.forward(ids, position=512, past=pages, state=state)
    assert first.hidden.shape[0] == first.rows.shape[3] == n
    read(model, [1024, 76])
    again = model.forward(ids, position=512, past=pages, state=state)
    assert cpu_bits(first) == cpu_bits(again)
    twin = plain.forward(ids, position=512, past=pages, state=state)
    assert distance(first.hidden, twin.hidden) < 5e-2
    assert distance(first.rows, twin.rows) < 5e-2
    assert distance(first.state.recurrent, twin.state.recurrent) < 5e-2
    assert distance(first.state.conv, twin.state.conv) < 5e-2


DIGEST = """
from hashlib import sha256
from shadow_reader.shadow.model.load import load_model
from tests.shadow.model.test_cuda import CUTS, cpu_bits, read
steps = read(load_model("random:tiny", device="cuda"), CUTS)[2]
print(sha256(b"".join(part for step in steps for part in cpu_bits(step))).hexdigest())
"""


@needs_kernels
def test_a_cold_kernel_cache_and_another_process_give_the_same_bits(
    model: Qwen35, tmp_path: Path
) -> None:
    steps = read(model, CUTS)[2]
    here = sha256(b"".join(part for step in steps for part in cpu_bits(step))).hexdigest()
    there = subprocess.run(
        [sys.executable, "-c", DIGEST],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
    )
    assert there.stdout.split()[-1] == here
    assert any(tmp_path.iterdir())
