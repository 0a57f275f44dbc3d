"""Offline work with a model needs no server, no database and no settings to be installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ABSENT = (
    "aiohttp",
    "aiosqlite",
    "prometheus_client",
    "pydantic",
    "rich",
    "typer",
    "uvloop",
    "yarl",
)
PROGRAM = """
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
importlib.import_module({module!r})
"""


@pytest.mark.parametrize(
    "module", ["shadow_reader.shadow.torch_engine", "shadow_reader.shadow.jobs"]
)
def test_is_imported_where_little_is_installed(module: str) -> None:
    program = PROGRAM.format(absent=ABSENT, module=module)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
