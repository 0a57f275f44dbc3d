"""Milliseconds per id that is written on a fork, by depth, and the floor: what a summary costs.

    python -m bench.decode --model random:0.8B --device cuda --depths 40960 --json

A session of so many ids is read; then a tail and a prompt are read above it, and ids are written
one after the other, as the narrator does it. The first piece's time has the tail and the prompt in
it and stands by itself; the others are a forward of one id each, and the bytes of all weights are
their floor. Figures are medians.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from statistics import median

from bench.ask import CAP_BYTES, GRID, some_ids
from bench.machine import Rates, measure_rates, this_machine
from shadow_reader.shadow.model.load import load_model
from shadow_reader.shadow.model.qwen35 import Qwen35
from shadow_reader.shadow.torch_engine import TorchEngine


@dataclass(frozen=True, slots=True)
class Row:
    """One depth.

    Attributes:
        first_ms: tail and prompt, and the first id. id_ms: each of the others.
    """

    depth: int
    first_ms: float
    id_ms: float
    floor_ms: float


def main(arguments: list[str] | None = None) -> None:
    """Parse, measure, print: the table last, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--depths", default="512,4096", help="ids already read, by commas")
    parser.add_argument("--tail", type=int, default=330)
    parser.add_argument("--prompt", type=int, default=40)
    parser.add_argument("--ids", type=int, default=64, help="written each time")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    if args.ids < 2:
        parser.error(f"--ids must be at least 2, not {args.ids}")

    model = load_model(args.model, device=args.device)
    model.prepare()
    rates = measure_rates(model.device, model.dtype)
    depths = [int(depth) // GRID * GRID for depth in args.depths.split(",")]
    rows = [
        measure(model, depth, args.tail, args.prompt, args.ids, args.repeats, rates)
        for depth in depths
    ]
    machine = this_machine(args.device)
    if args.json:
        head = {"model": args.model, "tail": args.tail, "prompt": args.prompt, "ids": args.ids}
        body = {"machine": machine.to_json(), "rates": asdict(rates), "repeats": args.repeats}
        print(json.dumps(head | body | {"rows": [asdict(row) for row in rows]}))
        return
    print(machine.line())
    print(f"{args.model} {model.dtype}, tail {args.tail}, prompt {args.prompt}, {args.ids} ids")
    print(f"{'depth':>8} {'first ms':>10} {'an id ms':>10} {'floor ms':>10}")
    for row in rows:
        print(f"{row.depth:>8} {row.first_ms:10.2f} {row.id_ms:10.3f} {row.floor_ms:10.3f}")


def measure(
    model: Qwen35, depth: int, tail: int, prompt: int, ids: int, repeats: int, rates: Rates
) -> Row:
    """Read ``depth`` ids, then write above them again and again."""
    engine = TorchEngine(model, grid=GRID, cap_bytes=CAP_BYTES)
    known = some_ids(model, depth, 1)
    engine.align("s", known)
    for _ in range(depth // GRID):
        engine.read_chunk("s", known)
    last, asked = some_ids(model, tail, 2), some_ids(model, prompt, 3)
    firsts, others = [], []
    for repeat in range(repeats + 1):
        writing = engine.write("s", tail=last, prompt=asked, most=ids)
        times = []
        for _ in range(ids):
            engine.synchronise()
            began = time.perf_counter()
            writing.next(1, ())
            engine.synchronise()
            times.append(1000 * (time.perf_counter() - began))
        writing.release()
        if repeat:  # the first time warms up
            firsts.append(times[0])
            others += times[1:-1]  # the last one is written without a forward behind it
    row_bytes = depth * model.config.row_bytes(model.dtype.itemsize)
    floor = 1000 * (model.weight_bytes + row_bytes) / rates.bytes
    return Row(depth, median(firsts), median(others), floor)


if __name__ == "__main__":
    main()
