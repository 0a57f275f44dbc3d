"""The real server as a child process, and what its journal holds in the end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CODE = """
import json, pathlib, sys
from shadow_reader.config import load_settings
from shadow_reader.http.serve import run
run(load_settings(overrides=json.loads(sys.argv[1])), ready_file=pathlib.Path(sys.argv[2]))
"""
START_S = 120.0
STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that listens."""

    host: str
    port: int
    url: str
    pid: int

    def cpu_s(self) -> float:
        """Processor seconds it has used so far, all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@contextmanager
def running_server(folder: Path, settings: dict[str, object]) -> Iterator[Server]:
    """Start one with its journal in ``folder``; stop it in order, and see that it did."""
    ready = folder / "ready.json"
    overrides = {"port": 0, "journal": str(folder / "shadow.db"), **settings}
    process = subprocess.Popen([sys.executable, "-c", CODE, json.dumps(overrides), str(ready)])
    try:
        deadline = time.monotonic() + START_S
        while not ready.exists():
            assert process.poll() is None, f"the server ended with {process.returncode}"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        yield Server(**json.loads(ready.read_text()))
        process.terminate()
        assert process.wait(STOP_S) == 0, f"the server ended with {process.returncode}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
