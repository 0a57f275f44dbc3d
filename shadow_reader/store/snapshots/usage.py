"""How many bytes the snapshots' files take, against the cap.

Law: a file counts with its whole size before its first byte is written, and until it is known to be
gone; so what is on the disk is never more than what is counted.
"""

from __future__ import annotations


class Usage:
    """Bytes of all files.

    Attributes:
        cap_bytes: what ``bytes`` must not pass.
        bytes: now.
        peak_bytes: the most since ``start_peak``.
    """

    def __init__(self, cap_bytes: int) -> None:
        self.cap_bytes = cap_bytes
        self.bytes = 0
        self.peak_bytes = 0

    def change(self, by: int) -> None:
        """Files grew, or went."""
        self.bytes += by
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def start_peak(self) -> None:
        """What was found at the opening is under the cap now; the peak counts from here."""
        self.peak_bytes = self.bytes

    def fits(self, more: int) -> bool:
        """Would so many bytes more stay under the cap?"""
        return self.bytes + more <= self.cap_bytes
