"""Who may take how much memory: one cap over pages, states, checkpoints and forks.

Law: the account is asked before anything is allocated, so ``bytes`` never passes ``cap_bytes``,
not even for a moment. A refusal changes nothing. Weights, and the scratch inside one forward or
one digest, are not counted: sessions do not add to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shadow_reader.errors import OutOfRoomError


class MemoryAccount:
    """Counts bytes against a cap. Used by one thread; the numbers may be read by any.

    Args:
        cap_bytes: most bytes that may be held at one time.
    """

    def __init__(self, cap_bytes: int) -> None:
        assert cap_bytes >= 0, f"a cap of {cap_bytes} bytes"
        self.cap_bytes = cap_bytes
        self.bytes = 0
        self.peak_bytes = 0

    @property
    def left_bytes(self) -> int:
        """What may still be taken."""
        return self.cap_bytes - self.bytes

    def take(self, asked: int, what: str) -> None:
        """Count ``asked`` more bytes; ``what`` names them in the refusal.

        Raises:
            OutOfRoomError: fewer are left; nothing was counted.
        """
        assert asked >= 0, f"{what} asks for {asked} bytes"
        if asked > self.left_bytes:
            raise OutOfRoomError(
                f"{what} needs {asked} bytes, but {self.left_bytes} are left "
                f"of the cap of {self.cap_bytes} bytes (cap_gb)",
                field="cap_gb",
                what=what,
                asked=asked,
                left=self.left_bytes,
                limit=self.cap_bytes,
            )
        self.bytes += asked
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def give(self, returned: int) -> None:
        """Count ``returned`` bytes less."""
        assert 0 <= returned <= self.bytes, f"{returned} of {self.bytes} bytes given back"
        self.bytes -= returned

    @contextmanager
    def hold(self, asked: int, what: str) -> Iterator[None]:
        """Take ``asked`` bytes for the length of a block.

        Raises:
            OutOfRoomError: fewer are left; the block is not entered.
        """
        self.take(asked, what)
        try:
            yield
        finally:
            self.give(asked)
