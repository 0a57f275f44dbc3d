"""Blocks of bytes to lines, with a limit that also holds while a line has not ended."""

from __future__ import annotations

from collections.abc import Iterator

from shadow_reader.http.guard import too_large


class LineSplitter:
    """Cuts a body into lines as it comes; holds one unfinished line at most.

    Args:
        limit: most bytes a line may have, its end not counted.

    Attributes:
        number: of the line given last, counted from 1; of the refused one after an error.
    """

    def __init__(self, *, limit: int) -> None:
        self.number = 0
        self._limit = limit
        self._begun = bytearray()

    def take(self, block: bytes) -> Iterator[bytes]:
        """The lines that ``block`` ends; an empty block ends the body and so the last line.

        Raises:
            TooLargeError: a line passes the limit; the lines before it have been given.
        """
        first, *rest = block.split(b"\n")
        self._begun += first
        if rest or not block:
            begun, self._begun = bytes(self._begun), bytearray(rest.pop() if rest else b"")
            for line in (begun, *rest):
                self.number += 1
                if len(line) > self._limit:
                    raise too_large("line", len(line), self._limit)
                yield line
        if len(self._begun) > self._limit:
            self.number += 1
            raise too_large("line", len(self._begun), self._limit)
