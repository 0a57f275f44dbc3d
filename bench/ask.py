"""Milliseconds per question by depth: the engine's whole ``ask``, its forward, and the floor.

    python -m bench.ask --model random:0.8B --device cuda --depths 40960 --json

A session of so many ids is read; then a tail and a question are read above it, and the letters'
rows of the output head give the answer. The forward is what it is without the engine: the same
ids through the model, until the device is done. Figures are medians; HTTP is not in them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from statistics import median

import torch

from bench.machine import Rates, measure_rates, this_machine, time_ms
from bench.read import floor_ms
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.model.load import load_model
from shadow_reader.shadow.model.qwen35 import Qwen35
from shadow_reader.shadow.torch_engine import TorchEngine

GRID = 512
LETTERS = tuple(range(26))
CAP_BYTES = 16 << 30


@dataclass(frozen=True, slots=True)
class Row:
    """One depth."""

    depth: int
    ask_ms: float
    forward_ms: float
    floor_ms: float


def main(arguments: list[str] | None = None) -> None:
    """Parse, measure, print: the table last, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--depths", default="4096", help="ids already read, by commas")
    parser.add_argument("--tail", type=int, default=330)
    parser.add_argument("--question", type=int, default=290)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)

    model = load_model(args.model, device=args.device)
    model.prepare()
    rates = measure_rates(model.device, model.dtype)
    depths = [int(depth) // GRID * GRID for depth in args.depths.split(",")]
    rows = [
        measure(model, depth, args.tail, args.question, args.repeats, rates) for depth in depths
    ]
    machine = this_machine(args.device)
    if args.json:
        head = {"model": args.model, "tail": args.tail, "question": args.question}
        body = {"machine": machine.to_json(), "rates": asdict(rates), "repeats": args.repeats}
        print(json.dumps(head | body | {"rows": [asdict(row) for row in rows]}))
        return
    print(machine.line())
    print(f"{args.model} {model.dtype}, tail {args.tail}, question {args.question} ids")
    print(f"{'depth':>8} {'ask ms':>10} {'forward ms':>10} {'floor ms':>10}")
    for row in rows:
        print(f"{row.depth:>8} {row.ask_ms:10.2f} {row.forward_ms:10.2f} {row.floor_ms:10.2f}")


def measure(model: Qwen35, depth: int, tail: int, question: int, repeats: int, rates: Rates) -> Row:
    """Read ``depth`` ids, then ask again and again."""
    engine = TorchEngine(model, grid=GRID, cap_bytes=CAP_BYTES)
    known = some_ids(model, depth, 1)
    engine.align("s", known)
    for _ in range(depth // GRID):
        engine.read_chunk("s", known)
    last, asked = some_ids(model, tail, 2), some_ids(model, question, 3)
    ids = torch.tensor([*last, *asked], device=model.device)
    standing = engine._sessions["s"].standing
    assert standing.state is not None, "the depth is at least a chunk"
    past, held = [page.rows for page in standing.pages], standing.state.state

    def ask() -> object:
        return engine.ask("s", tail=last, question=asked, letters=LETTERS)

    def forward() -> object:
        return model.forward(ids, position=depth, past=past, state=held)

    for work in (ask, forward) * 2:
        work()
    asks = [time_ms(ask, model.device) for _ in range(repeats)]
    forwards = [time_ms(forward, model.device) for _ in range(repeats)]
    floor = floor_ms(model, depth, rates, tail + question)
    return Row(depth, median(asks), median(forwards), floor)


def some_ids(model: Qwen35, n: int, seed: int) -> Ids:
    """``n`` ids of the model's vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return Ids.of(torch.randint(0, model.config.vocab, (n,), generator=generator).tolist())


if __name__ == "__main__":
    main()
