"""``shadow-reader load`` and ``release``: whether the server's model is in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from shadow_reader.cli.options import JsonFlag, TokenOption, UrlOption, invocation
from shadow_reader.cli.output import bytes_shown, errors, facts, people, print_json

if TYPE_CHECKING:
    from shadow_reader.shadow.status import SlotStatus


LOOK_S = 0.5
"""How often it is asked what the loading waits for."""


def load(
    context: typer.Context,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", help="Seconds to wait for an idle window; ten minutes without."),
    ] = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Load the model in the next idle window, if its weights and the memory cap fit."""
    client = invocation(context).client(url, token)

    async def call() -> SlotStatus:
        async with client:
            loading = asyncio.ensure_future(client.load(timeout_s=timeout))
            with errors().status("loading") as shown:
                while not loading.done():
                    await asyncio.wait([loading], timeout=LOOK_S)
                    slot = (await client.status()).slot
                    shown.update(f"{slot.state}: {slot.reason}" if slot.reason else slot.state)
            return await loading

    _show(asyncio.run(call()), as_json=as_json)


def release(
    context: typer.Context,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Write every state to the disk and give the model's memory back; the next turn reloads it."""
    client = invocation(context).client(url, token)

    async def call() -> SlotStatus:
        async with client:
            return await client.release()

    _show(asyncio.run(call()), as_json=as_json)


def _show(slot: SlotStatus, *, as_json: bool) -> None:
    if as_json:
        print_json(slot)
        return
    rows: list[tuple[str, object]] = [("state", slot.state)]
    if slot.reason:
        rows.append(("why", slot.reason))
    if slot.claim_bytes is not None and slot.free_bytes is not None:
        rows.append(
            ("claim", f"{bytes_shown(slot.claim_bytes)} of {bytes_shown(slot.free_bytes)} free")
        )
    people().print(facts("model", rows))
