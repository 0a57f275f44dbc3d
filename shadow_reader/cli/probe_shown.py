"""How right a probe is, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from shadow_reader.cli.output import facts, people, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shadow_reader.replay.probes.measure import Measured


def show_skipped(skipped: Mapping[str, int]) -> None:
    """What was left out, and why."""
    for why, count in skipped.items():
        people().print(Text(f"left out: {count:,}: {why}", "yellow"))


def show_measured(title: str, found: Measured) -> None:
    """The figures, by class, and what was said in place of what."""
    console, metrics = people(), found.metrics
    rows: list[tuple[str, object]] = [
        ("accuracy", f"{metrics.accuracy:.1%}"),
        ("the constant", f"{metrics.constant:.1%}"),
        ("better by", f"{metrics.accuracy - metrics.constant:+.1%}"),
        ("95 %, by session", f"{100 * metrics.low:+.1f} to {100 * metrics.high:+.1f} %"),
        ("macro F1", f"{metrics.macro_f1:.3f}"),
        ("calibration error", f"{metrics.calibration_error:.3f}"),
    ]
    console.print(facts(f"{title}: {metrics.n:,} answers", rows))
    names = [one.name for one in found.by_class]
    cells = [
        (
            *(one.name, one.labels, one.right, f"{one.f1:.3f}"),
            *(found.confusion.get(one.name, {}).get(name, 0) for name in names),
        )
        for one in found.by_class
    ]
    columns = ("", "#labels", "#right", "#F1", *(f"#{name}" for name in names))
    console.print(table("by class, and what was answered", columns, cells))
    if metrics.low > 0:
        console.print(Text("better than the constant answer", "green"))
    else:
        console.print(Text("not shown to be better than the constant answer", "yellow"))


def measured_json(found: Measured) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "metrics": asdict(found.metrics),
        "classes_measured": [{**asdict(one), "f1": one.f1} for one in found.by_class],
        "confusion": found.confusion,
    }
