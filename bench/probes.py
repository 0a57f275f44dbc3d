"""Seconds that training a probe takes, by hidden size and classes; and what asking one takes.

    python -m bench.probes --labels 10000 --hidden 1024,2048 --classes 2,9,26 --json

Made vectors, as correlated as a model's are: a tenth of the directions has most of the variance.
Each session has an offset of its own. The time is that of all of it with the default rules: five
parts that are held out, in each the choice of strength by three parts of the rest, and the last fit
of everything; on one thread, and of one layer (each more to choose from adds the choosing again).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

from bench.machine import this_machine
from shadow_reader.events.ids import Ids
from shadow_reader.replay.probes.fit import Examples, Fitted, Floats, fit
from shadow_reader.shadow.probe_file import TrainedProbe, packed

ASKED = 200


@dataclass(frozen=True, slots=True)
class Row:
    """One size.

    Attributes:
        fit_s: of the whole training. classify_ms: of one answer, the forward left out; median.
        file_bytes: of the probe.
    """

    hidden: int
    classes: int
    fit_s: float
    strength: float
    accuracy: float
    constant: float
    classify_ms: float
    file_bytes: int


def main(arguments: list[str] | None = None) -> None:
    """Parse, measure, print: the table last, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--labels", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--hidden", default="1024,2048", help="sizes of a vector, by commas")
    parser.add_argument("--classes", default="2,9,26", help="by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)

    rows = [
        measure(args.labels, args.sessions, hidden, classes, args.seed)
        for hidden in map(int, args.hidden.split(","))
        for classes in map(int, args.classes.split(","))
    ]
    machine = this_machine()
    if args.json:
        head = {"labels": args.labels, "sessions": args.sessions, "seed": args.seed}
        body = {"machine": machine.to_json(), **head}
        print(json.dumps(body | {"rows": [asdict(row) for row in rows]}))
        return
    print(machine.line())
    print(f"{args.labels} labels of {args.sessions} sessions, seed {args.seed}")
    print(
        f"{'hidden':>7} {'classes':>8} {'fit s':>8} {'strength':>9} {'accuracy':>9} "
        f"{'constant':>9} {'classify ms':>12} {'file bytes':>11}"
    )
    for row in rows:
        print(
            f"{row.hidden:>7} {row.classes:>8} {row.fit_s:8.1f} {row.strength:9g} "
            f"{row.accuracy:9.3f} {row.constant:9.3f} {row.classify_ms:12.3f} {row.file_bytes:>11}"
        )


def measure(labels: int, sessions: int, hidden: int, classes: int, seed: int) -> Row:
    """Train once, then ask again and again."""
    examples = made(labels, sessions, hidden, classes, seed)
    began = time.perf_counter()
    fitted = fit(examples)
    fit_s = time.perf_counter() - began
    probe = probe_of(fitted, labels, sessions)
    times = []
    for vector in examples.vectors[0][:ASKED]:
        began = time.perf_counter()
        probe.classify(vector)
        times.append(1000 * (time.perf_counter() - began))
    metrics = fitted.measured.metrics
    return Row(
        *(hidden, classes, fit_s, fitted.choice.strength, metrics.accuracy, metrics.constant),
        *(median(times), len(packed(probe))),
    )


def made(labels: int, sessions: int, hidden: int, classes: int, seed: int) -> Examples:
    """Vectors with something to learn in them."""
    chance = np.random.default_rng(seed)
    spread = np.exp(-np.arange(hidden) * 10 / hidden)[:, None]
    mixing = (spread * chance.standard_normal((hidden, hidden))).astype(np.float32)
    whose = np.arange(labels) % sessions
    offsets = chance.standard_normal((sessions, hidden), dtype=np.float32)
    rows: Floats = chance.standard_normal((labels, hidden), dtype=np.float32)
    rows = (rows + 0.3 * offsets[whose]) @ mixing
    shown = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    weights = chance.standard_normal((hidden, classes), dtype=np.float32) / np.sqrt(hidden)
    codes = (1.5 * shown @ weights + chance.gumbel(size=(labels, classes))).argmax(axis=1)
    names = [f"class {code:02}" for code in codes]
    return Examples({0: rows.astype(np.float32)}, names, [f"session {one}" for one in whose])


def probe_of(fitted: Fitted, labels: int, sessions: int) -> TrainedProbe:
    """What ``probe train`` would make of it."""
    return TrainedProbe(
        name="bench",
        source="labels:bench",
        weights="none",
        grid=512,
        layer=fitted.choice.layer,
        last=1,
        suffix=Ids.of([0]),
        classes=fitted.classes,
        mean=fitted.linear.mean,
        scale=fitted.linear.scale,
        coef=fitted.linear.coef,
        intercept=fitted.linear.intercept,
        strength=fitted.choice.strength,
        first_seq=1,
        last_seq=labels,
        labels=labels,
        sessions=sessions,
        metrics=fitted.measured.metrics,
    )


if __name__ == "__main__":
    main()
