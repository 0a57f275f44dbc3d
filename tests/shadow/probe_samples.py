"""Probes whose numbers are drawn from a seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shadow_reader.events.ids import Ids
from shadow_reader.shadow.probe_file import ProbeMetrics, TrainedProbe

CLASSES = ("calm", "cross", "glad")
METRICS = ProbeMetrics(90, 0.75, 0.7, 0.05, 0.5, 0.125, 0.375)


def sample(
    name: str = "mood",
    *,
    seed: int = 1,
    hidden: int = 8,
    classes: tuple[str, ...] = CLASSES,
    **more: object,
) -> TrainedProbe:
    """One that is whole; ``more`` are its other fields."""
    drawn = np.random.default_rng(seed)
    count = len(classes)
    probe = TrainedProbe(
        name=name,
        source="labels:mood",
        weights="ab12",
        grid=64,
        layer=2,
        last=4,
        suffix=Ids.of([9, 8]),
        classes=classes,
        mean=drawn.standard_normal(hidden).astype(np.float32),
        scale=(0.5 + drawn.random(hidden)).astype(np.float32),
        coef=drawn.standard_normal((count, hidden)).astype(np.float32),
        intercept=drawn.standard_normal(count).astype(np.float32),
        strength=0.5,
        first_seq=3,
        last_seq=900,
        labels=90,
        sessions=7,
        metrics=METRICS,
    )
    return replace(probe, **more)  # type: ignore[arg-type]
