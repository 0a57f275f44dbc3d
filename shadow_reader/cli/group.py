"""The outermost command: it turns every error into one line and an exit code.

Law: the world's errors (``ShadowError``, wrong usage, Ctrl-C) end here and nowhere else; our own
bugs pass through with their traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import typer
from typer.core import TyperGroup

from shadow_reader.cli.output import ExitCode, error_body, exit_code, print_error, print_json
from shadow_reader.errors import ShadowError

JSON_FLAG: Final = "--json"
_UsageError: Final[type[Exception]] = typer.BadParameter.__bases__[0]
"""Wrong usage of any kind; typer brings its own copy of click, or uses the one there is."""


class UsageError(ShadowError):
    """A command line that does not say what to do."""

    code = "usage"


class ShadowGroup(TyperGroup):
    """All commands of the program."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, report and exit; ``standalone_mode=False`` only returns the exit status."""
        words = list(sys.argv[1:] if args is None else args)
        as_json = JSON_FLAG in words
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except _UsageError as error:
            hint = "" if as_json else _help_hint(error)
            code = _report(UsageError(_message(error)), as_json, ExitCode.USAGE, hint)
        except ShadowError as error:
            code = _report(error, as_json, exit_code(error))
        except (KeyboardInterrupt, typer.Abort):
            code = ExitCode.INTERRUPTED
        except BrokenPipeError:
            code = _quiet_pipe()
        if standalone_mode:
            sys.exit(int(code or ExitCode.OK))
        return int(code or ExitCode.OK)


def _report(error: ShadowError, as_json: bool, code: ExitCode, hint: str = "") -> ExitCode:
    if as_json:
        print_json(error_body(error))
    else:
        print_error(error.message, hint=hint)
    return code


def _message(error: Exception) -> str:
    words = getattr(error, "format_message", lambda: str(error))()
    return " ".join(str(words).split())


def _help_hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"see {context.command_path} --help" if context is not None else ""


def _quiet_pipe() -> ExitCode:
    """Whoever read our output is gone (``| head``); say nothing more, to it or at exit."""
    sys.stdout = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115, PTH123 - until exit
    return ExitCode.FAILED
