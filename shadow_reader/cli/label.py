"""``shadow-reader label``: say what is right of a session, one label or a file of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shadow_reader.cli.options import JsonFlag, TokenOption, UrlOption, invocation
from shadow_reader.cli.output import people, print_json

if TYPE_CHECKING:
    from shadow_reader.events.types import Label
    from shadow_reader.shadow.sessions import Accepted


def label(
    context: typer.Context,
    session: Annotated[str, typer.Argument(help="The session's id.")],
    name: Annotated[str | None, typer.Argument(help="What is labelled.")] = None,
    value: Annotated[str | None, typer.Argument(help="What it is.")] = None,
    position: Annotated[
        int | None, typer.Option(help="Of the first so many ids. Default: all that are known.")
    ] = None,
    source: Annotated[str, typer.Option(help="Who says so.")] = "",
    file: Annotated[
        Path | None,
        typer.Option(help='Labels as JSON lines of {"name", "position", "value", "source"}.'),
    ] = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Journal labels of a session, all or none: the newest of a name and position counts."""
    from shadow_reader.events.types import Label

    if (file is None) == (name is None or value is None):
        raise typer.BadParameter("give a name and a value, or --file with labels")
    client = invocation(context).client(url, token)

    async def call() -> Accepted:
        async with client:
            if file is not None:
                return await client.label(session, _read(file))
            assert name is not None
            assert value is not None
            at = position if position is not None else (await client.session(session)).known
            return await client.label(session, [Label(name, at, value, source)])

    accepted = asyncio.run(call())
    if as_json:
        print_json(accepted)
    else:
        people().print(f"labelled: entry {accepted.seq:,} of the journal")


def _read(file: Path) -> list[Label]:
    """The labels of a file.

    Raises:
        BadParameter: names the first line that is none.
    """
    from pydantic import ValidationError

    from shadow_reader.events.types import Label
    from shadow_reader.http.bodies import LabelBody

    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            body = LabelBody.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise typer.BadParameter(f"label {number}: {where}: {first['msg']}") from error
        found.append(Label(body.name, body.position, body.value, body.source))
    return found
