"""The laws on CUDA, in bfloat16; skipped where there is none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from shadow_reader.config import Settings
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.digest import CHAIN_START, chain, state_digest, tensor_hash
from shadow_reader.shadow.model.load import load_model
from shadow_reader.shadow.torch_engine import TorchEngine, build_engine
from tests.shadow.histories import Histories
from tests.shadow.models import SMALL, Watched, small_model
from tests.shadow.states import GIB, joined, make_ids, metadata, read_all, same_bits, tensors
from tests.shadow.test_laws import run_as

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")

VOCABULARY = 248_320
WIDER = replace(SMALL, head_dim=32, linear_key_dim=32, linear_value_dim=32)
"""Heads that the fused kernels take."""


class CudaHistories(Histories):
    """A graph runs whole or not at all: there is nothing to fail in its middle."""

    stages = ("forward", "forwarded", "logits")

    def make_model(self) -> Watched:
        return small_model(device="cuda", dtype=torch.bfloat16, config=WIDER)


class TightCudaHistories(CudaHistories):
    tight = True


TestLaws234Cuda = run_as(CudaHistories, 40, 20)
TestLaw2UnderTightCapsCuda = run_as(TightCudaHistories, 10, 20)

PREFILL = """
import sys
from pathlib import Path
from shadow_reader.config import Settings
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.torch_engine import build_engine
from tests.shadow.states import GIB, read_all
engine = build_engine(Settings(model="random:0.8B", device="cuda", dir=Path(sys.argv[1])))
read_all(engine, "s", Ids.from_bytes(sys.stdin.buffer.read()))
sys.stdout.buffer.write(engine.export("s", limit_bytes=GIB))
"""


def make_engine(tmp_path: Path) -> TorchEngine:
    return build_engine(Settings(model="random:0.8B", device="cuda", dir=tmp_path))


def test_law_2_a_history_of_the_published_shape_equals_another_process(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    first = make_ids(20 * 512 + 9, 1, VOCABULARY)
    read_all(engine, "s", first)
    engine.checkpoint("s")
    read_all(engine, "s", joined(first, make_ids(4 * 512, 2, VOCABULARY)))
    before = tensors(engine, "s")
    odds = engine.ask("s", tail=make_ids(300, 3), question=make_ids(90, 4), letters=(1, 2))
    assert sum(odds) == pytest.approx(1)
    assert same_bits(before, tensors(engine, "s"))
    known = joined(first, make_ids(5 * 512, 5, VOCABULARY))
    assert engine.align("s", known).committed == 20 * 512
    read_all(engine, "s", known)
    read_all(engine, "beside", make_ids(3 * 512, 6, VOCABULARY))
    other = subprocess.run(
        [sys.executable, "-c", PREFILL, str(tmp_path)],
        input=known.to_bytes(),
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        check=True,
        timeout=100,
    ).stdout
    assert same_bits(load(other), tensors(engine, "s"))
    assert metadata(other) == metadata(engine.export("s", limit_bytes=GIB))


def test_a_session_of_100_000_ids_takes_on_the_device_what_is_counted(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    known = make_ids(100_000, 1, VOCABULARY)
    read_all(engine, "warm", known.take(512))
    engine.drop("warm")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for end in (*range(15_000, 90_001, 15_000), 100_000):
        read_all(engine, "s", known.take(end))
        if end < 100_000:
            engine.checkpoint("s")
    taken, stats = torch.cuda.memory_allocated() - before, engine.stats()
    assert stats.bytes == 208 * 512 * 12_288 + 7 * 19_537_920
    assert abs(taken - stats.bytes) < 2**20
    assert engine.align("s", Ids.of(known.array(0, 50_000))).committed == 44_544


def test_digests_do_not_know_the_device() -> None:
    """The same bits on both: a state made on the CPU, copied over and hashed there."""
    engine = TorchEngine(load_model("random:tiny", device="cpu"), grid=512, cap_bytes=GIB)
    read_all(engine, "s", make_ids(1024, 1, VOCABULARY))
    state = engine._sessions["s"]
    digest = state.digest(recompute=True)
    moved = tensors(engine, "s")
    link = CHAIN_START
    for index in range(2):
        part = slice(index * 512, (index + 1) * 512)
        page = moved["rows"][:, :, :, part].contiguous().cuda()
        ids = moved["ids"][part].numpy().tobytes()
        link = chain(link, tensor_hash(page), ids)
    recurrent, conv = moved["recurrent"].cuda(), moved["conv"].cuda()
    assert state_digest(link, recurrent=recurrent, conv=conv, position=1024) == digest
