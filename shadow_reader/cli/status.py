"""``shadow-reader status``: how the service and its sessions stand, once or live."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from shadow_reader.cli.options import JsonFlag, TokenOption, UrlOption, invocation
from shadow_reader.cli.output import bytes_shown, facts, people, print_json, table

NEAR: Final = 0.8
"""A bound is shown in yellow from this share on."""

if TYPE_CHECKING:
    from shadow_reader.bounds import Limit
    from shadow_reader.events.view import AnswerView
    from shadow_reader.http.client import ShadowClient
    from shadow_reader.shadow.router import RouterStatus
    from shadow_reader.shadow.status import SessionStatus, Status


def status(
    context: typer.Context,
    session: Annotated[str | None, typer.Argument(help="Only this session.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep the table live.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    limits: Annotated[
        bool, typer.Option("--limits", help="Show every bound, and how much of it is in use.")
    ] = False,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the service: model, journal, memory, and every session's position and backlog."""
    if watch and as_json:
        raise typer.BadParameter("a live table is for people: use one of --watch and --json")
    if limits and session is not None:
        raise typer.BadParameter("--limits are the service's: name no session with it")
    client = invocation(context).client(url, token)
    if watch:
        asyncio.run(_watch(client, session, every, limits))
        return
    body = asyncio.run(_once(client, session))
    if as_json:
        print_json(body)
    else:
        people().print(_view(body, limits))


async def _look(client: ShadowClient, session: str | None) -> Status | SessionStatus:
    return await (client.status() if session is None else client.session(session))


async def _once(client: ShadowClient, session: str | None) -> Status | SessionStatus:
    async with client:
        return await _look(client, session)


async def _watch(
    client: ShadowClient, session: str | None, every_s: float, all_limits: bool
) -> None:
    """A table that changes in place; one below the other where there is no terminal."""
    console = people()
    async with client:
        while not console.is_terminal:
            console.print(_view(await _look(client, session), all_limits))
            await asyncio.sleep(every_s)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_view(await _look(client, session), all_limits), refresh=True)
                await asyncio.sleep(every_s)


def _view(found: Status | SessionStatus, all_limits: bool) -> RenderableType:
    from shadow_reader.shadow.status import Status

    if isinstance(found, Status):
        return service_view(found, all_limits=all_limits)
    return session_view(found)


def service_view(status: Status, *, all_limits: bool = False) -> RenderableType:
    """The whole service's status for people."""
    journal = status.journal
    state = status.state + (f": {status.reason}" if status.reason else "")
    rows: list[tuple[str, object]] = [
        ("state", Text(state, "green" if status.state == "ready" else "yellow")),
        ("up", f"{status.uptime_s:,.0f} s"),
    ]
    if status.slot.state != "loaded":
        why = f": {status.slot.reason}" if status.slot.reason else ""
        rows.append(("model", Text(status.slot.state + why, "yellow")))
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
        ("nearest limit", _nearest(status.limits)),
    ]
    if status.router is not None:
        rows.append(("router's question", _router(status.router)))
    parts: list[RenderableType] = [facts("shadow reader", rows), ""]
    if all_limits:
        parts += [_limits(status.limits), ""]
    return Group(*parts, _sessions(status.sessions), *_notes(status))


def _router(router: RouterStatus) -> str:
    """Of how many turns it was asked, and how often the answer was the router's class."""
    agreed = f", {router.agreed} of {router.compared} as the router said" if router.compared else ""
    return f"{router.answered} of {router.asked} answered{agreed}, {router.open} open"


def _nearest(limits: Sequence[Limit]) -> Text:
    """The bound that will be reached first, if things go on as they are."""
    if not limits:
        return Text("none is known", "dim")
    found = max(limits, key=lambda limit: limit.used / limit.limit)
    style = "yellow" if found.used >= NEAR * found.limit else ""
    return Text(f"{found.name}: {found.used:,} of {found.limit:,} in use", style)


def _limits(limits: Sequence[Limit]) -> RenderableType:
    rows = ((limit.name, limit.used, limit.limit) for limit in limits)
    return table("limits", ("limit", "#in use", "#of"), rows)


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
            for said in filter(None, (s.note, s.rewritten)):
                yield Text.assemble((f"{s.session}: ", "bold"), (said, "yellow"))


def session_view(status: SessionStatus) -> RenderableType:
    """One session's status for people."""
    rows: list[tuple[str, object]] = [
        ("known ids", status.known),
        ("committed", status.committed),
        ("behind", _behind(status)),
        ("turns", f"{status.turns:,}"),
        ("last turn", _last_turn(status)),
        ("rewinds", f"{status.rewinds:,} ({status.reread:,} ids read again)"),
        ("ids read", status.read),
        ("checkpoints at", status.checkpoints),
        ("state", f"{bytes_shown(status.bytes)} in {status.pages:,} pages"),
        ("open questions", status.open_questions),
        ("last news", _clock(status.last_at)),
    ]
    if status.note:
        rows.append(("note", Text(status.note, "yellow")))
    if status.rewritten:
        rows.append(("read again", Text(status.rewritten, "yellow")))
    parts: list[RenderableType] = [facts(f"session {status.session}", rows)]
    if status.answers:
        parts.append(_answers(status.answers))
    return Group(*parts)


def _last_turn(status: SessionStatus) -> Text:
    """Its id, what the sender's router made of it, and whether or why it ended."""
    if status.turn is None:
        return Text("none", "dim")
    parts = [status.turn, "running" if status.running else f"ended: {status.reason}"]
    if status.router is not None:
        parts.append(f"router: {status.router}")
    found = Text(", ".join(parts))
    if status.unsure:
        found.append(", its sender counted other output ids than came", "yellow")
    return found


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
