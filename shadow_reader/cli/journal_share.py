"""``shadow-reader journal share``: what the reader used of each turn, from the journal alone.

Two accounts must agree: what was journaled at each turn's end, and the bursts that were journaled
as rationed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from shadow_reader.cli.journal import FileOption, SessionFilter, open_source
from shadow_reader.cli.options import JsonFlag, TokenOption, UrlOption, invocation
from shadow_reader.cli.output import people, print_json, table

if TYPE_CHECKING:
    from shadow_reader.cli.journal_source import JournalSource


@dataclass(frozen=True, slots=True)
class TurnShare:
    """What was used of one turn; ``share`` is ``used_ms`` of ``decode_ms``, as a fraction."""

    session: str
    turn: str
    decode_ms: float
    used_ms: float
    slices: int
    share: float


@dataclass(frozen=True, slots=True)
class Shares:
    """All turns of which something was used, and their sums.

    Attributes:
        read_ms: of all bursts that were journaled as rationed; about ``used_ms``, or less where
            two turns ran at once, since a slice counts for both.
        over: turns of which more was used than ``limit`` of their time and ``chunk_ms``, the
            longest slice, on top.
    """

    turns: tuple[TurnShare, ...]
    used_ms: float
    decode_ms: float
    read_ms: float
    limit: float
    chunk_ms: float
    over: int


def share(
    context: typer.Context,
    file: FileOption = None,
    session: SessionFilter = None,
    limit: Annotated[
        float, typer.Option("--limit", help="The share that no turn should pass.", min=0, max=1)
    ] = 0.02,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show how much of each turn's time since its first token the reader used."""

    async def call() -> Shares:
        async with open_source(invocation(context), file, url, token) as source:
            return await shares(source, session, limit)

    found = asyncio.run(call())
    if as_json:
        print_json(asdict(found))
        return
    rows = [
        (t.session, t.turn, f"{t.decode_ms:,.0f}", f"{t.used_ms:,.1f}", t.slices, f"{t.share:.2%}")
        for t in found.turns
    ]
    columns = ("session", "turn", "#decode ms", "#used ms", "#slices", "#share")
    people().print(table("", columns, rows))
    whole = found.used_ms / found.decode_ms if found.decode_ms else 0.0
    people().print(
        f"{len(found.turns):,} turns, {whole:.2%} of their time; {found.over:,} above "
        f"{found.limit:.2%} and a slice of {found.chunk_ms:,.1f} ms"
    )


async def shares(source: JournalSource, session: str | None, limit: float) -> Shares:
    """Add up what the journal says."""
    from shadow_reader.cli.journal_source import Filters

    turns: list[TurnShare] = []
    read_ms = chunk_ms = 0.0
    filters = Filters(session=session, kinds=("ration.used", "read"))
    async with contextlib.aclosing(source.rows(filters, ids=False)) as rows:
        async for row in rows:
            if row["kind"] == "read":
                if row["window"] == "ration":
                    read_ms += row["ms"]
                    chunk_ms = max(chunk_ms, row["ms"])
                continue
            decode_ms, used_ms = row["decode_ms"], row["used_ms"]
            part = used_ms / decode_ms if decode_ms else 0.0
            turns.append(
                TurnShare(
                    row["session"], row["turn"], decode_ms, used_ms, row["slices"], round(part, 5)
                )
            )
    return Shares(
        tuple(turns),
        round(sum(t.used_ms for t in turns), 3),
        round(sum(t.decode_ms for t in turns), 3),
        round(read_ms, 3),
        limit,
        chunk_ms,
        sum(t.used_ms > limit * t.decode_ms + chunk_ms for t in turns),
    )
