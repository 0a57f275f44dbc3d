"""Made vectors of which it is known what can be learned."""

from __future__ import annotations

import numpy as np

from shadow_reader.replay.probes.fit import Examples, Floats

HIDDEN = 12


def made(
    seed: int,
    *,
    classes: int = 3,
    sessions: int = 12,
    each: int = 10,
    signal: float = 1.0,
    layers: tuple[int, ...] = (4,),
) -> Examples:
    """Every session has ``each`` examples of drawn classes and an offset of its own; a class lies
    ``signal`` from the others in the first of ``layers``, and nowhere in the others."""
    chance = np.random.default_rng(seed)
    centres = chance.standard_normal((classes, HIDDEN))
    codes = chance.integers(classes, size=(sessions, each))
    vectors: dict[int, Floats] = {}
    for layer in layers:
        noise = chance.standard_normal((sessions, each, HIDDEN))
        offsets = 0.5 * chance.standard_normal((sessions, 1, HIDDEN))
        part = signal * centres[codes] if layer == layers[0] else 0.0
        rows = 7.0 + noise + offsets + part
        vectors[layer] = rows.reshape(-1, HIDDEN).astype(np.float32)
    labels = [f"c{code}" for code in codes.ravel()]
    names = [f"s{session:02}" for session in range(sessions) for _ in range(each)]
    return Examples(vectors, labels, names)
