"""``shadow-reader ask``: a typed question about a live session."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from shadow_reader.cli.options import JsonFlag, TokenOption, UrlOption, invocation
from shadow_reader.cli.output import people, print_json, table

if TYPE_CHECKING:
    from shadow_reader.shadow.questions import Ask, Reply

_BAR_CELLS = 24


class Wait(StrEnum):
    """When to answer."""

    FRESH = "fresh"
    NOW = "now"
    POSITION = "position"


def ask(
    context: typer.Context,
    session: Annotated[str, typer.Argument(help="The session's id.")],
    question: Annotated[str | None, typer.Argument(help="What to ask.")] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(
            "--choice", "-c", help="A possible answer; 2 to 26 times.", show_default=False
        ),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            help='Ask these together: JSON lines of {"question", "choices", "calibrate"}, '
            'or of {"probe"}.',
        ),
    ] = None,
    probe: Annotated[
        str | None,
        typer.Option(help="Ask this probe, which brings its own question and choices."),
    ] = None,
    wait: Annotated[
        Wait,
        typer.Option(
            help="fresh: when the shadow has caught up; now: with what it has; position: on top of "
            "the first --position ids."
        ),
    ] = Wait.FRESH,
    position: Annotated[int | None, typer.Option(help="With --wait position: so many ids.")] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Divide by what the model says of the question alone."),
    ] = False,
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
    asked = _asked(question, choice, questions, probe, calibrate=calibrate)
    client = invocation(context).client(url, token)

    async def call() -> tuple[Reply, ...]:
        async with client:
            return await client.ask_many(
                session, asked, wait=wait.value, position=position, timeout_s=timeout
            )

    replies = asyncio.run(call())
    if as_json and questions is None:
        print_json(replies[0])
    elif as_json:
        print_json({"replies": replies})
    else:
        for one, reply in zip(asked, replies, strict=True):
            if questions is not None:
                people().print(Text(str(one.question or one.probe), "bold"))
            show_reply(people(), reply)


def _asked(
    question: str | None,
    choice: list[str] | None,
    file: Path | None,
    probe: str | None,
    *,
    calibrate: bool,
) -> list[Ask]:
    """The one question or probe that was given, or those of a file."""
    from shadow_reader.shadow.questions import Ask

    if probe is not None:
        if question is not None or choice or file is not None or calibrate:
            raise typer.BadParameter("--probe is asked alone: it brings its question and choices")
        return [Ask(probe=probe)]
    if file is None:
        if question is None or not choice:
            raise typer.BadParameter(
                "give a question and its choices, --probe NAME, or --questions FILE"
            )
        return [Ask(question, choice, calibrate)]
    if question is not None or choice:
        raise typer.BadParameter("give one question, or a file of them with --questions")
    return [_read_line(number, line, calibrate) for number, line in enumerate(_lines(file), 1)]


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from error


def _read_line(number: int, line: str, calibrate: bool) -> Ask:
    from pydantic import ValidationError

    from shadow_reader.http.bodies import QuestionBody

    try:
        body = QuestionBody.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        raise typer.BadParameter(f"question {number}: {where}: {first['msg']}") from error
    asked = body.ask
    return asked if asked.probe else replace(asked, calibrate=body.calibrate or calibrate)


def show_reply(console: Console, reply: Reply) -> None:
    """The probabilities as a table, the likeliest first, and how old the answer's knowledge is."""
    likeliest = sorted(reply.probabilities.items(), key=lambda item: -item[1])
    rows = [(_label(name, reply), f"{p:.3f}", _bar(p)) for name, p in likeliest]
    console.print(table("", ("choice", "#probability", ""), rows))
    if (by := reply.probe) is not None:
        console.print(
            Text(
                f"by probe {by.name}, version {by.version}: right {by.accuracy:.3f} of the time, "
                f"the constant {by.constant:.3f}" + (", served by force" if by.forced else ""),
                "dim",
            )
        )
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
