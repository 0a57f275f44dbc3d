"""A real server in a process of its own: started, killed and stopped by its process id.

Law: the process gets exactly the settings it was given, whatever the environment says, and leaves
no process behind unless it is meant to stay.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from shadow_reader.config import ENV_KEYS, ENV_PREFIX, Settings
from shadow_reader.errors import ShadowError

_POLL_S: Final = 0.02
_STOP_S: Final = 20.0
_LOG_LINES: Final = 40


class ProcessError(ShadowError):
    """A process of ours ended before it should, or did not end as it should."""

    code = "process_failed"


def command_line(config: Path | None, *words: str) -> list[str]:
    """This program in a process of its own."""
    named = ["--config", str(config)] if config is not None else []
    return [sys.executable, "-m", "shadow_reader.cli.main", *named, *words]


def environment(settings: Settings, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` with exactly these settings: what it said of them before is gone."""
    made = {name: value for name, value in base.items() if not name.startswith(ENV_PREFIX)}
    for name, key in ENV_KEYS.items():
        value = getattr(settings, key)
        if value is not None:
            made[ENV_PREFIX + name] = str(value)
    return made


def last_lines(log: Path) -> str:
    """The end of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
    except FileNotFoundError:
        return ""


@dataclass(slots=True)
class ServerProcess:
    """One running server.

    Attributes:
        url: where it listens. pid: its process id. log: its standard error.
    """

    url: str
    pid: int
    log: Path
    _process: asyncio.subprocess.Process

    @classmethod
    async def start(
        cls, settings: Settings, *, folder: Path, config: Path | None = None, limit_s: float = 120.0
    ) -> ServerProcess:
        """Start a server and wait until it is ready.

        Args:
            folder: gets its log (appended) and what it says on standard output.

        Raises:
            ProcessError: it ended, or was not ready within ``limit_s``.
        """
        said, log = folder / "server.json", folder / "server.log"
        with said.open("wb") as out, log.open("ab") as err:
            process = await asyncio.create_subprocess_exec(
                *command_line(config, "serve", "--json"),
                env=environment(settings, os.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(limit_s):
                hello = await _hello(process, said, log)
        except BaseException as error:
            await _end(process)
            if isinstance(error, TimeoutError):
                raise ProcessError(
                    f"the server was not ready within {limit_s:g} s", log=last_lines(log)
                ) from error
            raise
        return cls(str(hello["address"]), process.pid, log, process)

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.returncode is None

    def kill(self) -> None:
        """SIGKILL, now: nothing of the process runs after this."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)

    async def gone(self) -> None:
        """Wait until the process has ended."""
        await self._process.wait()

    async def stop(self) -> None:
        """Ask it to close in order; kill it if it does not. May be called again."""
        await _end(self._process)


async def _hello(process: asyncio.subprocess.Process, said: Path, log: Path) -> dict[str, Any]:
    while True:
        ended = process.returncode is not None
        text = await asyncio.to_thread(said.read_bytes)
        if b"\n" in text:
            hello = orjson.loads(text.partition(b"\n")[0])
            if "address" in hello:
                return dict(hello)
            message = hello.get("error", {}).get("message", "it printed no address")
            raise ProcessError(f"the server did not start: {message}", log=last_lines(log))
        if ended:
            raise ProcessError(
                f"the server ended with status {process.returncode} before it was ready",
                log=last_lines(log),
            )
        await asyncio.sleep(_POLL_S)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
