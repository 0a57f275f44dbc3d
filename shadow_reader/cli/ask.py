"""``shadow-reader ask``: a typed question about a live session."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from shadow_reader.cli.options import JsonFlag, TokenOption, UrlOption, invocation
from shadow_reader.cli.output import people, print_json, table

if TYPE_CHECKING:
    from shadow_reader.shadow.questions import Reply

_BAR_CELLS = 24


class Wait(StrEnum):
    """When to answer."""

    FRESH = "fresh"
    NOW = "now"


def ask(
    context: typer.Context,
    session: Annotated[str, typer.Argument(help="The session's id.")],
    question: Annotated[str, typer.Argument(help="What to ask.")],
    choice: Annotated[
        list[str],
        typer.Option(
            "--choice", "-c", help="A possible answer; 2 to 26 times.", show_default=False
        ),
    ],
    wait: Annotated[
        Wait, typer.Option(help="fresh: when the shadow has caught up; now: with what it has.")
    ] = Wait.FRESH,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", help="Seconds to wait; the server's own limit without it."),
    ] = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Ask a typed question about a session and print the probability of every choice.

    Example: shadow-reader ask demo "What is the agent doing?" -c editing -c testing
    """
    client = invocation(context).client(url, token)

    async def call() -> Reply:
        async with client:
            return await client.ask(session, question, choice, wait=wait.value, timeout_s=timeout)

    reply = asyncio.run(call())
    if as_json:
        print_json(reply)
    else:
        show_reply(people(), reply)


def show_reply(console: Console, reply: Reply) -> None:
    """The probabilities as a table, the likeliest first, and how old the answer's knowledge is."""
    likeliest = sorted(reply.probabilities.items(), key=lambda item: -item[1])
    rows = [(_label(name, reply), f"{p:.3f}", _bar(p)) for name, p in likeliest]
    console.print(table("", ("choice", "#probability", ""), rows))
    age = f"{reply.behind:,} ids behind" if reply.behind else "fresh"
    console.print(
        f"at position {reply.position:,}, {age}; lag {reply.lag_ms:.1f} ms, "
        f"forward {reply.forward_ms:.1f} ms",
        style="dim",
    )


def _label(name: str, reply: Reply) -> Text:
    return Text(name, "bold green" if name == reply.label else "")


def _bar(probability: float) -> Text:
    return Text("█" * round(probability * _BAR_CELLS), "green")
