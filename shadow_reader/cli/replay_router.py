"""``shadow-reader replay router``: journaled questions asked again, offline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from shadow_reader.cli.journal import (
    LimitOption,
    SessionFilter,
    SinceOption,
    TurnFilter,
    UntilOption,
    moment,
)
from shadow_reader.cli.options import (
    DeviceOption,
    GridOption,
    JsonFlag,
    MemoryOption,
    ModelOption,
    ThreadsOption,
    invocation,
)
from shadow_reader.cli.output import ExitCode, errors, people, print_json, table

if TYPE_CHECKING:
    from shadow_reader.config import Settings
    from shadow_reader.replay.ledger.freshness import Interval
    from shadow_reader.replay.router.control import EngineControl
    from shadow_reader.replay.router.evaluate import Report
    from shadow_reader.replay.router.figures import Figures, Share, VariantFigures
    from shadow_reader.replay.router.past import Filter
    from shadow_reader.replay.router.wordings import Variant

TOLERANCE: Final = 0.02
_COLUMNS: Final = (
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    TextColumn("{task.completed:,.0f} of {task.total:,.0f} ids"),
    TimeElapsedColumn(),
)
_SAYS: Final = {
    "holds": "the control holds",
    "fails": "the control FAILS",
    "nothing to compare": "no control: every answer is another model's",
}
_STYLES: Final = {"holds": "green", "fails": "bold red", "nothing to compare": "yellow"}


def replay_router(
    context: typer.Context,
    journal: Annotated[
        Path, typer.Argument(help="The journal's file, also while a server writes it.")
    ],
    wording: Annotated[
        list[str] | None,
        typer.Option(
            "--wording",
            metavar="FILE",
            help="Ask also in these words: a TOML file with question, chat, [classes]; or "
            '"labels": the classes without what they mean. May be repeated.',
        ),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option("--profile", help="Ask also as this profile of the settings does; repeatable"),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option("--classes", metavar="A,B", help="Only these, and only turns of these."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Each way also divided by the question's prior.")
    ] = False,
    decided_only: Annotated[
        bool, typer.Option("--decided-only", help="Only turns whose class was decided on them.")
    ] = False,
    behind: Annotated[
        int | None, typer.Option("--behind", help="Only where at most so many ids behind.", min=0)
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", "-w", help="FIELD OP VALUE, as in journal query; repeatable."),
    ] = None,
    session: SessionFilter = None,
    turn: TurnFilter = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: LimitOption = None,
    ordinary: Annotated[
        bool, typer.Option("--ordinary", help="Callers' questions instead of the router's.")
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            help="Of a probability, where the same weights answer on another grid or build.", min=0
        ),
    ] = TOLERANCE,
    snapshots: Annotated[
        bool, typer.Option(help="Begin with the journal's snapshots where they fit.")
    ] = True,
    model: ModelOption = None,
    device: DeviceOption = None,
    grid: GridOption = None,
    threads: ThreadsOption = None,
    gb: MemoryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Ask the router's journaled questions again, of this or another model, in other words.

    The control: the same question gives the journal's probabilities again, bit for bit under the
    same engine. Exits with 1 if it does not. Beside every agreement stands that of the constant.
    """
    from shadow_reader.replay.router.past import Filter

    settings = invocation(context).settings(
        model=model, journal=journal, device=device, grid_ids=grid, threads=threads, cap_gb=gb
    )
    if not settings.model:
        raise typer.BadParameter("which model? give --model, or set it (QWEN38_SHADOW_MODEL)")
    if ordinary and decided_only:
        raise typer.BadParameter("--decided-only is about the router's questions")
    conditions = list(where or ())
    conditions += ["decided=true"] if decided_only else []
    conditions += [f"behind<={behind}"] if behind is not None else []
    chosen = Filter(
        session=session,
        turn=turn,
        since=moment(since, "since"),
        until=moment(until, "until"),
        where=conditions,
        limit=limit,
        ordinary=ordinary,
    )
    only = tuple(part.strip() for part in classes.split(",")) if classes is not None else ()
    if classes is not None and (len(set(only)) < 2 or "" in only):
        raise typer.BadParameter(f"--classes names two at least, by commas, not {classes!r}")
    ways = _variants(settings, wording or [], profile or [], only, calibrate=calibrate)
    report = _run(settings, chosen, ways, only, tolerance, snapshots=snapshots)
    if as_json:
        print_json(asdict(report))
    else:
        _show(report)
    if report.verdict == "fails":
        raise typer.Exit(ExitCode.FAILED)


def _variants(
    settings: Settings,
    wordings: list[str],
    profiles: list[str],
    classes: tuple[str, ...],
    *,
    calibrate: bool,
) -> list[Variant]:
    from shadow_reader.replay.router.evaluate import JOURNAL
    from shadow_reader.replay.router.wordings import (
        LABELS,
        SAME,
        Variant,
        Wording,
        profile_wording,
        read_wording,
    )

    found = [Variant("fewer classes", None, classes)] if classes else []
    for text in wordings:
        labels = text == LABELS
        said = Wording(classes={}) if labels else read_wording(Path(text))
        found.append(Variant(LABELS if labels else Path(text).stem, said, classes))
    for name in profiles:
        known = settings.profiles.get(name)
        if known is None or len(known.shadow.router_classes) < 2:
            raise typer.BadParameter(f"the settings have no profile {name!r} with router_classes")
        found.append(Variant(name, profile_wording(known.shadow), classes))
    if calibrate:
        asked = found or [Variant(SAME)]
        found += [
            Variant(f"{one.name}, calibrated", one.wording, one.classes, calibrate=True)
            for one in asked
        ]
    names = [JOURNAL, SAME, *(one.name for one in found)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise typer.BadParameter(f"two ways of asking are called {twice[0]!r}")
    return found


def _run(
    settings: Settings,
    chosen: Filter,
    variants: Sequence[Variant],
    classes: Sequence[str],
    tolerance: float,
    *,
    snapshots: bool,
) -> Report:
    """All on this thread: the engine's."""
    from shadow_reader.replay.router.asking import Asker
    from shadow_reader.replay.router.evaluate import evaluate
    from shadow_reader.replay.router.past import find_wanted
    from shadow_reader.shadow.torch_engine import build_engine
    from shadow_reader.shadow.vocabulary import load_vocabulary
    from shadow_reader.store.reader import JournalReader

    async def run() -> Report:
        async with await JournalReader.open(settings.journal) as journal:
            await find_wanted(journal, chosen)  # before a model is loaded for nothing
            vocabulary = load_vocabulary(settings.model_spec())
            engine = build_engine(settings)
            with Progress(*_COLUMNS, console=errors(), transient=True) as progress:
                bar = progress.add_task("", total=0)

                def begun(done: int, every: int, session: str) -> None:
                    told = f"session {done + 1} of {every}: {session}"
                    progress.update(bar, description=told, completed=0, total=0)

                def advance(done: int, total: int) -> None:
                    progress.update(bar, completed=done, total=total)

                asker = Asker(
                    engine, vocabulary, settings.snapshot_dir if snapshots else None, advance
                )
                try:
                    return await evaluate(
                        journal,
                        asker,
                        chosen,
                        variants,
                        classes=classes,
                        tolerance=tolerance,
                        begun=begun,
                    )
                finally:
                    engine.close()

    return asyncio.run(run())


def _show(report: Report) -> None:
    console = people()
    identity = report.engine
    console.print(
        Text(
            f"{report.asked:,} questions of {report.sessions:,} sessions, asked of "
            f"{identity.model} (engine {identity.engine}, grid {identity.grid}); "
            f"{report.read:,} ids read, {report.restored:,} sessions from snapshots"
        )
    )
    for why, count in report.skipped.items():
        console.print(Text(f"left out: {count:,}: {why}", "yellow"))
    for one in report.unasked:
        console.print(Text(f"{one.variant} not asked: {one.count:,}: {one.first}", "yellow"))
    columns = ("read with", "here it is", "#answers", "#equal", "#label", "#differs", "#allowed")
    console.print(table("control", columns, [_control_row(row) for row in report.control]))
    if report.figures is not None:
        _show_figures(report.figures)
    else:
        console.print(Text("no turn has a class of the router's own: nothing to agree with"))
    console.print(Text(_SAYS[report.verdict], _STYLES[report.verdict]))


def _control_row(row: EngineControl) -> tuple[object, ...]:
    kin = {"same": "the same engine", "not known": "not in the journal"}.get(row.kin, row.kin)
    allowed = "-" if row.tolerance is None else f"{row.tolerance:g}"
    return (
        *(row.engine, kin, row.answers, row.equal, row.same_label),
        *(f"{row.largest:.3g}", allowed),
    )


def _show_figures(found: Figures) -> None:
    console = people()
    columns = (
        "",
        "#agree",
        "#of",
        "#",
        "#95 % by turns",
        "#by sessions",
        "#above constant",
        "#95 %",
    )
    rows: list[tuple[object, ...]] = [
        (f"constant {found.constant.label}", *_share_cells(found.constant.agreement), "", "")
    ]
    for one in found.variants:
        above = f"{one.above_constant:+.1%}", _interval(one.above)
        rows.append((one.name, *_share_cells(one.agreement), *above))
    title = f"agreement with the router: {found.turns:,} turns of {found.sessions:,} sessions"
    console.print(table(title, columns, rows))
    pairs = [
        (
            *(f"{pair.first} - {pair.second}", pair.n, pair.both, pair.only_first),
            *(pair.only_second, pair.neither, pair.same_label),
            *(f"{pair.difference:+.1%}", _interval(pair.interval)),
        )
        for pair in found.pairs
    ]
    pair_columns = (
        *("first - second", "#turns", "#both right", "#first only", "#second only", "#neither"),
        *("#same label", "#second's gain", "#95 %"),
    )
    console.print(table("in pairs, on the same turns", pair_columns, pairs))
    for title, groups in (
        ("agreement by the router's class", [one.by_class for one in found.variants]),
        ("agreement by ids behind", [one.by_behind for one in found.variants]),
    ):
        console.print(_groups_table(title, found.variants, groups))
    for one in found.variants:
        labels = sorted({label for row in one.confusion.values() for label in row})
        cells = [
            (own, *(row.get(label, 0) for label in labels)) for own, row in one.confusion.items()
        ]
        console.print(Text(f"{one.name}: rows are the router's classes, columns what was answered"))
        console.print(table("", ("", *(f"#{label}" for label in labels)), cells))


def _groups_table(title: str, variants: Sequence[VariantFigures], groups: Sequence[Any]) -> Any:
    names = list(dict.fromkeys(group.name for found in groups for group in found))
    cells = [{group.name: f"{group.hits} of {group.n}" for group in found} for found in groups]
    rows = [(name, *(cell.get(name, "-") for cell in cells)) for name in names]
    return table(title, ("", *(f"#{one.name}" for one in variants)), rows)


def _share_cells(share: Share) -> tuple[object, ...]:
    return (
        *(share.hits, share.n, f"{share.share:.1%}"),
        *(_interval(share.wilson), _interval(share.by_session)),
    )


def _interval(found: Interval) -> str:
    return f"{100 * found.low:.0f} to {100 * found.high:.0f} %"
