"""What every test gets: a hypothesis profile that gives the same examples each time."""

from __future__ import annotations

from hypothesis import settings

# Derandomized: the seed is a property of the test, so a failure is the same on every machine.
# To look further afield, multiply the examples: SHADOW_EFFORT=20 (tests/fakes.py).
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, print_blob=True, database=None
)
settings.load_profile("repeatable")
