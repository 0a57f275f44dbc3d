"""The state of one journaled session at a time, brought to where something stands on it.

Law: it stands on the same grid line as it would live, so the same engine gives the same bits. It
comes from a snapshot that fits, or is read from nothing; nothing of another session is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from shadow_reader.errors import OutOfRoomError, SnapshotError, VocabularyError
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.engine import Engine
from shadow_reader.store.snapshots.disk import Disk
from shadow_reader.store.snapshots.reader import SnapshotReader
from shadow_reader.store.snapshots.shelf import folder_name

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (ids that the state has read, ids that it is to read)."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class HeldState:
    """Holds one session's state after the other. All calls belong to the engine's thread.

    Args:
        snapshots: the folder that the journal's states were spilled to; None: none is used.

    Attributes:
        restored: sessions that began with a snapshot. read: ids that were read.
    """

    engine: Engine
    snapshots: Path | None = None
    progress: Progress | None = None
    restored: int = 0
    read: int = 0
    _session: str = ""

    def stand(self, session: str, base: Ids) -> int:
        """Bring the session's state to the last grid line of ``base``, and say where that is.

        A later base of the session may go back to here without reading again.

        Raises:
            OutOfRoomError: the session does not fit the memory cap.
        """
        grid = self.engine.identity.grid
        line = len(base) // grid * grid
        below = base.take(line)
        if session != self._session:
            self.leave()
            self._session = session
            if line and self.snapshots is not None:
                self.restored += self._restore(session, below, self.snapshots)
        at = self.engine.align(session, below).committed
        while at < line:
            if self.progress is not None:
                self.progress(at, line)
            before, at = at, self._read(session, below)
            self.read += at - before
        if line:
            self._set_aside(session)
        return line

    def leave(self) -> None:
        """Let go of the session's state."""
        if self._session:
            self.engine.drop(self._session, erased=True)
        self._session = ""

    def check_ids(self, ids: Ids, whose: str) -> None:
        """Whether the model knows all of them.

        Raises:
            VocabularyError: the journal's ids are not of this model.
        """
        most = int(ids.array().max()) if len(ids) else 0
        if most >= self.engine.vocabulary:
            raise VocabularyError(
                f"{whose} id {most} is none of {self.engine.identity.model}, which has "
                f"{self.engine.vocabulary}: the journal is of another vocabulary",
                field="model",
                found=most,
                limit=self.engine.vocabulary,
            )

    def _read(self, session: str, below: Ids) -> int:
        while True:
            try:
                return self.engine.read_chunk(session, below)
            except OutOfRoomError:
                if not self.engine.give_way((session,)):
                    raise

    def _set_aside(self, session: str) -> None:
        try:
            self.engine.checkpoint(session)
        except OutOfRoomError as error:
            log.info("no checkpoint of session %s: %s", session, error)

    def _restore(self, session: str, below: Ids, root: Path) -> bool:
        """Begin with what was spilled, if it is this engine's and of these ids."""
        folder = root / folder_name(session)
        if not folder.is_dir():
            return False
        reader = SnapshotReader(Disk(self.engine.host_buffer), folder, session)
        try:
            manifest = reader.manifest()
            restore = self.engine.begin_restore(session, manifest, reader.head(manifest), below)
            try:
                for piece in restore.pieces:
                    restore.put(piece, reader.piece(piece))
                restore.finish()
            finally:
                restore.abort()
        except (SnapshotError, OutOfRoomError, OSError) as error:
            log.info("the snapshot of session %s is not used: %s", session, error)
            return False
        return True
