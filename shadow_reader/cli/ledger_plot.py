"""``replay ledger --plot``: behind over time, session by session, and how it is distributed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from shadow_reader.replay.ledger import Ledger
    from shadow_reader.replay.ledger.journaled import Measured
    from shadow_reader.replay.simulation.simulate import Outcome

MOST_SESSIONS: Final = 12
"""Sessions that are drawn over time: those with the most turns. More than that nobody can tell
apart."""
FRESH_IDS: Final = 512
INCHES: Final = (11.0, 3.2)
"""Width, and height of each policy's row."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Ids behind at the turn starts of one session, by hours since the ledger's first turn."""

    session: str
    hours: tuple[float, ...]
    behind: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """The distribution: at most ``behind[i]`` ids behind in the share ``share[i]`` of turns."""

    name: str
    behind: tuple[int, ...]
    share: tuple[float, ...]


def curves(ledger: Ledger, outcome: Outcome) -> tuple[Curve, ...]:
    """Behind over time, of the sessions with the most turns."""
    first_s = min(turn.start_s for turn in ledger.turns)
    longest = sorted(ledger.sessions.values(), key=lambda one: (-len(one.turns), one.name))
    by_session = outcome.by_session()
    return tuple(
        Curve(
            session.name,
            tuple((turn.start_s - first_s) / 3600 for turn in session.turns),
            tuple(by_session[session.name]),
        )
        for session in longest[:MOST_SESSIONS]
    )


def steps(name: str, values: Sequence[int]) -> Steps:
    """The share of turn starts that were at most so far behind."""
    ranked = sorted(values)
    return Steps(name, tuple(ranked), tuple((i + 1) / len(ranked) for i in range(len(ranked))))


def check_plot(path: Path) -> None:
    """Before minutes of simulating: whether a plot could be drawn there.

    Raises:
        BadParameter: matplotlib is missing, or the folder is.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter("--plot needs matplotlib: pip install 'shadow-reader[plot]'")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"--plot: there is no folder {path.parent}")
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"--plot writes .png, .svg or .pdf, not {path.name}")


def draw(
    path: Path, ledger: Ledger, outcomes: Sequence[Outcome], measured: Measured | None = None
) -> None:
    """Write the picture: a row of behind over time for each policy, and the distributions.

    Raises:
        BadParameter: the file cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    rows = len(outcomes) + 1
    figure = Figure(figsize=(INCHES[0], INCHES[1] * rows), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for axis, outcome in zip(axes, outcomes, strict=False):
        for curve in curves(ledger, outcome):
            axis.plot(curve.hours, curve.behind, drawstyle="steps-post", linewidth=0.8)
        _log(axis, f"{ledger.name}, {outcome.policy.name}: behind at turn starts, by session")
        axis.set_xlabel("hours")
        axis.set_ylabel("ids behind")
    last = axes[-1]
    found = [steps(outcome.policy.name, outcome.values()) for outcome in outcomes]
    if measured is not None:
        found.append(steps("measured", measured.values))
    for one in found:
        last.step(one.share, one.behind, where="post", label=one.name)
    _log(last, "how many turn starts were at most so far behind")
    last.set_xlabel("share of turn starts")
    last.set_ylabel("ids behind")
    last.legend(loc="upper left")
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise typer.BadParameter(f"--plot: {path} cannot be written: {error.strerror}") from error


def _log(axis: Any, title: str) -> None:
    axis.set_yscale("symlog", linthresh=FRESH_IDS)
    axis.axhline(FRESH_IDS, color="grey", linewidth=0.6, linestyle="--")
    axis.set_ylim(bottom=0)
    axis.set_title(title, fontsize=9)
