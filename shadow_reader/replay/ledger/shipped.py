"""The ledgers that come with the package, by name; ``data/PROVENANCE.md`` says whence they are."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from types import MappingProxyType
from typing import Final

from shadow_reader.errors import LedgerError
from shadow_reader.replay.ledger.file import read_ledger
from shadow_reader.replay.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Shipped:
    """A ledger of the package. ``made``: invented by ``synthetic.py``, nobody's requests."""

    name: str
    about: str
    made: bool


SHIPPED: Final = MappingProxyType(
    {
        one.name: one
        for one in (
            Shipped("opencode-41", "made: 41 sessions, 1,624 turns, median gap 0.31 s", made=True),
            Shipped("opencode-recorded", "41 opencode sessions, 975 requests", made=False),
            Shipped("pi-recorded", "8 Pi sessions, 1,023 requests, no first ids", made=False),
            Shipped(
                "claude-code-recorded",
                "281 Claude Code sessions, 17,562 requests, outputs mostly assumed",
                made=False,
            ),
        )
    }
)
"""Every shipped ledger by its name."""


def open_shipped(name: str) -> Ledger:
    """Read a shipped ledger.

    Raises:
        LedgerError: there is none of this name; the error lists those there are.
    """
    if name not in SHIPPED:
        known = ", ".join(SHIPPED)
        raise LedgerError(f"no ledger is called {name!r}; there are {known}", name=name)
    resource = files("shadow_reader.replay.ledger") / "data" / f"{name}.jsonl.gz"
    with as_file(resource) as path:
        return read_ledger(path, name)
