"""``shadow-reader rebuild``: from the journal alone, the proof that states were exact."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from shadow_reader.cli.options import (
    DeviceOption,
    GridOption,
    JsonFlag,
    MemoryOption,
    ModelOption,
    ThreadsOption,
    invocation,
)
from shadow_reader.cli.output import ExitCode, bytes_shown, errors, people, print_json, table

_COLUMNS: Final = (
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    TextColumn("{task.completed:,.0f} of {task.total:,.0f} ids"),
    TimeElapsedColumn(),
)
_SAYS: Final = {
    "exact": "exact",
    "differs": "NOT exact",
    "nothing to compare": "nothing was compared: the journal has no checkpoint of this engine",
}
_STYLES: Final = {"exact": "green", "differs": "bold red", "nothing to compare": "yellow"}

if TYPE_CHECKING:
    from shadow_reader.config import Settings
    from shadow_reader.replay.rebuild import Journaled, Rebuilt, Verdict
    from shadow_reader.replay.state_file import StateFile


def rebuild(
    context: typer.Context,
    journal: Annotated[
        Path | None,
        typer.Option(help="The journal's file, also while a server writes it. Default: settings."),
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", help="Only this session. Default: every one.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="The session's state as the server exported it."),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    grid: GridOption = None,
    threads: ThreadsOption = None,
    gb: MemoryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Prefill sessions from the journal in this process and compare with what was journaled.

    Every checkpoint's digest of the same engine is compared; with --state also every KV row, the
    recurrent and the convolution state, bit by bit. Exits with 1 unless something was compared and
    all of it is equal. Model, grid and threads must be the server's: they decide the bits.
    """
    settings = invocation(context).settings(
        model=model, journal=journal, device=device, grid_ids=grid, threads=threads, cap_gb=gb
    )
    if not settings.model:
        raise typer.BadParameter("which model? give --model, or set it (QWEN38_SHADOW_MODEL)")
    if state is not None and session is None:
        raise typer.BadParameter("--state is one session's: name it with --session")
    from shadow_reader.replay.rebuild import verdict_of_all
    from shadow_reader.replay.state_file import read_state

    exported = read_state(state) if state is not None else None
    names = asyncio.run(_names(settings.journal, session, exported))
    found = _rebuild_all(settings, names, exported)
    verdict = verdict_of_all(found)
    if as_json:
        print_json({"exact": verdict == "exact", "verdict": verdict, "sessions": found})
    else:
        _show(found, verdict)
    if verdict != "exact":
        raise typer.Exit(ExitCode.FAILED)


async def _names(file: Path, session: str | None, state: StateFile | None) -> list[str]:
    """The lines of talk to rebuild: all there are, a session's, or the one that is named; with a
    state the one whose ids it has read.

    Raises:
        NotFoundError: there is none.
    """
    from shadow_reader.cli.journal_source import FileSource
    from shadow_reader.errors import NotFoundError
    from shadow_reader.events.branches import line_name, split_name
    from shadow_reader.replay.rebuild import has_read
    from shadow_reader.store.reader import JournalReader

    async with await JournalReader.open(file) as journal:
        names = [row.session async for row in FileSource(journal).sessions()]
    if session is None:
        return names
    owner, branch = split_name(session)
    if branch is not None:
        lines = [name for name in names if name == line_name(owner, branch)]
    else:
        lines = [name for name in names if split_name(name)[0] == session]
    if not lines:
        raise NotFoundError(f"the journal holds no session {session!r}", field="session")
    if state is None or len(lines) == 1:
        return lines
    read = [name for name in lines if has_read(state, (await _journaled(file, name)).view)]
    if not read:
        raise NotFoundError(f"the state is of no line of session {session!r}", field="state")
    return read[:1]


async def _journaled(file: Path, session: str) -> Journaled:
    from shadow_reader.replay.rebuild import journaled_session
    from shadow_reader.store.reader import JournalReader

    async with await JournalReader.open(file) as journal:
        return await journaled_session(journal, session)


def _rebuild_all(settings: Settings, names: list[str], state: StateFile | None) -> list[Rebuilt]:
    """One session after another, all on this thread: the engine's."""
    from shadow_reader.replay.rebuild import rebuild as rebuild_one
    from shadow_reader.shadow.torch_engine import build_engine

    found: list[Rebuilt] = []
    with Progress(*_COLUMNS, console=errors(), transient=True) as progress:
        first = asyncio.run(_journaled(settings.journal, names[0])) if names else None
        engine = build_engine(settings)
        try:
            for name in names:
                journaled = first or asyncio.run(_journaled(settings.journal, name))
                first = None
                bar = progress.add_task(name, total=len(journaled.view.known))

                def advance(done: int, total: int, bar: TaskID = bar) -> None:
                    progress.update(bar, completed=done, total=total)

                found.append(rebuild_one(journaled, engine, state=state, progress=advance))
        finally:
            engine.close()
    return found


def _show(found: list[Rebuilt], verdict: Verdict) -> None:
    console = people()
    rows = [
        (
            one.session,
            one.turns,
            one.known,
            one.position,
            f"{sum(c.exact for c in one.checkpoints)} of {len(one.checkpoints)}",
            bytes_shown(one.state.bytes) if one.state else "-",
            Text(one.verdict, _STYLES[one.verdict]),
        )
        for one in found
    ]
    columns = ("session", "#turns", "#ids", "#prefilled to", "#checkpoints equal", "#state", "")
    console.print(table("", columns, rows))
    for one in found:
        for line in _differences(one):
            console.print(Text(f"{one.session}: {line}", "red"), soft_wrap=True)
    console.print(Text(_SAYS[verdict], _STYLES[verdict]))


def _differences(one: Rebuilt) -> list[str]:
    lines = [
        f"digest at {c.position:,}: journaled {c.journaled}, fresh {c.fresh}"
        for c in one.checkpoints
        if not c.exact
    ]
    if one.state is not None and one.state.difference is not None:
        first = one.state.difference
        where = f" at {list(first.index)}" if first.index else ""
        lines.append(f"state at {one.state.position:,}: {first.tensor}{where}: {first.why}")
    elif one.state is not None and not one.state.exact:
        lines.append(f"state: its digest says {one.state.digest}, fresh {one.state.fresh}")
    if one.other_engines:
        lines.append(f"{one.other_engines} checkpoints of other engines were not compared")
    return lines
