"""A service on a disk that runs full: run on a small file system of its own, says what happened.

python -m tests.faults.full_child FOLDER
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from shadow_reader.config import Settings
from shadow_reader.errors import JournalFullError, ShadowError
from shadow_reader.events.ids import Ids
from shadow_reader.runtime import Runtime
from tests.fakes import FakeEngine, fake_vocabulary
from tests.faults.moving import prompt_of
from tests.store.disk_child import fill

NAMES = ("a", "b", "c")
QUESTION = [1, 2, 3]
CHUNKS = 60


def a_runtime(folder: Path) -> Runtime:
    """Memory for one and a half sessions."""
    settings = Settings(
        journal=folder / "shadow.db", disk=str(folder / "snapshots"), foreground="lease"
    )
    engine = FakeEngine(cap=100)
    return Runtime(settings, engine=engine, vocabulary=fake_vocabulary())


async def say_until_refused(shadow: Runtime, output: list[int]) -> str:
    """Deltas of session c until the disk takes no more; ``output`` is what was acknowledged."""
    while True:
        delta = [len(output) % 1000, 1, 2] * 200
        try:
            await shadow.output("c", "c1", offset=len(output), ids=delta)
        except JournalFullError as error:
            return error.code
        output += delta


async def exact(shadow: Runtime, known: dict[str, list[int]]) -> dict[str, bool]:
    """Whether each session's state is that of its whole ids."""
    found = {}
    for name, ids in known.items():
        await shadow.ask(name, QUESTION, ["yes", "no"])
        digest = await shadow.digest(name)
        read = Ids.of(ids).take(len(ids) // 8 * 8)
        found[name] = digest.position == len(read) and digest.digest == FakeEngine.hash_of(read)
    return found


async def main(folder: Path) -> dict[str, object]:
    """Feed, fill, see refusals, make room, go on; then start again."""
    report: dict[str, object] = {}
    known = {name: prompt_of(name, CHUNKS) for name in NAMES}
    output: list[int] = []
    async with a_runtime(folder) as shadow:
        for name in NAMES:
            await shadow.prompt(name, known[name], turn=f"{name}1")
            if name != "c":
                await shadow.end(name, f"{name}1")
            await shadow.wait_fresh(name)
        filler = fill(folder)
        report["refused"] = await say_until_refused(shadow, output)
        try:  # it must come back from the disk, and another one must go there
            await shadow.ask("a", QUESTION, ["yes", "no"], timeout_s=5)
            report["asked on a full disk"] = "answered"
        except ShadowError as error:
            report["asked on a full disk"] = error.code
        report["ready"] = shadow.state
        filler.unlink()
        again = [7] * 10
        await shadow.output("c", "c1", offset=len(output), ids=again)
        output += again
        known["c"] = known["c"] + output
        report["exact after it"] = await exact(shadow, known)
    async with a_runtime(folder) as shadow:
        report["exact after a start"] = await exact(shadow, known)
        status = await shadow.session_status("c")
        report["kept"] = status.known == len(known["c"])
    return report


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))  # noqa: T201  # its only output
