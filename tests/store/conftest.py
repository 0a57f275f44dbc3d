"""What several files of tests begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.damaging import BESIDE, WHOLE
from tests.store.snapshot_samples import opened, spill


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the snapshots of two sessions, closed."""
    root = tmp_path / "root"
    store = opened(root)
    spill(store, WHOLE)
    spill(store, BESIDE)
    store.close()
    return root
