"""A real disk that runs full: a program with a small file system of its own that no other sees."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOT_MOUNTED = 77
PATIENCE_S = 60.0


def run_on_a_small_disk(module: str, folder: Path, *, size: str) -> Any:
    """Run ``python -m module folder`` where ``folder`` is a disk of ``size``; its report, JSON.

    Skips the test where mounting is not allowed.
    """
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting a small file system needs root and unshare")
    folder.mkdir()
    child = shlex.join([sys.executable, "-m", module, str(folder)])
    mount = shlex.join(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{mount} || exit {NOT_MOUNTED}; exec {child}"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode == NOT_MOUNTED:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
