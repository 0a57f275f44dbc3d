"""``shadow-reader status``: how the service and its sessions stand, once or live."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from shadow_reader.cli.options import JsonFlag, TokenOption, UrlOption, invocation
from shadow_reader.cli.output import bytes_shown, facts, people, print_json, table

if TYPE_CHECKING:
    from shadow_reader.events.view import AnswerView
    from shadow_reader.http.client import ShadowClient
    from shadow_reader.shadow.status import SessionStatus, Status


def status(
    context: typer.Context,
    session: Annotated[str | None, typer.Argument(help="Only this session.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep the table live.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the service: model, journal, memory, and every session's position and backlog."""
    if watch and as_json:
        raise typer.BadParameter("a live table is for people: use one of --watch and --json")
    client = invocation(context).client(url, token)
    if watch:
        asyncio.run(_watch(client, session, every))
        return
    body = asyncio.run(_once(client, session))
    if as_json:
        print_json(body)
    else:
        people().print(_view(body))


async def _look(client: ShadowClient, session: str | None) -> Status | SessionStatus:
    return await (client.status() if session is None else client.session(session))


async def _once(client: ShadowClient, session: str | None) -> Status | SessionStatus:
    async with client:
        return await _look(client, session)


async def _watch(client: ShadowClient, session: str | None, every_s: float) -> None:
    """A table that changes in place; one below the other where there is no terminal."""
    console = people()
    async with client:
        while not console.is_terminal:
            console.print(_view(await _look(client, session)))
            await asyncio.sleep(every_s)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_view(await _look(client, session)), refresh=True)
                await asyncio.sleep(every_s)


def _view(found: Status | SessionStatus) -> RenderableType:
    from shadow_reader.shadow.status import Status

    return service_view(found) if isinstance(found, Status) else session_view(found)


def service_view(status: Status) -> RenderableType:
    """The whole service's status for people."""
    journal = status.journal
    state = status.state + (f": {status.reason}" if status.reason else "")
    rows: list[tuple[str, object]] = [
        ("state", Text(state, "green" if status.state == "ready" else "yellow")),
        ("up", f"{status.uptime_s:,.0f} s"),
    ]
    if status.model is not None:
        memory = status.model.memory
        rows += [
            ("model", f"{status.model.identity.model} ({status.model.identity.device})"),
            ("engine", status.model.engine),
            (
                "states",
                f"{bytes_shown(memory.bytes)} of {bytes_shown(memory.cap_bytes)}, "
                f"weights {bytes_shown(memory.weights_bytes)}",
            ),
        ]
    rows += [
        (
            "journal",
            f"entry {journal.last_seq:,}, {bytes_shown(journal.bytes)}, "
            f"durability {journal.durability}",
        ),
        ("waiting to commit", f"{journal.pending:,} of at most {journal.pending_limit:,} events"),
    ]
    parts = (facts("shadow reader", rows), "", _sessions(status.sessions), *_notes(status))
    return Group(*parts)


def _sessions(sessions: Sequence[SessionStatus]) -> RenderableType:
    if not sessions:
        return Text("no session yet", "dim")
    return table(
        "",
        ("session", "#turns", "#known", "#behind", "#rewinds", "#state"),
        (
            (
                s.session,
                f"{s.turns:,}{' *' if s.running else ''}",
                s.known,
                _behind(s),
                s.rewinds,
                bytes_shown(s.bytes),
            )
            for s in sessions
        ),
    )


def _notes(status: Status) -> Iterator[RenderableType]:
    """What stands in the way, where the service as a whole is ready."""
    if any(s.running for s in status.sessions):
        yield Text("* a turn is running", "dim")
    if status.state == "ready":
        for s in status.sessions:
            if s.note:
                yield Text.assemble((f"{s.session}: ", "bold"), (s.note, "yellow"))


def session_view(status: SessionStatus) -> RenderableType:
    """One session's status for people."""
    rows: list[tuple[str, object]] = [
        ("known ids", status.known),
        ("committed", status.committed),
        ("behind", _behind(status)),
        ("turns", f"{status.turns:,}" + (f", running: {status.turn}" if status.running else "")),
        ("rewinds", f"{status.rewinds:,} ({status.reread:,} ids read again)"),
        ("ids read", status.read),
        ("checkpoints at", status.checkpoints),
        ("state", f"{bytes_shown(status.bytes)} in {status.pages:,} pages"),
        ("open questions", status.open_questions),
        ("last news", _clock(status.last_at)),
    ]
    if status.note:
        rows.append(("note", Text(status.note, "yellow")))
    parts: list[RenderableType] = [facts(f"session {status.session}", rows)]
    if status.answers:
        parts.append(_answers(status.answers))
    return Group(*parts)


def _answers(answers: Sequence[AnswerView]) -> RenderableType:
    return table(
        "last answers",
        ("at", "label", "#probability", "#position", "#behind", "#lag ms"),
        (
            (
                _clock(a.answered_at),
                a.label,
                f"{a.probability:.3f}",
                a.position,
                a.behind,
                f"{a.lag_ms:.1f}",
            )
            for a in answers
        ),
    )


def _behind(status: SessionStatus) -> Text:
    behind = f"{status.behind:,}"
    return Text(f"{behind} (fresh)", "green") if status.fresh else Text(behind, "yellow")


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
