"""``shadow-reader journal prune``: sessions without news for so long are erased.

Law: what goes is erased as ``DELETE /v1/sessions/{session}`` does it: events, ids, state and
snapshot, with the freed room overwritten. A session with newer news, or whose turn runs, stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import typer

from shadow_reader.cli.options import (
    Invocation,
    JsonFlag,
    TokenOption,
    UrlOption,
    invocation,
)
from shadow_reader.cli.output import people, print_json, table
from shadow_reader.errors import JournalError

if TYPE_CHECKING:
    from shadow_reader.events.journal import SessionRow
    from shadow_reader.runtime import Runtime
    from shadow_reader.shadow.live import Erased
    from shadow_reader.shadow.status import SessionStatus

_PAGE: Final = 1000
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}

OlderThan = Annotated[
    str, typer.Option("--older-than", help="Time since the last news, such as 90m, 48h or 30d.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be erased.")]
JournalFile = Annotated[
    Path | None,
    typer.Option("--journal", help="Prune this file, and the snapshots beside it. No server."),
]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was erased, or would be."""

    sessions: int
    events: int
    ids: int
    dry_run: bool


def prune(
    context: typer.Context,
    older_than: OlderThan,
    file: JournalFile = None,
    dry_run: DryRun = False,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Erase the sessions that nobody spoke of for a while: events, ids, states and snapshots."""
    age_s = _seconds(older_than)
    if file is not None and url is not None:
        raise typer.BadParameter("a file or a server: give one of --journal and --url")
    if file is not None and not file.exists():
        raise JournalError(f"there is no journal {file}", path=str(file))

    async def run() -> Pruned:
        async with _serving(invocation(context), file, url, token) as service:
            return await prune_sessions(service, time.time() - age_s, dry_run=dry_run)

    found = asyncio.run(run())
    if as_json:
        print_json(found)
        return
    columns = ("sessions", "#events", "#ids")
    title = "would be erased" if dry_run else "erased"
    people().print(table(title, columns, [(found.sessions, found.events, found.ids)]))


class Service(Protocol):
    """What is pruned: a server's client, or a runtime over the file."""

    def sessions(self) -> AsyncGenerator[SessionRow, None]:
        """All sessions by name."""
        ...

    async def session(self, session: str) -> SessionStatus:
        """How one stands."""
        ...

    async def erase(self, session: str) -> Erased:
        """Erase one."""
        ...


async def prune_sessions(service: Service, before: float, *, dry_run: bool) -> Pruned:
    """Erase sessions whose last news, on any line of talk, is older than ``before``, unix seconds.

    Of a dry run the events and ids are those that the journal and the session show.
    """
    from shadow_reader.events.branches import split_name

    sessions = events = ids = 0
    lines: dict[str, list[SessionRow]] = {}
    async with contextlib.aclosing(service.sessions()) as rows:
        async for row in rows:
            lines.setdefault(split_name(row.session)[0], []).append(row)
    for name, family in lines.items():
        if max(row.last_at for row in family) >= before:
            continue
        now = [await service.session(_line(row.session)) for row in family]
        if any(line.running or line.last_at >= before for line in now):
            continue
        sessions += 1
        if dry_run:
            events += sum(row.events for row in family)
            ids += sum(line.known for line in now)
        else:
            erased = await service.erase(name)
            events += erased.events
            ids += erased.ids
    return Pruned(sessions, events, ids, dry_run)


@contextlib.asynccontextmanager
async def _serving(
    shared: Invocation, file: Path | None, url: str | None, token: str | None
) -> AsyncIterator[Service]:
    """The server that was named, or a runtime over the file, without a model."""
    if file is None:
        async with shared.client(url, token) as client:
            yield client
        return
    from shadow_reader.runtime import Runtime

    async with Runtime(shared.settings(journal=file, model="")) as runtime:
        yield _OverFile(runtime)


@dataclass(frozen=True, slots=True)
class _OverFile:
    runtime: Runtime

    async def sessions(self) -> AsyncGenerator[SessionRow, None]:
        after: str | None = ""
        while after is not None:
            page = await self.runtime.journal.sessions(after=after, limit=_PAGE)
            for row in page:
                yield row
            after = page[-1].session if len(page) == _PAGE else None

    async def session(self, session: str) -> SessionStatus:
        return await self.runtime.session_status(session)

    async def erase(self, session: str) -> Erased:
        return await self.runtime.erase(session)


def _line(name: str) -> str:
    """Exactly the line of that name: a session's own means whatever is spoken of last."""
    from shadow_reader.events.branches import split_name

    session, branch = split_name(name)
    return f"{session}~branch{branch or 0}"


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None:
        raise typer.BadParameter(f"--older-than must be a number and s, m, h or d, not {text!r}")
    return float(found[1]) * _UNITS[found[2]]
