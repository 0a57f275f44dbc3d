"""What the reader costs a serving model: the same requests with the reader on and off, in turns.

    python -m bench.ab --standin cpu --shadow random:tiny
    python -m bench.ab --upstream http://localhost:8000/v1 --name MODEL --shadow-url URL

Every run is a new session with a prompt of its own, so that the reader has all of it to read. The
arm without the reader is a hold, what anybody uses who wants the box quiet; the shadow is told of
every run alike, so the difference is the reading alone. Differences are paired, the order changes
from pair to pair. Exits with 1 when the decode rate lost more than ``--gate``, with 3 when the runs
are too few to tell.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from bench.ab_statistics import Result, Run, Verdict, compare, judge
from bench.ab_stream import Upstream
from bench.ingest_server import START_S, running_server
from bench.machine import this_machine
from shadow_reader.errors import ShadowError
from shadow_reader.http.client import ShadowClient

HOLD_S: Final = 3600.0
LOAD_S: Final = 300.0
EXIT: Final[dict[Verdict, int]] = {"passed": 0, "missed": 1, "too few runs to tell": 3}
VOCABULARY: Final = 200_000
"""Prompts are random ids below: text of every vocabulary that is read."""

Arm = Literal["off", "on"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        runs: of each arm. prompt, output: ids of a run. pause_s: between two.
    """

    runs: int
    prompt: int
    output: int
    pause_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it.

    Attributes:
        chunk_ms: what a chunk took the reader, on average. share_used: of the decode time of the
            runs with the reader. read_ids: in those runs.
        made_up: the server streams no ids.
    """

    result: Result
    runs: tuple[Run, ...]
    chunk_ms: float
    share_used: float
    read_ids: int
    made_up: bool


async def run_all(plan: Plan, upstream: Upstream, shadow: ShadowClient) -> Found:
    """Every run of both arms."""
    chance = random.Random(plan.seed)
    runs: list[Run] = []
    used = decoded = 0.0
    made_up = False
    before = await _counted(shadow)
    for pair in range(plan.runs):
        order: tuple[Arm, Arm] = ("off", "on") if pair % 2 == 0 else ("on", "off")
        for arm in order:
            session = f"ab-{plan.seed}-{pair}-{arm}"
            prompt = [chance.randrange(VOCABULARY) for _ in range(plan.prompt)]
            hold = await shadow.hold("bench.ab", HOLD_S) if arm == "off" else None
            try:
                await asyncio.sleep(plan.pause_s)
                answer = await upstream.ask(
                    prompt, plan.output, shadow=shadow, session=session, turn="t"
                )
                runs.append(Run(arm, len(answer.ids), answer.ttft_s, answer.rate))
                made_up |= answer.made_up
                if arm == "on":
                    share = await _ration(shadow, session)
                    used, decoded = used + share[0], decoded + answer.last_s - answer.ttft_s
                await shadow.erase(session)
            finally:
                if hold is not None:
                    await shadow.end_hold(hold.hold)
            said = f"{session}: {answer.rate:.2f} ids/s, first {answer.ttft_s:.3f} s"
            print(said, file=sys.stderr, flush=True)
    after = await _counted(shadow)
    chunks, seconds, ids = (b - a for a, b in zip(before, after, strict=True))
    return Found(
        compare(runs, seed=plan.seed),
        tuple(runs),
        round(1000 * seconds / chunks, 3) if chunks else 0.0,
        round(used / decoded, 6) if decoded else 0.0,
        int(ids),
        made_up,
    )


async def _counted(shadow: ShadowClient) -> tuple[float, float, float]:
    """Chunks read, their seconds, their ids, since the shadow's start."""
    text = await shadow.metrics()

    def total(name: str) -> float:
        rows = re.findall(rf"^shadow_reader_{name}_total\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
        return sum(float(value) for value in rows)

    return total("read_chunks"), total("read_seconds"), total("read_ids")


async def _ration(shadow: ShadowClient, session: str) -> tuple[float, int]:
    """Seconds of the session's turn that the reader used, as it journaled them, and slices."""
    for _ in range(40):  # it is journaled when the reader next looks
        rows = [row async for row in shadow.journal(session=session, kind="ration.used")]
        if rows:
            break
        await asyncio.sleep(0.05)
    return sum(row["used_ms"] for row in rows) / 1000, sum(row["slices"] for row in rows)


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Processes that are started meanwhile stay on one core: a device that both must share."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def stand_in(folder: Path, options: Sequence[str]) -> Iterator[str]:
    """A stand-in model in a process of its own; its address."""
    ready = folder / "standin.json"
    words = [sys.executable, "-m", "bench.standin", "--ready", str(ready), *options]
    with (folder / "standin.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + START_S
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (folder / "standin.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"the stand-in did not start: {said}")
                time.sleep(0.05)
            yield json.loads(ready.read_text())["url"]
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, and say by the exit code whether the gate was kept."""
    args = _parse(argv)
    plan = Plan(args.runs, args.prompt, args.output, args.pause, args.seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shadow_url, upstream = _set_up(args, folder, stack)

        async def go() -> Found:
            async with ShadowClient(shadow_url) as shadow:
                await shadow.load(timeout_s=LOAD_S)
                return await run_all(plan, upstream, shadow)

        try:
            found = asyncio.run(go())
        except ShadowError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    verdict = judge(found.result.rate_change, args.gate)
    if args.json:
        body = {"verdict": verdict, "gate": args.gate, **asdict(found), "plan": asdict(plan)}
        print(json.dumps(body | {"machine": this_machine().to_json()}))
    else:
        _show(found, verdict, args.gate)
    return EXIT[verdict]


def _set_up(args: argparse.Namespace, folder: Path, stack: ExitStack) -> tuple[str, Upstream]:
    """Start what is not there yet: the shadow's address, and the serving model."""
    shadow_url: str = args.shadow_url
    if not shadow_url:
        settings: dict[str, object] = {
            "model": args.shadow,
            "disk": "off",
            "threads": 1,
            "turn_share": args.share,
            "rounds": args.rounds,
            "turn_timeout_s": 600.0,
        }
        with on_core(args.core):
            server = stack.enter_context(running_server(folder, settings))
        shadow_url = server.url
    if args.upstream:
        return shadow_url, Upstream(args.upstream.rstrip("/"), args.name, args.key)
    options = ["--rate", str(args.rate), "--prefill", str(args.prefill), "--device", args.standin]
    if args.weights or args.standin == "cuda":
        options += ["--weights", args.weights or "27B"]
    if args.rounds == "called":
        options += ["--shadow", shadow_url]
    with on_core(args.core):
        return shadow_url, Upstream(stack.enter_context(stand_in(folder, options)), "stand-in")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--upstream", help="an OpenAI-compatible server, up to /v1")
    parser.add_argument("--name", default="model", help="what the model is called there")
    parser.add_argument("--key", help="its key")
    parser.add_argument("--standin", choices=("cpu", "cuda"), help="start a stand-in instead")
    parser.add_argument("--weights", help="the stand-in reads these for each id: tiny or 27B")
    parser.add_argument("--rate", type=float, default=36.0, help="the stand-in's ids a second")
    parser.add_argument("--prefill", type=float, default=2000.0, help="its prompt ids a second")
    parser.add_argument("--core", type=int, help="stand-in and shadow share this processor core")
    parser.add_argument("--shadow-url", default="", help="a shadow that runs; else one is started")
    parser.add_argument("--shadow", default="random:tiny", help="the model of the one started")
    parser.add_argument("--rounds", choices=("called", "streamed"), default="called")
    parser.add_argument("--share", type=float, default=0.02)
    parser.add_argument("--runs", type=int, default=6, help="of each arm")
    parser.add_argument("--prompt", type=int, default=16_350, help="ids")
    parser.add_argument("--output", type=int, default=346, help="ids")
    parser.add_argument("--pause", type=float, default=1.5, help="seconds between requests")
    parser.add_argument("--gate", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if bool(args.upstream) == bool(args.standin):
        parser.error("give --upstream or --standin")
    for name, least in (("runs", 1), ("prompt", 1), ("output", 2)):
        if getattr(args, name) < least:
            parser.error(f"--{name} must be at least {least}, not {getattr(args, name)}")
    return args


def _show(found: Found, verdict: Verdict, gate: float) -> None:
    result = found.result
    rate, ttft = result.rate_change, result.ttft_change_s
    print(this_machine().line())
    if found.made_up:
        print("the server streams no ids: its pieces of text were counted, the ids are made up")
    print(f"{'':22}{'off':>10}{'on':>10}{'paired':>10}   95 %")
    print(
        f"{'ids a second':22}{result.rate_off:10.2f}{result.rate_on:10.2f}{rate.median:10.2%}   "
        f"{rate.low:.2%} to {rate.high:.2%}"
    )
    print(
        f"{'time to first id, s':22}{result.ttft_off_s:10.3f}{result.ttft_on_s:10.3f}"
        f"{ttft.median:10.3f}   {ttft.low:.3f} to {ttft.high:.3f}"
    )
    print(
        f"a chunk took {found.chunk_ms:.1f} ms; {found.read_ids:,} ids were read, "
        f"{found.share_used:.2%} of the decode time used"
    )
    print(f"gate {gate:.1%} of the decode rate: {verdict}")


if __name__ == "__main__":
    sys.exit(main())
