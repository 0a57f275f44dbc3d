"""What the tests of states share: ids, reading to the end, comparing two states bit by bit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from safetensors.torch import load

from shadow_reader.events.ids import Ids
from shadow_reader.shadow.memory import HeldState
from shadow_reader.shadow.model.qwen35 import Qwen35
from shadow_reader.shadow.standing import Standing
from shadow_reader.shadow.torch_engine import TorchEngine

GIB = 1024**3


def make_ids(count: int, seed: int, vocabulary: int = 256) -> Ids:
    """``count`` random ids, the same for the same seed."""
    return Ids.of(np.random.default_rng(seed).integers(0, vocabulary, count))


def joined(*parts: Ids | Sequence[int]) -> Ids:
    """All parts in a row, in storage of their own."""
    return Ids.of([i for part in parts for i in part])


def read_all(engine: TorchEngine, session: str, known: Ids) -> int:
    """Align, then read every whole chunk of ``known``; how many chunks were read."""
    committed = engine.align(session, known).committed
    grid, chunks = engine.identity.grid, 0
    while committed + grid <= len(known):
        committed = engine.read_chunk(session, known)
        chunks += 1
    return chunks


def tensors(engine: TorchEngine, session: str) -> dict[str, torch.Tensor]:
    """Every tensor of the state, copied."""
    return load(engine.export(session, limit_bytes=GIB))


def metadata(file: bytes) -> dict[str, str]:
    """What an exported file says of itself."""
    length = int.from_bytes(file[:8], "little")
    found: dict[str, str] = json.loads(file[8 : 8 + length])["__metadata__"]
    return found


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two states have the same tensors, bit for bit."""
    return one.keys() == other.keys() and all(
        one[key].shape == other[key].shape
        and one[key].dtype == other[key].dtype
        and torch.equal(one[key].view(torch.uint8), other[key].view(torch.uint8))
        for key in one
    )


def fresh_engine(engine: TorchEngine, model: Qwen35) -> TorchEngine:
    """Another engine on the same grid, with a cap that never matters."""
    return TorchEngine(model, grid=engine.identity.grid, cap_bytes=GIB)


def assert_like_fresh(engine: TorchEngine, session: str, known: Ids, model: Qwen35) -> None:
    """The state equals a prefill of the same ids by an engine that read nothing else."""
    other = fresh_engine(engine, model)
    stats = engine.state_stats(session)
    committed = stats.committed if stats else 0
    read_all(other, "fresh", Ids.of(known.array(0, committed)))
    assert engine.digest(session) == other.digest("fresh")
    found, expected = tensors(engine, session), tensors(other, "fresh")
    assert found["rows"].shape[3] == committed
    assert not any(bool(t.isnan().any()) for t in found.values() if t.is_floating_point())
    assert same_bits(found, expected)
    assert engine.digest(session) == other.digest("fresh")
    assert found["ids"].tolist() == known.array(0, committed).tolist()


def really_held(engine: TorchEngine, *others: Standing) -> int:
    """Bytes of all storages that the engine's slabs and states really keep alive.

    Every state is held by a session, a prefix point or one of ``others``, or it is not held.
    """
    storages: dict[int, int] = {}
    held = [slab.tensor for slab in engine._pool._slabs.values()]
    for one in reachable_states(engine, *others):
        held += [one.state.recurrent, one.state.conv]
    for tensor in held:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def reachable_states(engine: TorchEngine, *others: Standing) -> set[HeldState]:
    """Every state that a session, a prefix point or one of ``others`` names."""
    standings = [*(state.standing for state in engine._sessions.values()), *others]
    found = {held for standing in standings for held in standing.states}
    return found | {point.held for point in engine._points}


def assert_all_is_counted(engine: TorchEngine, *others: Standing) -> None:
    """The account holds each page and each state once, and nothing that nobody can reach.

    Args:
        others: what is held besides sessions and prefix points: pins.
    """
    standings = [*(state.standing for state in engine._sessions.values()), *others]
    pages = Counter(page for standing in standings for page in standing.pages)
    pages.update(page for point in engine._points for page in point.pages)
    states = Counter(held for standing in standings for held in standing.states)
    states.update(point.held for point in engine._points)
    pool, memory = engine._pool, engine._memory
    assert {page: page.holders for page in pages} == pages
    assert {held: held.holders for held in states} == states
    assert len({page.address for page in pages}) == len(pages) == pool.pages
    counted = pool.slabs * pool.slab_bytes + len(states) * memory.state_bytes
    assert engine.stats().bytes == counted == really_held(engine, *others)
    assert set(memory._pages.values()) == set(pages)
    assert set(memory._states.values()) == set(states)
