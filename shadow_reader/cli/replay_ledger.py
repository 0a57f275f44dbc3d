"""``shadow-reader replay ledger``: reading over a usage ledger, simulated with the live code."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shadow_reader.cli.ledger_plot import check_plot, draw
from shadow_reader.cli.options import JsonFlag
from shadow_reader.cli.output import EXIT_CODES_HELP, errors, facts, people, print_json, table

if TYPE_CHECKING:
    from shadow_reader.replay.ledger import Ledger
    from shadow_reader.replay.ledger.journaled import JournalLedger, Measured
    from shadow_reader.replay.simulation.policy import Policy
    from shadow_reader.replay.simulation.simulate import Outcome

PUBLISHED_OF: Final = "opencode-41"
PUBLISHED: Final[dict[str, dict[str, float | int | None]]] = {
    "original-idle": {"fresh": 0.41, "p50": None, "p90": 49_000},
    "original": {"fresh": 0.84, "p50": 307, "p90": 4_347},
}
"""What the original says of the sessions that ``opencode-41`` is made after, by policy."""

DEFAULT: Final = ("original-idle", "original", "events", "shared", "best")
OWN: Final = "yours"
SQLITE: Final = b"SQLite format 3"
"""What a journal's file begins with."""

app = typer.Typer(help="Replay what was recorded.", epilog=EXIT_CODES_HELP)


def replay_ledger(
    ledger: Annotated[
        str,
        typer.Argument(
            metavar="NAME_OR_FILE",
            help="A shipped ledger (opencode-41, opencode-recorded, pi-recorded, "
            "claude-code-recorded), a file that import wrote, or a journal.",
        ),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME[:FIELD=VALUE,...]",
            help="original-idle, original, events, shared or best; may be given again. "
            "Default: all of them.",
        ),
    ] = None,
    idle_only: Annotated[
        bool, typer.Option("--idle-only", help="Read nothing while a turn runs.")
    ] = False,
    share: Annotated[float | None, typer.Option("--share", help="Of a turn's time.")] = None,
    poll: Annotated[
        float | None, typer.Option("--poll", help="Seconds between looks; 0: by event.")
    ] = None,
    burst: Annotated[float | None, typer.Option("--burst", help="Seconds of a burst.")] = None,
    slice_s: Annotated[float | None, typer.Option("--slice", help="Seconds of a slice.")] = None,
    grid: Annotated[int | None, typer.Option("--grid", help="Ids a chunk.")] = None,
    read_ms: Annotated[
        float | None, typer.Option("--read-ms-per-1000", help="Milliseconds for 1,000 ids.")
    ] = None,
    shared_ids: Annotated[
        int | None, typer.Option("--shared-ids", help="Ids that every prompt begins with.")
    ] = None,
    cap_gb: Annotated[
        float | None, typer.Option("--cap-gb", help="GB of states that fit; 0: no cap.")
    ] = None,
    restore_ms: Annotated[
        float | None,
        typer.Option("--restore-ms", help="What a state takes to come back; 0: no disk."),
    ] = None,
    by_session: Annotated[bool, typer.Option("--sessions", help="Also by session.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw behind over time and its distribution (extra: plot)."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate when the reader would have read, with the live reader on a virtual clock.

    Shows how far behind it was when turns started. Any option from --idle-only to --restore-ms
    adds a policy of your own, named yours: events with these changes. Of a journal, also one that a
    server writes, it shows beside that how far behind its own reader was, and a policy as-served:
    events at the grid and the read rate that the journal tells.
    """
    from shadow_reader.replay.simulation.policy import PRESETS, parse_policy
    from shadow_reader.replay.simulation.simulate import simulate_all

    own: dict[str, Any] = {
        "share": 0.0 if idle_only else share,
        "poll_s": poll,
        "burst_s": burst,
        "slice_s": slice_s,
        "grid": grid,
        "read_ms_per_1000": read_ms,
        "shared_ids": shared_ids,
        "cap_gb": cap_gb,
        "restore_ms": restore_ms,
    }
    if idle_only and share is not None:
        raise typer.BadParameter("--idle-only is --share 0; give one of them")
    changes = {field: value for field, value in own.items() if value is not None}
    chosen = [parse_policy(text) for text in policy or (() if changes else DEFAULT)]
    if changes:
        chosen.append(replace(PRESETS["events"], name=OWN, **changes))
    found, lived = _opened(ledger)
    if lived is not None:
        chosen.append(_as_served(lived.measured))
    if plot is not None:
        check_plot(plot)

    def advance(done: int, every: int) -> None:
        if errors().is_terminal:
            errors().print(f"policy {done + 1} of {every}: {chosen[done].name}")

    outcomes = simulate_all(found, tuple(chosen), advance)
    if plot is not None:
        draw(plot, found, outcomes, lived.measured if lived is not None else None)
    if as_json:
        print_json(_body(found, outcomes, by_session) | _measured_body(lived))
    else:
        _show(found, outcomes, by_session, lived)


def _opened(name: str) -> tuple[Ledger, JournalLedger | None]:
    """The ledger; and what the journal that it was made of says of its reader."""
    from shadow_reader.replay.ledger import read_ledger
    from shadow_reader.replay.ledger.shipped import SHIPPED, open_shipped

    path = Path(name)
    if name in SHIPPED or not path.exists():
        return open_shipped(name), None
    if _is_journal(path):
        lived = asyncio.run(_journaled(path))
        return lived.ledger, lived
    return read_ledger(path), None


def _is_journal(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE)) == SQLITE
    except OSError:
        return False  # whoever reads it as a ledger says why it cannot be


async def _journaled(path: Path) -> JournalLedger:
    from shadow_reader.replay.ledger.journaled import journal_ledger
    from shadow_reader.store.reader import JournalReader

    async with await JournalReader.open(path) as journal:
        return await journal_ledger(path.name, journal.entries())


def _as_served(measured: Measured) -> Policy:
    """What the live reader would do with the journal's own grid and rate."""
    from shadow_reader.replay.simulation.policy import PRESETS

    events = PRESETS["events"]
    return replace(
        events,
        name="as-served",
        grid=measured.grid or events.grid,
        read_ms_per_1000=measured.read_ms_per_1000 or events.read_ms_per_1000,
    )


def _measured_row(lived: JournalLedger) -> dict[str, Any]:
    measured = lived.measured
    figures = measured.figures()
    return {
        "name": "measured",
        "fresh": round(figures.fresh, 6),
        "p50": figures.p50,
        "p90": figures.p90,
        "max": max(measured.values),
        "share_used": round(measured.share_used, 6),
    }


def _measured_body(lived: JournalLedger | None) -> dict[str, Any]:
    if lived is None:
        return {}
    rate = lived.measured.read_ms_per_1000
    more = {"read_ms_per_1000": rate, "grid": lived.measured.grid, "unfinished": lived.unfinished}
    return {"measured": _measured_row(lived) | more}


def _row(outcome: Outcome) -> dict[str, Any]:
    figures = outcome.figures()
    return {
        "name": outcome.policy.name,
        "fresh": round(figures.fresh, 6),
        "p50": figures.p50,
        "p90": figures.p90,
        "max": max(outcome.values()),
        "share_used": round(outcome.share_used, 6),
    }


def _body(ledger: Ledger, outcomes: list[Outcome], by_session: bool) -> dict[str, Any]:
    from shadow_reader.replay.simulation.simulate import conventions

    rows = []
    for outcome in outcomes:
        row = _row(outcome) | {
            "interval": asdict(outcome.interval()),
            "b": asdict(outcome.figures("b")),
            "c": asdict(outcome.figures("c")),
            "policy": asdict(outcome.policy),
        }
        if by_session:
            row["sessions"] = {name: asdict(f) for name, f in _sessions(outcome)}
        rows.append(row)
    body: dict[str, Any] = {
        "ledger": ledger.name,
        "sessions": len(ledger.sessions),
        "turns": len(ledger.turns),
        "policies": rows,
        "conventions": conventions(ledger),
    }
    return body | ({"published": PUBLISHED} if ledger.name == PUBLISHED_OF else {})


def _sessions(outcome: Outcome) -> list[tuple[str, Any]]:
    from shadow_reader.replay.ledger.freshness import figures

    return [(name, figures(values)) for name, values in outcome.by_session().items()]


def _show(
    ledger: Ledger, outcomes: list[Outcome], by_session: bool, lived: JournalLedger | None
) -> None:
    from shadow_reader.replay.simulation.simulate import conventions

    columns = ("policy", "#fresh", "#95 %", "#p50", "#p90", "#max", "#share used", "")
    rows: list[tuple[object, ...]] = []
    for outcome in outcomes:
        row, interval = _row(outcome), outcome.interval()
        rows.append(
            (
                *(row["name"], f"{row['fresh']:.1%}", f"{interval.low:.0%}-{interval.high:.0%}"),
                *(row["p50"], row["p90"], row["max"], f"{row['share_used']:.2%}", ""),
            )
        )
        told = PUBLISHED.get(row["name"]) if ledger.name == PUBLISHED_OF else None
        if told is not None:
            rows.append(
                ("", f"{told['fresh']:.0%}", "", told["p50"], told["p90"], "", "", "published")
            )
    if lived is not None:
        row = _measured_row(lived)
        shown = (f"{row['fresh']:.1%}", "", row["p50"], row["p90"], row["max"])
        rows.append((row["name"], *shown, f"{row['share_used']:.2%}", "by the journal"))
    people().print(
        table(
            f"{ledger.name}: {len(ledger.sessions):,} sessions, {len(ledger.turns):,} turns; "
            "ids behind at turn starts",
            columns,
            rows,
        )
    )
    if by_session:
        for outcome in outcomes:
            people().print(_session_table(outcome))
    people().print(facts("", [(k.replace("_", " "), v) for k, v in conventions(ledger).items()]))


def _session_table(outcome: Outcome) -> Any:
    rows = [
        (name, f.turns, f"{f.fresh:.0%}", f.p50, f.p90, max(outcome.by_session()[name]))
        for name, f in _sessions(outcome)
    ]
    columns = ("session", "#turns", "#fresh", "#p50", "#p90", "#max")
    return table(outcome.policy.name, columns, rows)


@app.callback()
def group() -> None:
    """Replay what was recorded."""


app.command("ledger", epilog=EXIT_CODES_HELP)(replay_ledger)
