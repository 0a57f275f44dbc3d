"""What every test gets: a hypothesis profile that gives the same examples each time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Derandomized: a seed is a property of the test, so a failure is the same on every machine. To
# look further afield set SHADOW_HYPOTHESIS=explore; hypothesis then prints the seed of a failure.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, print_blob=True, database=None
)
settings.register_profile(
    "explore",
    derandomize=False,
    deadline=None,
    print_blob=True,
    max_examples=2000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("SHADOW_HYPOTHESIS", "repeatable"))
