"""What several files of tests begin with."""

from __future__ import annotations

import pytest

from tests.shadow.restoring import spilled
from tests.shadow.snapshots import Snapshot


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    """Of a state of twenty chunks; nobody changes it."""
    return spilled()
