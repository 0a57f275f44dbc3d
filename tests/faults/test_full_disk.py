"""A real disk that runs full under commits, spills and heads, and has room again."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting a small file system needs root and unshare")
    folder = tmp_path / "small"
    folder.mkdir()
    child = shlex.join([sys.executable, "-m", "tests.faults.full_child", str(folder)])
    mount = shlex.join(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{mount} || exit 77; exec {child}"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report.pop("asked on a full disk") in ("answered", "journal_full", "timeout")
    everything = {"a": True, "b": True, "c": True}
    assert report == {
        "refused": "journal_full",
        "ready": "ready",
        "exact after it": everything,
        "exact after a start": everything,
        "kept": True,
    }
