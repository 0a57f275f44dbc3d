"""A command line to try: in this process, or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from shadow_reader.cli.main import app
from shadow_reader.config import ENV_PREFIX
from tests.cli.server_thread import Served, server_thread


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left: its exit status and both of its outputs."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON object."""
        return orjson.loads(self.out)

    @property
    def rows(self) -> list[Any]:
        """Standard output, which must be one JSON object a line."""
        return [orjson.loads(line) for line in self.out.splitlines()]


def run(*words: object) -> Outcome:
    """Run a command in this process."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def command(*words: object) -> list[str]:
    """A command's words for a process of its own."""
    return [sys.executable, "-m", "shadow_reader.cli.main", *map(str, words)]


def environment(*, folder: Path | None = None, **settings: str) -> dict[str, str]:
    """This process's environment with these settings alone, and one thread of arithmetic.

    ``folder``: where temporary files go.
    """
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)}
    named = {ENV_PREFIX + key: value for key, value in settings.items()}
    temporary = {} if folder is None else {"TMPDIR": str(folder)}
    return {**clean, "OMP_NUM_THREADS": "1", **temporary, **named}


def run_process(
    *words: object, folder: Path | None = None, timeout_s: float = 60.0, **settings: str
) -> Outcome:
    """Run a command in a process of its own."""
    done = subprocess.run(
        command(*words),
        env=environment(folder=folder, **settings),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of whoever runs the tests do not reach them."""
    for key in list(os.environ):
        if key.startswith(ENV_PREFIX):
            monkeypatch.delenv(key)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server with an engine around a model that only mixes bits."""
    with server_thread(tmp_path) as found:
        yield found
