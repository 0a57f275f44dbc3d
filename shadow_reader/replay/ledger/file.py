"""Ledgers as files: JSON lines, one a turn; a name that ends in ``.gz`` is compressed.

Nothing is skipped: a blank line, a name that stands twice in a line, NaN and an unknown field are
refused as a broken line is. Times are written as they are: a file read back gives the same turns.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from shadow_reader.errors import LedgerError
from shadow_reader.replay.ledger.ledger import Ledger, ledger_of
from shadow_reader.replay.ledger.turn import Turn, fault, turn_of

MAX_BYTES: Final = 512 * 1024 * 1024
"""The longest ledger that is read, unpacked: two million turns. A ledger is held in memory."""

_GZIP_MAGIC: Final = b"\x1f\x8b"


def read_ledger(path: Path, name: str | None = None) -> Ledger:
    """Read and check a ledger.

    Args:
        path: the file; gzip is recognised by its first bytes.
        name: what to call it; the file's name by default.

    Raises:
        LedgerError: the file cannot be read, is empty or too large, or a line is refused.
    """
    called = path.name if name is None else name
    try:
        text = _unpacked(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise LedgerError(
            f"{path} is not UTF-8 text: byte {error.start} cannot be read", path=str(path)
        ) from error
    try:
        return ledger_of(called, [_turn(n, line) for n, line in enumerate(_lines(text), start=1)])
    except LedgerError as error:
        raise LedgerError(f"{path}: {error.message}", path=str(path), **error.details) from error


def write_ledger(path: Path, turns: Iterable[Turn]) -> int:
    """Write turns, after the same checks as reading, and say how many there are.

    The bytes depend on the turns alone, also compressed.

    Raises:
        LedgerError: a turn breaks a law of ledgers, or the file cannot be written.
    """
    checked = ledger_of(path.name, [turn_of(t.row, n) for n, t in enumerate(turns, start=1)])
    text = "".join(json.dumps(turn.row, separators=(",", ":")) + "\n" for turn in checked.turns)
    data = text.encode()
    try:
        path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        reason = error.strerror or str(error)
        raise LedgerError(f"{path} cannot be written: {reason}", path=str(path)) from error
    return len(checked.turns)


def _unpacked(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    data = unpacked.read(MAX_BYTES + 1)
            else:
                data = file.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LedgerError(f"{path} is damaged gzip: {error}", path=str(path)) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise LedgerError(f"{path} cannot be read: {reason}", path=str(path)) from error
    if len(data) > MAX_BYTES:
        raise LedgerError(
            f"{path} has more than {MAX_BYTES} bytes, the limit", path=str(path), limit=MAX_BYTES
        )
    return data


def _lines(text: str) -> Sequence[str]:
    # Only "\n" ends a line: JSON strings may hold U+2028, which splitlines() cuts at.
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _turn(number: int, line: str) -> Turn:
    if not line.strip():
        raise fault(number, "line", "is empty")
    try:
        row = json.loads(line, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise fault(number, "line", f"is not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise fault(number, "line", f"must be an object, found {type(row).__name__}")
    return turn_of(row, number)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice} stands twice")
    return row


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
