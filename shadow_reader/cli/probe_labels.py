"""Which labels of a journal a probe is trained on, or held against: options, and their sense."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from shadow_reader.cli.journal import moment
from shadow_reader.cli.output import errors

if TYPE_CHECKING:
    from shadow_reader.replay.probes.labels import Wanted

RouterFlag: TypeAlias = Annotated[
    bool,
    typer.Option("--router", help="Labels: the classes that the server's own router gave turns."),
]
LabelOption: TypeAlias = Annotated[
    str | None, typer.Option("--label", metavar="NAME", help="Labels: what was said of this name.")
]
SourceOption: TypeAlias = Annotated[
    str | None, typer.Option("--source", help="With --label: only what this source said.")
]
DecidedFlag: TypeAlias = Annotated[
    bool, typer.Option("--decided-only", help="With --router: only what it decided on the turn.")
]
ClassesOption: TypeAlias = Annotated[
    str | None, typer.Option("--classes", metavar="A,B", help="Only labels of these classes.")
]
LeastOption: TypeAlias = Annotated[
    int, typer.Option("--min-ids", help="Only labels about so many ids or more.", min=0)
]
SnapshotsFlag: TypeAlias = Annotated[
    bool, typer.Option(help="Begin with the journal's snapshots where they fit.")
]

_COLUMNS: Final = (
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
    TimeElapsedColumn(),
)


def chosen(
    *,
    router: bool,
    label: str | None,
    source: str | None,
    decided: bool,
    classes: str | None,
    least_ids: int,
    session: str | None,
    since: str | None,
    until: str | None,
    told: str | None = None,
) -> Wanted:
    """The labels that are meant.

    Args:
        told: whose labels a probe learned: what is meant where nothing is said.

    Raises:
        BadParameter: options that contradict each other.
    """
    from dataclasses import replace

    from shadow_reader.replay.probes.labels import Wanted

    if router and label is not None:
        raise typer.BadParameter("--router and --label NAME: one of them")
    if not router and label is None and told is None:
        raise typer.BadParameter("which labels? give --router, or --label NAME")
    whose = Wanted(name=label) if router or label is not None else Wanted.as_told(told or "")
    if source is not None:
        if whose.name is None:
            raise typer.BadParameter("--source is about labels: give --label NAME")
        whose = replace(whose, source=source)
    if decided and whose.name is not None:
        raise typer.BadParameter("--decided-only is about the router's classes: give --router")
    only = tuple(part.strip() for part in classes.split(",")) if classes is not None else ()
    if classes is not None and (len(set(only)) < 2 or "" in only):
        raise typer.BadParameter(f"--classes names two at least, by commas, not {classes!r}")
    return replace(
        whose,
        decided=decided,
        classes=only,
        least_ids=least_ids,
        session=session,
        since=moment(since, "since"),
        until=moment(until, "until"),
    )


class Bars:
    """Progress on standard error: lines of talk that are read, then fits."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar = progress.add_task("", total=0)

    def begun(self, done: int, every: int, line: str) -> None:
        """A line of talk is next."""
        told = f"session {done + 1} of {every}: {line}"
        self._progress.update(self._bar, description=told, completed=0, total=0)

    def read(self, done: int, total: int) -> None:
        """So many of its ids are read."""
        self._progress.update(self._bar, completed=done, total=total)

    def fitted(self, done: int, total: int) -> None:
        """So many fits are done."""
        self._progress.update(self._bar, description="fitting", completed=done, total=total)


@contextmanager
def bars() -> Iterator[Bars]:
    """Shown as long as it lasts."""
    with Progress(*_COLUMNS, console=errors(), transient=True) as progress:
        yield Bars(progress)
