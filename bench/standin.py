"""A stand-in for a big serving model: OpenAI's ``/v1/completions``, streamed, with nothing to say.

    python -m bench.standin --rate 36 --prefill 2000 --ready FILE

Its time is spent on real work, a fixed amount for each id of the prompt and of the output, so that
whatever else runs on the same device slows it down as it would a real model. On the CPU the work is
matrix products of the size of a cache; ``--weights`` holds a model's matrices instead and reads all
of them for each id, on the CPU or on a GPU (``27B``: about 50 GB in bfloat16).
With ``--shadow URL`` it pauses between ids and calls the shadow's rounds, as an engine does that
can; then nothing is read while it works.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from aiohttp import web

from bench.ab_stream import SESSION_HEADER, TURN_HEADER
from shadow_reader.errors import ShadowError
from shadow_reader.http.client import ShadowClient

CACHE_SIZE: Final = 384
"""Rows of the square matrices that are multiplied: 0.6 MB each."""
SHAPES: Final = {"27B": (64, 5120, 17_408, 16_384), "tiny": (2, 64, 128, 96)}
"""Layers, hidden, intermediate, columns of all attention projections."""
VOCABULARY: Final = 248_320
SLICE_S: Final = 0.02
"""Prefill is done in pieces of about so long, so that the event loop lives."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much work an id is: units for one of the output, and for one of the prompt."""

    decode_units: int
    prefill_units: float
    unit_s: float


def cache_work() -> Callable[[int], None]:
    """So many products of matrices that stay in the cache."""
    left = np.random.default_rng(1).random((CACHE_SIZE, CACHE_SIZE), dtype=np.float32)
    right = left.T.copy()
    out = np.empty_like(left)

    def work(units: int) -> None:
        for _ in range(units):
            np.matmul(left, right, out=out)

    return work


def weights_work(shape: str, device: str) -> Callable[[int], None]:
    """So many passes of one id through a model's matrices; its weights are all read each time."""
    layers, hidden, intermediate, attention = SHAPES[shape]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device=device, dtype=dtype).div_(rows**0.5)

    stack = [(matrix(hidden, attention), matrix(hidden, 3 * intermediate)) for _ in range(layers)]
    row = torch.randn(1, hidden, device=device, dtype=dtype)

    @torch.inference_mode()
    def work(units: int) -> None:
        for _ in range(units):
            for first, second in stack:
                torch.matmul(row, first)
                torch.matmul(row, second)
        if device == "cuda":
            torch.cuda.synchronize()

    return work


def paced(work: Callable[[int], None], rate: float, prefill: float) -> Pace:
    """How much of ``work`` makes ``rate`` ids a second, alone; 0: one unit an id."""
    work(3)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        work(2)
        times.append((time.perf_counter() - began) / 2)
    unit_s = min(times)
    decode = max(1, round(1 / rate / unit_s)) if rate else 1
    return Pace(decode, 1 / prefill / unit_s, unit_s)


class StandIn:
    """The server.

    Args:
        shadow: called between ids; None: it does not pause.
    """

    def __init__(self, work: Callable[[int], None], pace: Pace, shadow: str | None) -> None:
        self._work = work
        self._pace = pace
        self._shadow = shadow
        self._one = asyncio.Lock()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """One request at a time, as a box that serves one person."""
        body = await request.json()
        prompt, count = body.get("prompt"), body.get("max_tokens")
        if not isinstance(prompt, list) or not prompt or not isinstance(count, int) or count < 1:
            return web.json_response(
                {"error": {"message": "prompt must be ids, max_tokens at least 1"}}, status=400
            )
        session = request.headers.get(SESSION_HEADER, "")
        turn = request.headers.get(TURN_HEADER, "")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        async with self._one:
            await self._prefill(len(prompt))
            await response.prepare(request)
            async with _client(self._shadow) as client:
                for number in range(count):
                    await asyncio.to_thread(self._work, self._pace.decode_units)
                    token = (prompt[-1] + 7 * number) % VOCABULARY
                    choice = {"index": 0, "text": "", "token_ids": [token]}
                    await _write(response, {"choices": [choice]})
                    if client is not None and number:
                        await _round(client, session, turn)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _prefill(self, ids: int) -> None:
        left = round(ids * self._pace.prefill_units)
        piece = max(1, round(SLICE_S / self._pace.unit_s))
        while left > 0:
            await asyncio.to_thread(self._work, min(piece, left))
            left -= piece


class _NoClient:
    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        return None


def _client(url: str | None) -> ShadowClient | _NoClient:
    return _NoClient() if url is None else ShadowClient(url)


async def _round(client: ShadowClient, session: str, turn: str) -> None:
    try:
        await client.round(session, turn)
    except ShadowError as error:
        # The shadow may be away, or not have heard of the turn's first id: the model goes on.
        print(f"round: {error}", flush=True)


async def _write(response: web.StreamResponse, chunk: dict[str, object]) -> None:
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


async def serve(stand_in: StandIn, ready: Path) -> None:
    """Listen on a free port, say where in ``ready``, until the process is stopped."""
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/v1/completions", stand_in.completions)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    written = ready.with_suffix(".part")
    written.write_text(json.dumps({"url": f"http://{host}:{port}/v1", "pid": os.getpid()}))
    written.rename(ready)
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rate", type=float, default=36.0, help="ids a second; 0: as they come")
    parser.add_argument("--prefill", type=float, default=2000.0, help="ids of a prompt a second")
    parser.add_argument("--weights", choices=tuple(SHAPES), help="read these for each id")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shadow", help="call rounds there")
    parser.add_argument("--core", type=int, help="stay on this processor core")
    parser.add_argument("--ready", type=Path, required=True)
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    torch.set_num_threads(1)
    work = weights_work(args.weights, args.device) if args.weights else cache_work()
    stand_in = StandIn(work, paced(work, args.rate, args.prefill), args.shadow)
    asyncio.run(serve(stand_in, args.ready))


if __name__ == "__main__":
    main()
