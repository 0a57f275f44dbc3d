"""``shadow-reader feed FILE``: a recorded agent session, told to a server as an engine would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shadow_reader.cli.engine_feed import EngineFeed
from shadow_reader.cli.options import JsonFlag, ModelOption, TokenOption, UrlOption, invocation
from shadow_reader.cli.output import errors, facts, people, print_json
from shadow_reader.clock import SystemClock

if TYPE_CHECKING:
    from shadow_reader.http.client import ShadowClient
    from shadow_reader.replay.turns import RecordedTurn
    from shadow_reader.shadow.sessions import Accepted
    from shadow_reader.shadow.status import SessionStatus

POLL_S: Final = 0.25
DEFAULT_VOCABULARY: Final = "random:tiny"


@dataclass(slots=True)
class _Counts:
    turns: int = 0
    messages: int = 0
    output: int = 0

    def replied(self, _accepted: Accepted) -> None:
        self.messages += 1


def feed(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(help="An opencode export, a Claude Code or a Pi session (JSON, JSONL)."),
    ],
    session: Annotated[
        str | None, typer.Option("--session", help="Name at the server. Default: the record's own.")
    ] = None,
    pace: Annotated[float, typer.Option(help="Seconds between two turns.", min=0.0)] = 0.0,
    turns: Annotated[int | None, typer.Option(help="Only the first N turns.", min=1)] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Output ids a second. Default: as fast as it goes.", min=0.1),
    ] = None,
    seed: Annotated[int, typer.Option(help="Cuts the outputs into deltas.")] = 0,
    profile: Annotated[
        str | None, typer.Option("--profile", help="The turns' profile in the server's settings.")
    ] = None,
    model: ModelOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Render a recorded session with the model's chat template and feed it turn by turn.

    Every turn is sent as a serving engine reports it: prompt, first token, deltas of a few ids,
    end. --model says whose vocabulary (default: the settings' model, else the Qwen3.5 vocabulary).
    """
    from shadow_reader.replay.records import read_recording
    from shadow_reader.replay.turns import recorded_turns
    from shadow_reader.shadow.vocabulary import load_vocabulary

    shared = invocation(context)
    settings = shared.settings(model=model)
    client = shared.client(url, token)
    recording = read_recording(file)
    name = session or recording.session
    total = min(turns or recording.turns, recording.turns)
    vocabulary = load_vocabulary(settings.model_spec() or DEFAULT_VOCABULARY)
    source = iter(recorded_turns(recording, vocabulary))

    async def run() -> dict[str, Any]:
        clock = SystemClock()
        started = clock.monotonic()
        counts = _Counts()
        async with client:
            feeder = EngineFeed(client, name, rate=rate, seed=seed, profile=profile)
            async with _watched(client, name, total) as progress:
                for number in range(total):
                    turn: RecordedTurn = await asyncio.to_thread(next, source)
                    if number and pace:
                        await asyncio.sleep(pace)
                    await feeder.send(turn, counts.replied)
                    counts.turns += 1
                    counts.output += len(turn.output)
                    progress.advance(counts.turns)
            status = await client.session(name)
        return _summary(counts, status, recording.source, clock.monotonic() - started)

    body = asyncio.run(run())
    if as_json:
        print_json(body)
    else:
        people().print(
            facts(f"fed {file.name}", [(k.replace("_", " "), v) for k, v in body.items()])
        )


def _summary(counts: _Counts, status: SessionStatus, source: str, seconds: float) -> dict[str, Any]:
    return {
        "session": status.session,
        "source": source,
        "turns": counts.turns,
        "messages": counts.messages,
        "output_ids": counts.output,
        "ids": status.known,
        "committed": status.committed,
        "behind": status.behind,
        "rewinds": status.rewinds,
        "reread_ids": status.reread,
        "seconds": round(seconds, 3),
    }


class _Bar:
    """Turns done, and where the reader stands."""

    def __init__(self, progress: Progress, session: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(session, total=total, position="")

    def advance(self, done: int) -> None:
        """``done`` turns are at the server."""
        self._progress.update(self._task, completed=done)

    def stands(self, status: SessionStatus) -> None:
        """Show the session's position and backlog."""
        text = f"position {status.committed:,} of {status.known:,}, behind {status.behind:,}"
        self._progress.update(self._task, position=text)


@contextlib.asynccontextmanager
async def _watched(client: ShadowClient, session: str, total: int) -> AsyncIterator[_Bar]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("turns · {task.fields[position]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors(), transient=True) as progress:
        bar = _Bar(progress, session, total)
        watcher = asyncio.create_task(_follow(client, session, bar))
        try:
            yield bar
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])


async def _follow(client: ShadowClient, session: str, bar: _Bar) -> None:
    """Until cancelled; a look that fails is the feed's to report."""
    from shadow_reader.errors import ShadowError

    while True:
        with contextlib.suppress(ShadowError):
            bar.stands(await client.session(session))
        await asyncio.sleep(POLL_S)
