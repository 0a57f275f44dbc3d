"""A whole service over a small model, and what a fresh prefill of the same ids gives.

``Fake`` stands in for the model's arithmetic alone (see ``tests/shadow/models.py``), where real
sizes would take a CPU minutes; everything around it is the real thing: engine, pages, journal,
snapshots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from safetensors.torch import load

from shadow_reader.config import Settings
from shadow_reader.errors import NotFoundError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.status import SessionStatus
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.fakes import fake_vocabulary
from tests.shadow.models import Fake, Watched, small_model
from tests.shadow.states import GIB, make_ids, read_all, same_bits, tensors

GRID: Final = 512
PATIENCE_S: Final = 60.0
CHOICES: Final = ("yes", "no")
LETTERS: Final = tuple(fake_vocabulary().letter_ids(len(CHOICES)))
QUESTION: Final = [5, 6, 7, 8, 9]


def served(folder: Path, model: Watched, **changes: Any) -> Runtime:
    """A service in ``folder``, with snapshots beside its journal; each has an engine of its own."""
    return Runtime(
        Settings(**{"journal": folder / "shadow.db", "ask_timeout_s": PATIENCE_S, **changes}),
        engine=engine_of(model),
        vocabulary=fake_vocabulary(),
    )


def engine_of(model: Watched) -> TorchEngine:
    """An engine on the service's grid; pages that hold nothing are NaN."""
    return TorchEngine(model, grid=GRID, cap_bytes=GIB, poison=True)


def twin(model: Watched) -> Watched:
    """The same model as another one, for whoever is compared with."""
    return Fake(model.config) if isinstance(model, Fake) else small_model(config=model.config)


def ids(count: int, seed: int, model: Watched) -> list[int]:
    """Random ids of the model's vocabulary."""
    return list(make_ids(count, seed, model.config.vocab))


async def turn(
    shadow: Runtime,
    session: str,
    name: str,
    prompt: Sequence[int],
    output: Sequence[int] = (),
    **end: Any,
) -> None:
    """A whole turn, its output in deltas of 7 ids."""
    await shadow.prompt(session, list(prompt), turn=name)
    for offset in range(0, len(output), 7):
        await shadow.output(session, name, offset=offset, ids=list(output[offset : offset + 7]))
    await shadow.end(session, name, **end)


async def read_to_the_end(shadow: Runtime, session: str) -> SessionStatus:
    """Wait until less than a chunk of the session is unread."""
    return await shadow.wait_fresh(session, timeout_s=PATIENCE_S)


async def assert_like_fresh(
    shadow: Runtime, session: str, known: Sequence[int], model: Watched
) -> None:
    """All of ``known`` is known and read, and every bit is that of a prefill by another engine."""
    status = await read_to_the_end(shadow, session)
    line = len(known) // GRID * GRID
    assert (status.known, status.committed, status.behind) == (len(known), line, len(known) - line)
    assert (status.fresh, status.mismatches) == (True, 0)
    other = engine_of(twin(model))
    read_all(other, "fresh", Ids.of(known))
    if not line:
        with pytest.raises(NotFoundError):
            await shadow.digest(session)
        return
    found = await shadow.digest(session)
    assert (found.position, found.digest) == (line, other.digest("fresh"))
    assert same_bits(load(await shadow.export(session)), tensors(other, "fresh"))


def fresh_odds(known: Sequence[int], model: Watched) -> tuple[float, ...]:
    """What another engine that read nothing else answers to ``QUESTION``."""
    other = engine_of(twin(model))
    read_all(other, "fresh", Ids.of(known))
    tail = Ids.of(known[len(known) // GRID * GRID :])
    return other.ask("fresh", tail=tail, question=Ids.of(QUESTION), letters=LETTERS)


def chunks_read(model: Watched) -> list[int]:
    """Where the chunks begin that were read since the last look, in order."""
    starts = [position for position, count in model.calls if count == GRID]
    model.calls.clear()
    return starts


def lines(start: int, stop: int) -> list[int]:
    """Where the whole chunks of ids [start, stop) begin; ``start`` is a grid line."""
    return list(range(start, stop // GRID * GRID, GRID))


async def events(shadow: Runtime, session: str, *kinds: str) -> list[t.Event]:
    """The session's journaled events of some kinds."""
    entries = shadow.journal_entries(session=session, kinds=kinds)
    return [entry.event async for entry in entries]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that is about to happen; fail if it does not."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.005)
