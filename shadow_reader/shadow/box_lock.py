"""The box lock: a file that programs lock which want the GPU of a box to themselves for a while.

Law: it is taken without waiting and held for one burst. What cannot be opened or locked is not
taken, and why is said; a file that somebody replaced is opened anew, since its old lock binds
nobody any more.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shadow_reader.errors import SettingsError

FILE_MODE = 0o666


class BoxLock:
    """An advisory lock (``flock``) on one file; without a file it is always to be had.

    Attributes:
        problem: why it could not be taken when it was last tried, other than that somebody has it.
    """

    def __init__(self, path: Path | None) -> None:
        """Open the file; it is made if need be.

        Raises:
            SettingsError: it cannot be opened.
        """
        self._path = path
        self._descriptor: int | None = None
        self.held = False
        self.problem = ""
        if path is not None:
            try:
                self._open(path)
            except OSError as error:
                raise SettingsError(
                    f"box_lock {path} cannot be opened: {error.strerror}",
                    key="box_lock",
                    path=str(path),
                ) from error

    @property
    def is_on(self) -> bool:
        """Whether there is a file."""
        return self._path is not None

    def try_take(self) -> bool:
        """Take it if nobody has it; never waits."""
        if self._path is None:
            return True
        assert not self.held, "the box lock is taken once"
        self.problem = ""
        try:
            self._renew(self._path)
            assert self._descriptor is not None
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            self.problem = f"box_lock {self._path} cannot be taken: {error.strerror}"
            return False
        self.held = True
        return True

    def release(self) -> None:
        """Let go of it."""
        if self.held and self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.held = False

    def close(self) -> None:
        """Let go of the file too. May be called again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None
        self.held = False

    def _renew(self, path: Path) -> None:
        if self._descriptor is not None:
            mine = os.fstat(self._descriptor)
            try:
                there = path.stat()
            except FileNotFoundError:
                there = None
            if there is not None and (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return
            self.close()
        self._open(path)

    def _open(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
