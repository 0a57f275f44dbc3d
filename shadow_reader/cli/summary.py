"""``shadow-reader summary``: what the big model was just thinking about, as it is written."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from shadow_reader.cli.options import JsonFlag, TokenOption, UrlOption, invocation
from shadow_reader.cli.output import people, print_json

if TYPE_CHECKING:
    from shadow_reader.shadow.telling import SummaryReply


def summary(
    context: typer.Context,
    session: Annotated[str, typer.Argument(help="The session's id.")],
    prompt: Annotated[
        str | None, typer.Option(help="What to ask for instead of the narrator's own words.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", help="Seconds to write; the server's own limit without it."),
    ] = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Summarise the last thought of a session's last turn, on top of the whole session.

    Written while nobody else needs the device; in a running turn within its share.
    """
    client = invocation(context).client(url, token)

    async def call() -> SummaryReply | None:
        async with client:
            lines = client.summary(session, prompt=prompt, timeout_s=timeout)
            async with contextlib.aclosing(lines):
                async for line in lines:
                    if line.reply is not None:
                        return line.reply
                    if not as_json:
                        people().print(line.text, end="", markup=False, highlight=False)
        return None

    reply = asyncio.run(call())
    if as_json:
        print_json(reply)
    elif reply is not None:
        people().print()
        people().print(
            f"{reply.ids} ids, ended: {reply.reason}; on top of {reply.position:,} ids, "
            f"{reply.behind:,} behind; lag {reply.lag_ms:.1f} ms, device {reply.used_ms:.1f} ms",
            style="dim",
        )
