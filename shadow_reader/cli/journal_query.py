"""``shadow-reader journal query``: rows that meet conditions, or groups of them; and the schema."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shadow_reader.cli.journal import (
    FOLLOW_S,
    FileOption,
    KindFilter,
    LimitOption,
    SessionFilter,
    SinceOption,
    TurnFilter,
    UntilOption,
    moment,
)
from shadow_reader.cli.options import Invocation, JsonFlag, TokenOption, UrlOption, invocation
from shadow_reader.cli.output import people, print_json, table

if TYPE_CHECKING:
    from shadow_reader.events.queries import RowQuery


def query(
    context: typer.Context,
    file: FileOption = None,
    kind: KindFilter = None,
    session: SessionFilter = None,
    turn: TurnFilter = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            "-w",
            help='FIELD OP VALUE with = != < <= > >= in: "agree=false", "label in (chat, debug)".',
        ),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: LimitOption = None,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="Backwards; needs --limit.")
    ] = False,
    by: Annotated[
        str | None, typer.Option(help="Count the rows by a field; numbers in buckets.")
    ] = None,
    of: Annotated[
        str | None, typer.Option(help="With --by: mean, p50 and p90 of a number's field.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Token ids, too.")] = False,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print flat JSON lines, one an entry, that jq and pandas read as they are.

    An answer's line has its question's kind, choices and position, and the label's probability.
    Example: shadow-reader journal query -k router.answer --by label --of lag_ms
    """
    from shadow_reader.events.queries import RowQuery

    if follow and (by is not None or newest_first):
        raise typer.BadParameter("--follow prints rows as they come: without --by, --newest-first")
    asked = RowQuery(
        kinds=tuple(kind or ()),
        where=tuple(where or ()),
        session=session,
        turn=turn,
        since=moment(since, "since"),
        until=moment(until, "until"),
        limit=limit,
        newest_first=newest_first,
        by=by,
        of=of,
        ids=ids,
    )
    shared = invocation(context)
    if by is None or as_json:
        asyncio.run(_print(shared, asked, file, url, token, follow=follow))
    else:
        rows = asyncio.run(_all(shared, asked, file, url, token))
        columns = (by, *(f"#{name}" for name in rows[0] if name != by)) if rows else (by,)
        people().print(table("", columns, [tuple(row.values()) for row in rows]))


def schema(as_json: JsonFlag = False) -> None:
    """Say which fields the rows of each kind have, and of what type."""
    from shadow_reader.events.rows import schema as fields

    if as_json:
        print_json({kind: dict(rows) for kind, rows in fields().items()})
    else:
        typer.echo(schema_text(), nl=False)


def schema_text() -> str:
    """The schema in Markdown, as `docs/journal.md` has it."""
    from shadow_reader.events.rows import schema as fields

    parts = []
    for kind, rows in fields().items():
        listed = "; ".join(f"`{name}` {said}" for name, said in rows)
        parts.append(f"- **{kind}**: {listed or 'nothing more'}\n")
    return "".join(parts)


async def _print(
    shared: Invocation,
    asked: RowQuery,
    file: Path | None,
    url: str | None,
    token: str | None,
    *,
    follow: bool,
) -> None:
    while True:
        async with contextlib.aclosing(_rows(shared, asked, file, url, token)) as rows:
            async for row in rows:
                print_json(row)
        if not follow or asked.is_over():
            return
        await asyncio.sleep(FOLLOW_S)


async def _all(
    shared: Invocation, asked: RowQuery, file: Path | None, url: str | None, token: str | None
) -> list[dict[str, Any]]:
    async with contextlib.aclosing(_rows(shared, asked, file, url, token)) as rows:
        return [row async for row in rows]


async def _rows(
    shared: Invocation, asked: RowQuery, file: Path | None, url: str | None, token: str | None
) -> AsyncGenerator[dict[str, Any], None]:
    """Of the file that was named, or of a server; called again, those that came since."""
    if file is not None:
        if url is not None:
            raise typer.BadParameter("a file or a server: give one of --journal and --url")
        from shadow_reader.store.reader import JournalReader

        async with (
            await JournalReader.open(file) as journal,
            contextlib.aclosing(asked.rows(journal.entries)) as rows,
        ):
            async for row in rows:
                yield row
        return
    async with shared.client(url, token) as client:
        found = client.query(
            where=asked.where,
            kind=tuple(asked.kinds) or None,
            session=asked.session,
            turn=asked.turn,
            since=asked.since,
            until=asked.until,
            limit=None if asked.limit is None else max(1, asked.limit - asked.given),
            order="desc" if asked.newest_first else "asc",
            by=asked.by,
            of=asked.of,
            ids=asked.ids,
            after=asked.seen,
        )
        async with contextlib.aclosing(found):
            async for row in found:
                asked.seen = max(asked.seen, row.get("seq", 0))
                asked.given += 1
                yield row
