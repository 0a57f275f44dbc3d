"""A served runtime on a thread of its own, for commands that bring their own event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shadow_reader.runtime import Runtime
from shadow_reader.shadow.torch_engine import TorchEngine
from shadow_reader.shadow.vocabulary import load_vocabulary
from tests.http_api.serving import serving
from tests.shadow.models import MINIMAL, Fake

PATIENCE_S = 30.0
GRID = 64


def make_engine() -> TorchEngine:
    """The real engine around a model that only mixes bits, with room for Qwen's ids."""
    model = Fake(replace(MINIMAL, vocab=248_320))
    return TorchEngine(model, grid=GRID, cap_bytes=1 << 30, poison=True)


@dataclass(frozen=True, slots=True)
class Served:
    """The service under test: where it listens, its journal's file, and the runtime itself."""

    url: str
    journal: Path
    runtime: Runtime
    loop: asyncio.AbstractEventLoop

    def run(self, call: Any) -> Any:
        """Run a coroutine of the runtime's on its own loop."""
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(PATIENCE_S)


@contextmanager
def server_thread(folder: Path, *, model: bool = True, **settings: Any) -> Iterator[Served]:
    """Serve in the background; with ``model``, an engine and the real vocabulary."""
    ready = threading.Event()
    found: list[Served] = []
    stops: list[asyncio.Event] = []

    async def serve() -> None:
        if model:
            settings.update(engine=make_engine(), vocabulary=load_vocabulary("random:tiny"))
        stop = asyncio.Event()
        stops.append(stop)
        async with serving(folder, **settings) as served:
            loop = asyncio.get_running_loop()
            journal = served.runtime.settings.journal
            found.append(Served(served.address.url, journal, served.runtime, loop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S), "the server did not start"
        yield found[0]
    finally:
        if found:
            found[0].loop.call_soon_threadsafe(stops[0].set)
        thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the server did not end"
