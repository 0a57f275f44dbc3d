"""Servers and proofs as processes that are forked, so that torch is imported once for all of them.

    python -m bench.faults_nursery

Law: the nursery itself runs no event loop and no forward, so what it forks starts like a new
process; it takes one request a line, tells of each child's beginning and end, and leaves no child
behind when its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Request = Mapping[str, Any]

READY_S: Final = 120.0
_QUIET: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""No library of a nursery may start threads, which a fork would lose."""


# -- the one who asks ------------------------------------------------------------------------------


@dataclass(slots=True)
class Child:
    """A forked process. ``ended`` gives its exit status, negative for a signal."""

    pid: int
    ended: asyncio.Future[int]

    @property
    def runs(self) -> bool:
        """Whether it was not seen to end."""
        return not self.ended.done()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        if self.runs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass(slots=True)
class Nursery:
    """A running nursery; made by ``open``."""

    _process: asyncio.subprocess.Process
    _children: dict[int, Child] = field(default_factory=dict)
    _born: asyncio.Queue[Child] = field(default_factory=asyncio.Queue)
    _listening: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls) -> Nursery:
        """Start one, and wait until it has imported everything."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.faults_nursery"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **_QUIET},
            cwd=Path(__file__).parents[1],
        )
        nursery = cls(process)
        async with asyncio.timeout(READY_S):
            hello = await nursery._read()
        assert hello == {"ready": True}, f"the nursery said {hello}"
        nursery._listening = asyncio.create_task(nursery._listen(), name="nursery")
        return nursery

    async def fork(self, job: str, **request: Any) -> Child:
        """A child that does ``job``: ``serve`` or ``prove``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": job, **request}).encode() + b"\n")
        return await self._born.get()

    async def close(self) -> None:
        """End it and every child that is left."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        if self._listening is not None:
            await self._listening

    async def _read(self) -> Any:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        return json.loads(line) if line else None

    async def _listen(self) -> None:
        while (said := await self._read()) is not None:
            pid = said["pid"]
            if "status" in said:
                self._children.pop(pid).ended.set_result(said["status"])
            else:
                ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                self._children[pid] = Child(pid, ended)
                self._born.put_nowait(self._children[pid])
        for child in self._children.values():
            child.ended.set_result(-signal.SIGKILL)
        self._children.clear()


# -- the nursery -----------------------------------------------------------------------------------


def main() -> None:
    """Fork a child for each line of the input; tell of every child that ended."""
    _warm()
    _say({"ready": True})
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    alive: set[int] = set()
    rest = b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(0, selectors.EVENT_READ)
        waiting.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in waiting.select()}
            if woken in ready:
                os.read(woken, 4096)
                _reap(alive)
            if 0 in ready:
                block = os.read(0, 1 << 16)
                if not block:
                    break
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    alive.add(_fork(json.loads(line)))
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _reap(alive, wait=True)


def _warm() -> None:
    """Import what servers and proofs need, and make the vocabulary that they all have."""
    import shadow_reader.http.serve
    import shadow_reader.replay.rebuild
    import shadow_reader.shadow.torch_engine  # noqa: F401  # imported to be there
    from shadow_reader import assembly
    from shadow_reader.shadow.vocabulary import load_vocabulary

    once = functools.cache(load_vocabulary)
    once("random:tiny")
    vars(assembly)["load_vocabulary"] = once
    gc.collect()
    gc.freeze()


def _say(what: Mapping[str, object]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _reap(alive: set[int], *, wait: bool = False) -> None:
    while alive:
        pid, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
        if pid == 0:
            return
        alive.discard(pid)
        with contextlib.suppress(BrokenPipeError):
            _say({"pid": pid, "status": os.waitstatus_to_exitcode(status)})


def _fork(request: Request) -> int:
    pid = os.fork()
    if pid == 0:
        _be_a_child(request)
    _say({"pid": pid})
    return pid


def _be_a_child(request: Request) -> None:
    """Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _JOBS[request["job"]](request)
        code = 0
    except BaseException:  # noqa: BLE001  # it ends here, and says why
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(request: Request) -> None:
    """What ``shadow-reader serve`` does."""
    import logging

    from shadow_reader.config import load_settings
    from shadow_reader.http.serve import run

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run(load_settings(overrides=request["settings"]), ready_file=Path(request["ready"]))


def _prove(request: Request) -> None:
    """A fresh prefill of every session of the journal, written down as JSON."""
    from bench.faults_proof import prove

    found = prove(request["settings"], Path(request["journal"]))
    part = Path(request["result"] + ".part")
    part.write_text(json.dumps(found))
    part.replace(request["result"])


_JOBS: Final[Mapping[str, Callable[[Request], None]]] = {"serve": _serve, "prove": _prove}

if __name__ == "__main__":
    main()
