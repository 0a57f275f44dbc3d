"""What a session's state must be: a fresh prefill of the journal's ids, by a process of its own."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shadow_reader.config import load_settings
from shadow_reader.replay.rebuild import Journaled, journaled_session, rebuild
from shadow_reader.shadow.torch_engine import build_engine
from shadow_reader.store.reader import JournalReader

ROOM_GB = 4.0


@dataclass(frozen=True, slots=True)
class Proved:
    """One session's fresh prefill.

    Attributes:
        position, digest: where it came to, and its state digest there.
        checkpoints: journaled digests that were compared. differing: those that were not equal.
    """

    session: str
    known: int
    position: int
    digest: str
    checkpoints: int
    differing: tuple[int, ...]


def prove(settings: dict[str, Any], journal: Path) -> list[dict[str, Any]]:
    """Prefill every session of the journal from nothing; as JSON values."""
    sessions = asyncio.run(_journaled(journal))
    engine = build_engine(load_settings(overrides={**settings, "cap_gb": ROOM_GB}))
    try:
        return [asdict(_prove(one, engine)) for one in sessions]
    finally:
        engine.close()


def _prove(journaled: Journaled, engine: Any) -> Proved:
    found = rebuild(journaled, engine)
    return Proved(
        session=found.session,
        known=found.known,
        position=found.position,
        digest=found.digest,
        checkpoints=len(found.checkpoints),
        differing=tuple(c.position for c in found.checkpoints if not c.exact),
    )


async def _journaled(journal: Path) -> list[Journaled]:
    async with await JournalReader.open(journal) as reader:
        rows = await reader.sessions()
        return [await journaled_session(reader, row.session) for row in rows]
