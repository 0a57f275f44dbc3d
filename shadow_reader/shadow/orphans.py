"""Snapshots of sessions that the journal does not have: removed at the start.

An erasure takes a session out of the journal first. A process that is killed before it removed the
snapshot too leaves one that no later message would ever name.
"""

from __future__ import annotations

import logging

from shadow_reader.errors import JournalError, ShutDownError, SnapshotError
from shadow_reader.events.journal import Journal
from shadow_reader.events.snapshots import SnapshotStore
from shadow_reader.events.types import SessionErased
from shadow_reader.shadow.job_thread import JobThread

log = logging.getLogger(__name__)


async def remove_orphans(journal: Journal, disk: JobThread, store: SnapshotStore) -> None:
    """Look at every snapshot once. Whatever cannot be looked at, or removed, is left and logged."""
    try:
        for session in await disk.run(store.sessions):
            if not await _is_known(journal, session):
                await disk.run(store.erase, session)
                log.info("session %s is not in the journal: its snapshot is removed", session)
    except ShutDownError:
        pass  # the next start goes on
    except (JournalError, SnapshotError) as error:
        log.warning("snapshots of erased sessions could not be looked for: %s", error)


async def _is_known(journal: Journal, session: str) -> bool:
    newest = journal.entries(session=session, newest_first=True, limit=1)
    entries = [entry async for entry in newest]
    return bool(entries) and not isinstance(entries[0].event, SessionErased)
