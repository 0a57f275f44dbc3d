from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader import errors as e
from shadow_reader.cli.output import (
    ExitCode,
    bytes_shown,
    error_body,
    exit_code,
    print_error,
    print_json,
    shown,
    table,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (e.NotFoundError, ExitCode.FAILED),
        (e.ConflictError, ExitCode.FAILED),
        (e.BusyError, ExitCode.FAILED),
        (e.AskTimeoutError, ExitCode.FAILED),
        (e.ForbiddenError, ExitCode.FAILED),
        (e.SettingsError, ExitCode.USAGE),
        (e.InvalidInputError, ExitCode.USAGE),
        (e.TooLargeError, ExitCode.USAGE),
        (e.BadRequestError, ExitCode.USAGE),
        (e.RecordError, ExitCode.USAGE),
        (e.ModelError, ExitCode.USAGE),
        (e.VocabularyError, ExitCode.USAGE),
        (e.UnreachableError, ExitCode.UNREACHABLE),
        (e.JournalError, ExitCode.JOURNAL),
        (e.JournalLockedError, ExitCode.JOURNAL),
        (e.JournalFormatError, ExitCode.JOURNAL),
        (e.JournalFullError, ExitCode.JOURNAL),
    ],
)
def test_an_error_has_an_exit_code(error: type[e.ShadowError], code: ExitCode) -> None:
    assert exit_code(error("why")) == code


def test_an_error_object_is_the_apis() -> None:
    body = error_body(e.ConflictError("why", field="offset", found=3))
    details = {"field": "offset", "found": 3}
    assert body == {"error": {"code": "conflict", "message": "why", "details": details}}


def test_an_error_is_one_line_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("[bold]as it is[/bold] " + "long " * 100)
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("error: [bold]as it is[/bold] long")
    assert found.err.count("\n") == 1


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": Path("/x"), "b": (1, 2.5), "c": "é\n"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert orjson.loads(out) == {"a": "/x", "b": [1, 2.5], "c": "é\n"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (1234567, "1,234,567"),
        (1234.56, "1,234.6"),
        (0.01234, "0.0123"),
        ((1, 2000), "1, 2,000"),
        ([], "-"),
        ("text", "text"),
    ],
)
def test_values_as_people_read_them(value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (20_118_120, "19.2 MiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_sizes_as_people_read_them(size: int, text: str) -> None:
    assert bytes_shown(size) == text


@given(st.integers(0, 2**60))
def test_a_size_is_right_to_a_twentieth_of_its_unit(size: int) -> None:
    number, unit = bytes_shown(size).split()
    factor = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert abs(float(number) * factor - size) <= factor * 0.05 + 1e-9 * size


def test_cells_are_shown_as_they_are() -> None:
    made = table("", ("name", "#count"), [("[red]x[/red]", 1)])
    assert [column.justify for column in made.columns] == ["left", "right"]
    assert str(next(iter(made.columns[0].cells))) == "[red]x[/red]"
