"""What a command prints, and the number it leaves behind.

Law: with ``--json`` standard output holds JSON and nothing else; progress and complaints go to
standard error. An error is one line, never a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Final

import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shadow_reader.errors import (
    BadRequestError,
    InvalidInputError,
    JournalError,
    MissingExtraError,
    ModelError,
    RecordError,
    SettingsError,
    ShadowError,
    TooLargeError,
    UnreachableError,
    VocabularyError,
)


class ExitCode(IntEnum):
    """What the process's exit status says."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    JOURNAL = 4
    INTERRUPTED = 130


EXIT_CODES_HELP: Final = (
    "Exit codes: 0 fine · 1 it failed (not exact, refused, not found) · 2 bad usage, settings or "
    "input · 3 no server answers · 4 the journal cannot be opened · 130 interrupted"
)

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_USAGE_CODES: Final = frozenset({"bad_address"})
"""Codes of usage errors whose classes belong to the server and are not imported for ``--help``."""

_USAGE_ERRORS: Final = (
    SettingsError,
    InvalidInputError,
    BadRequestError,
    TooLargeError,
    RecordError,
    MissingExtraError,
    ModelError,
    VocabularyError,
)


def exit_code(error: ShadowError) -> ExitCode:
    """The exit status that stands for ``error``."""
    if isinstance(error, UnreachableError):
        return ExitCode.UNREACHABLE
    if isinstance(error, JournalError):
        return ExitCode.JOURNAL
    usage = isinstance(error, _USAGE_ERRORS) or error.code in _USAGE_CODES
    return ExitCode.USAGE if usage else ExitCode.FAILED


def error_body(error: ShadowError) -> dict[str, Any]:
    """The error as the API spells it."""
    return {"error": {"code": error.code, "message": error.message, "details": error.details}}


def print_json(body: object) -> None:
    """One JSON value and a line end on standard output."""
    sys.stdout.write(orjson.dumps(body, default=_plain).decode() + "\n")
    sys.stdout.flush()


def print_error(message: str, *, hint: str = "") -> None:
    """One red line on standard error, and a dim one below it if there is a hint."""
    console = errors()
    console.print(Text.assemble(("error: ", "bold red"), (message, "red")), soft_wrap=True)
    if hint:
        console.print(Text(hint, "dim"), soft_wrap=True)


def people() -> Console:
    """The console for results that people read."""
    return Console(highlight=False)


def errors() -> Console:
    """The console for progress and complaints."""
    return Console(stderr=True, highlight=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table whose cells are shown as they are.

    Columns that begin with ``#`` hold numbers and keep to one line; the others are folded.
    """
    made = Table(
        title=title or None, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD
    )
    for column in columns:
        number = column.startswith("#")
        made.add_column(
            Text(column.removeprefix("#")),
            justify="right" if number else "left",
            overflow="fold",
            no_wrap=number,
        )
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(shown(cell)) for cell in row))
    return made


def facts(title: str, rows: Iterable[tuple[str, object]]) -> Table:
    """A table of names and values."""
    made = Table(title=title or None, title_justify="left", show_header=False, box=None)
    made.add_column(style="dim")
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value if isinstance(value, Text) else Text(shown(value)))
    return made


def shown(value: object) -> str:
    """A value as people read it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.3g}" if abs(value) < 1 else f"{value:,.1f}"
        case list() | tuple():
            return ", ".join(map(shown, value)) or "-"
        case _:
            return str(value)


def bytes_shown(size: int) -> str:
    """A size in the largest unit that leaves a whole number before the point."""
    power = min((max(size, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{size / 1024**power:.1f} {_UNITS[power]}" if power else f"{size} B"


def _plain(value: object) -> object:
    return str(value)
