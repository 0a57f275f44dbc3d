"""Listening: from a socket to the end of the process.

Law: the first SIGINT or SIGTERM ends it in order (waiting requests are told, what was submitted is
committed and acknowledged, the runtime closes); a second one ends it at once, which loses nothing
that was acknowledged, because the journal comes first.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson
import uvloop
from aiohttp import web

from shadow_reader.config import Settings
from shadow_reader.http.app import make_app
from shadow_reader.http.connection import Runner
from shadow_reader.http.errors import AddressError
from shadow_reader.runtime import Runtime

SHUTDOWN_S: Final = 3.0
"""Longest an open request may hold up the end."""

LINGER_S: Final = 2.0
KEEPALIVE_S: Final = 75.0

SWITCH_S: Final = 0.0005
"""How long a thread that needs the interpreter waits: the journal's writer does, for moments.
Python's own 5 ms would make every commit wait so long for a busy event loop."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the service listens; ``port`` is the bound one, also when 0 was asked for."""

    host: str
    port: int
    pid: int

    @property
    def url(self) -> str:
        """What a client is given."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@asynccontextmanager
async def listening(runtime: Runtime) -> AsyncIterator[Address]:
    """Serve a running runtime for the length of a block.

    Raises:
        AddressError: the address cannot be used.
    """
    settings = runtime.settings
    runner = Runner(
        make_app(runtime),
        shutdown_s=SHUTDOWN_S,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=KEEPALIVE_S,
        lingering_time=LINGER_S,
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
        except OSError as error:
            raise AddressError(
                f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}",
                field="port",
                host=settings.host,
                port=settings.port,
            ) from error
        yield Address(settings.host, int(runner.addresses[0][1]), os.getpid())
    finally:
        await runner.cleanup()


async def serve(
    settings: Settings,
    *,
    on_ready: Callable[[Address], None] = lambda _address: None,
    on_loaded: Callable[[], None] = lambda: None,
    ready_file: Path | None = None,
) -> None:
    """Run the service until a signal ends it.

    Args:
        on_ready: called once it listens. on_loaded: each time the model was loaded.
        ready_file: written once it listens, as one JSON object (host, port, pid, url), whole or
            not at all; removed at an orderly end.

    Raises:
        ShadowError: the journal, the model or the address cannot be used.
    """
    stop = _stop_on_signals()
    runtime = Runtime(settings)
    runtime.on_loaded = on_loaded
    async with runtime, listening(runtime) as address:
        with _announced(address, ready_file):
            on_ready(address)
            await stop.wait()


def run(
    settings: Settings,
    *,
    on_ready: Callable[[Address], None] = lambda _address: None,
    ready_file: Path | None = None,
) -> None:
    """``serve`` on an event loop of its own, for a process that does nothing else."""

    def settle() -> None:
        # What stands now stays: looking through it again and again for garbage, most of it the
        # modules of torch, takes a third of the time that a message takes.
        gc.collect()
        gc.freeze()

    def ready(address: Address) -> None:
        settle()
        on_ready(address)

    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, on_ready=ready, on_loaded=settle, ready_file=ready_file))


def _stop_on_signals() -> asyncio.Event:
    """An event that the first SIGINT or SIGTERM sets; the second one ends the process."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def heard(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard, number)
    return stop


@contextmanager
def _announced(address: Address, file: Path | None) -> Iterator[None]:
    if file is None:
        yield
        return
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_bytes(orjson.dumps({**asdict(address), "url": address.url}))
    part.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
