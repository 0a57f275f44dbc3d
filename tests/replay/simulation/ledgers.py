"""Small ledgers for simulations."""

from __future__ import annotations

from shadow_reader.replay.ledger import Ledger, ledger_of
from shadow_reader.replay.ledger.synthetic import Shape, synthetic

SMALL = Shape(sessions=6, turns=90)


def made(seed: int, shape: Shape = SMALL) -> Ledger:
    """A made ledger of 90 turns."""
    return ledger_of(f"made-{seed}", synthetic(seed, shape))
