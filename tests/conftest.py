"""What every test gets: a hypothesis profile that gives the same examples each time, and, where
there is no NVIDIA device, Triton's interpreter, which must be chosen before Triton is imported."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import settings

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# Derandomized: the seed is a property of the test, so a failure is the same on every machine.
# To look further afield, multiply the examples: SHADOW_EFFORT=20 (tests/fakes.py).
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, print_blob=True, database=None
)
settings.load_profile("repeatable")
