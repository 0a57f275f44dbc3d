"""An engine made from settings, and what a session costs it in the shapes that are published."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from shadow_reader.config import Settings
from shadow_reader.errors import ModelError, SettingsError
from shadow_reader.shadow.model.facts import least_bytes
from shadow_reader.shadow.model.load import load_model
from shadow_reader.shadow.model.published import SHAPES
from shadow_reader.shadow.torch_engine import TorchEngine, build_engine
from tests.shadow.models import Fake
from tests.shadow.states import GIB, assert_like_fresh, make_ids, read_all


@pytest.mark.parametrize("name", ["tiny", "0.8B", "2B", "4B"])
def test_a_session_costs_its_rows_and_its_states(name: str) -> None:
    """Computed from the published shapes; the 0.8B's are 12,288 bytes a row and 19.5 MB a state."""
    config = SHAPES[name]
    row, state = config.row_bytes(2), config.state_bytes(2)
    if name == "0.8B":
        assert (row, state) == (12_288, 18 * (16 * 128 * 128 * 4 + 6144 * 3 * 2))
    assert least_bytes(config, torch.bfloat16.itemsize, 512) == 2 * 512 * row + 2 * state


def test_a_session_of_100_000_ids_takes_what_was_computed() -> None:
    config = SHAPES["tiny"]
    engine = TorchEngine(Fake(config), grid=512, cap_bytes=GIB)
    known = make_ids(100_000, 1)
    ends = [15_000 * k for k in range(1, 7)]
    for end in (*ends, 100_000):
        read_all(engine, "s", known.take(end))
        if end in ends:
            engine.checkpoint("s")
    pages, states = 195, 7
    page_bytes = 512 * config.row_bytes(4)
    stats = engine.state_stats("s")
    assert stats is not None
    assert stats.bytes == pages * page_bytes + states * config.state_bytes(4)
    assert engine.stats().bytes == 208 * page_bytes + states * config.state_bytes(4)


def settings_of(tmp_path: Path, **changes: Any) -> Settings:
    values: dict[str, Any] = {"model": "random:tiny", "dir": tmp_path, "device": "cpu"}
    return Settings.model_validate(values | changes)


def test_build_engine_follows_the_settings(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        engine = build_engine(
            settings_of(tmp_path, threads=1, cap_gb=0.25, grid_ids=128, context_ids=5000)
        )
        assert torch.get_num_threads() == 1
        assert engine.identity.build.endswith("threads 1")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 1
    finally:
        torch.set_num_threads(threads)
    assert (engine.identity.grid, engine.context_ids) == (128, 5000)
    assert (engine.stats().cap_bytes, engine.vocabulary) == (2**28, 248_320)
    known = make_ids(3 * 128 + 5, 1, 248_320)
    assert read_all(engine, "s", known) == 3
    assert_like_fresh(engine, "s", known, load_model("random:tiny", device="cpu"))


def test_build_engine_refuses_a_cap_that_holds_no_chunk(tmp_path: Path) -> None:
    least = least_bytes(SHAPES["tiny"], torch.float32.itemsize, 512)
    with pytest.raises(SettingsError, match="cap_gb") as refused:
        build_engine(settings_of(tmp_path, cap_gb=(least - 1) / GIB))
    assert refused.value.details == {"key": "cap_gb", "found": least - 1, "limit": least}


def test_build_engine_refuses_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        build_engine(settings_of(tmp_path, model="no-such-folder"))
