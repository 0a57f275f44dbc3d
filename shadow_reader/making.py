"""How a model is made, whenever the slot loads one: the real way, which a caller may replace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shadow_reader.config import Settings
from shadow_reader.shadow.claim import Claim, claim_of
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.vocabulary import Vocabulary, load_vocabulary


@dataclass(frozen=True, slots=True)
class Maker:
    """How a model is made; every call runs on the device thread.

    Attributes:
        claim: what it takes, and what is free. build: load it.
        vocabulary: for its questions; on any thread.
    """

    claim: Callable[[Settings], Claim]
    build: Callable[[Settings], Engine]
    vocabulary: Callable[[str], Vocabulary]


def _build(settings: Settings) -> Engine:
    from shadow_reader.shadow.torch_engine import build_engine

    return build_engine(settings)


REAL: Final = Maker(claim_of, _build, load_vocabulary)
