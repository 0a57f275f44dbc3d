"""``shadow-reader journal``: what happened, asked of a server or read from the file itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from rich.text import Text

from shadow_reader.cli.options import (
    Invocation,
    JsonFlag,
    RowsFlag,
    TokenOption,
    UrlOption,
    invocation,
)
from shadow_reader.cli.output import (
    EXIT_CODES_HELP,
    ExitCode,
    facts,
    people,
    print_error,
    print_json,
    table,
)

if TYPE_CHECKING:
    from shadow_reader.cli.journal_source import Filters, JournalSource

app = typer.Typer(help="List, follow, verify and prune the journal.", epilog=EXIT_CODES_HELP)

FOLLOW_S: Final = 0.25
_COLUMNS: Final = frozenset({"seq", "at", "session", "turn", "kind"})

FileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--journal", help="Read this file, also while a server writes it. No server."),
]
SessionFilter: TypeAlias = Annotated[
    str | None, typer.Option("--session", "-s", help="Only this session.")
]
TurnFilter: TypeAlias = Annotated[str | None, typer.Option("--turn", help="Only this turn.")]
KindFilter: TypeAlias = Annotated[
    list[str] | None, typer.Option("--kind", "-k", help="Only this kind; may be repeated.")
]
SinceOption: TypeAlias = Annotated[
    str | None, typer.Option(help="From this time on: unix seconds or ISO 8601.")
]
UntilOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Before this time: unix seconds or ISO 8601.")
]
LimitOption: TypeAlias = Annotated[int | None, typer.Option(help="At most so many.", min=1)]
IdsFlag: TypeAlias = Annotated[
    bool, typer.Option("--ids", help="Show token ids, not only how many there are.")
]


@app.command("list", epilog=EXIT_CODES_HELP)
def list_entries(
    context: typer.Context,
    file: FileOption = None,
    session: SessionFilter = None,
    turn: TurnFilter = None,
    kind: KindFilter = None,
    after: Annotated[int, typer.Option(help="Only entries behind this seq.", min=0)] = 0,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: LimitOption = None,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="Backwards.")] = False,
    ids: IdsFlag = False,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: RowsFlag = False,
) -> None:
    """List entries that match all that is given, the oldest first."""
    from shadow_reader.cli.journal_source import Filters

    filters = Filters(
        session=session,
        turn=turn,
        kinds=tuple(kind or ()),
        after=after,
        since=moment(since, "since"),
        until=moment(until, "until"),
        limit=limit,
        newest_first=newest_first,
    )

    async def show() -> None:
        async with (
            open_source(invocation(context), file, url, token) as source,
            contextlib.aclosing(source.rows(filters, ids=ids)) as rows,
        ):
            async for row in rows:
                _print_row(row, as_json=as_json)

    asyncio.run(show())


@app.command(epilog=EXIT_CODES_HELP)
def tail(
    context: typer.Context,
    file: FileOption = None,
    session: SessionFilter = None,
    turn: TurnFilter = None,
    kind: KindFilter = None,
    count: Annotated[int, typer.Option("--count", "-n", help="Newest entries.", min=1)] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")] = False,
    ids: IdsFlag = False,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: RowsFlag = False,
) -> None:
    """Show the newest entries, the newest last; with --follow, also those that come."""
    from shadow_reader.cli.journal_source import Filters

    filters = Filters(session=session, turn=turn, kinds=tuple(kind or ()))

    async def show() -> None:
        async with open_source(invocation(context), file, url, token) as source:
            seen = 0
            for row in await _newest(source, filters, count, ids=ids):
                _print_row(row, as_json=as_json)
                seen = row["seq"]
            while follow:
                await asyncio.sleep(FOLLOW_S)
                async with contextlib.aclosing(source.rows(filters.behind(seen), ids=ids)) as rows:
                    async for row in rows:
                        _print_row(row, as_json=as_json)
                        seen = row["seq"]

    asyncio.run(show())


@app.command(epilog=EXIT_CODES_HELP)
def sessions(
    context: typer.Context,
    file: FileOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: RowsFlag = False,
) -> None:
    """List the journal's sessions by name."""

    async def show() -> None:
        async with open_source(invocation(context), file, url, token) as source:
            found = []
            async with contextlib.aclosing(source.sessions()) as rows:
                async for row in rows:
                    if as_json:
                        print_json(row)
                    else:
                        found.append((row.session, row.events, row.last_seq, _time(row.last_at)))
            if not as_json:
                columns = ("session", "#entries", "#last seq", "last news")
                people().print(table("", columns, found))

    asyncio.run(show())


@app.command(epilog=EXIT_CODES_HELP)
def verify(context: typer.Context, file: FileOption = None, as_json: JsonFlag = False) -> None:
    """Read and fold every entry of the file; exits with 1 at the first that cannot be.

    Reads the settings' journal unless --journal names another.
    """
    from shadow_reader.cli.journal_verify import verify_journal

    path = invocation(context).settings(journal=file).journal
    found = asyncio.run(verify_journal(path))
    if as_json:
        print_json(found)
    else:
        rows: list[tuple[str, object]] = [
            ("entries", found.entries),
            ("sessions", found.sessions),
            ("known ids", found.known),
            *((f"  {name}", count) for name, count in found.kinds.items()),
        ]
        people().print(facts(f"journal {path}", rows))
    if found.problem is not None:
        if not as_json:
            print_error(f"entry {found.bad_seq}: {found.problem}")
        raise typer.Exit(ExitCode.FAILED)


@contextlib.asynccontextmanager
async def open_source(
    shared: Invocation, file: Path | None, url: str | None, token: str | None
) -> AsyncIterator[JournalSource]:
    """A server's journal, or the file that was named."""
    from shadow_reader.cli.journal_source import FileSource, HttpSource

    if file is None:
        async with shared.client(url, token) as client:
            yield HttpSource(client)
        return
    if url is not None:
        raise typer.BadParameter("a file or a server: give one of --journal and --url")
    from shadow_reader.store.reader import JournalReader

    async with await JournalReader.open(file) as journal:
        yield FileSource(journal)


async def _newest(
    source: JournalSource, filters: Filters, count: int, *, ids: bool
) -> list[dict[str, Any]]:
    rows = source.rows(filters.newest(count), ids=ids)
    async with contextlib.aclosing(rows):
        return [row async for row in rows][::-1]


def _print_row(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(row)
        return
    more = " ".join(f"{k}={_short(v)}" for k, v in row.items() if k not in _COLUMNS)
    line = Text.assemble(
        (f"{row['seq']:>8}", "dim"),
        f"  {_time(row['at'])}  ",
        (f"{row['kind']:<14}", "bold"),
        f" {row['session'] or '-'}",
        f" {row['turn']}" if row["turn"] else "",
        (f"  {more}", "dim"),
    )
    people().print(line, soft_wrap=True)


def _short(value: object) -> str:
    if isinstance(value, dict) and value.keys() == {"count"}:
        return f"[{value['count']}]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def moment(text: str | None, name: str) -> float | None:
    """Unix seconds of a time that a person wrote; without a zone it is the local one."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise typer.BadParameter(
            f"{name} must be unix seconds or an ISO 8601 time, not {text!r}"
        ) from None
