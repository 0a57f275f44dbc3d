"""What the demo shows to people: the session as it goes, and the verdict at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from shadow_reader.cli.ask import show_reply
from shadow_reader.cli.output import bytes_shown, facts

if TYPE_CHECKING:
    from shadow_reader.cli.demo_plan import DemoQuestion
    from shadow_reader.config import Settings
    from shadow_reader.errors import ShadowError
    from shadow_reader.replay.records import Recording
    from shadow_reader.shadow.questions import Reply
    from shadow_reader.shadow.status import SessionStatus

RANDOM_MODEL: Final = (
    "{model} has random weights: its answers mean nothing. What it reads, when, and that its state "
    "is exact, is real. To ask a real model: shadow-reader demo --model FOLDER, with a Qwen3.5 "
    "0.8B, 2B or 4B folder (config.json, tokenizer.json, *.safetensors)."
)


class Stage:
    """What the demo shows while it runs, all of it on standard error."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("turn {task.fields[turn]}"),
            BarColumn(),
            TextColumn("{task.fields[where]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._bar = self._progress.add_task("", total=None, turn="0", where="")
        self._turns = 0

    def __enter__(self) -> Stage:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def introduce(self, recording: Recording, settings: Settings) -> None:
        """Say what is going to be fed, and to what."""
        self._turns = recording.turns
        self.say(
            f"session: {recording.turns:,} turns of {recording.source}; journal in a new folder"
        )
        if settings.model.startswith("random:"):
            words = RANDOM_MODEL.format(model=settings.model)
            self._console.print(
                Panel(Text(words), style="yellow", title="note", title_align="left")
            )

    def say(self, words: str) -> None:
        """One line above the bar."""
        self._console.print(Text(words), soft_wrap=True)

    def show(self, turns_done: int, status: SessionStatus | None) -> None:
        """Move the bar: what is known, and how much of it was read; None: no server runs."""
        if status is None:
            self._progress.update(self._bar, total=None, where="no server runs")
            return
        self._progress.update(
            self._bar,
            total=max(status.known, 1),
            completed=status.committed,
            turn=f"{min(turns_done + 1, self._turns)}/{self._turns}",
            where=f"read {status.committed:,} of {status.known:,} ids, behind {status.behind:,}",
        )

    def asked(self, question: DemoQuestion, when: str, reply: Reply) -> None:
        """A question and its answer."""
        self._console.print(Text.assemble(("? ", "bold cyan"), question.question, f" ({when})"))
        show_reply(self._console, reply)

    def show_log(self, error: ShadowError) -> None:
        """The end of a process's log, if the error carries one."""
        log = error.details.get("log")
        if log:
            self._console.print(Panel(Text(log), title="log", title_align="left", style="dim"))


def show_result(console: Console, body: dict[str, Any]) -> None:
    """The verdict for people."""
    killed, checkpoints, state = body["killed"], body["checkpoints"], body["state"]
    agree = sum(check["exact"] for check in checkpoints)
    rows: list[tuple[str, object]] = [
        ("turns, ids", f"{body['turns']:,} turns, {body['ids']:,} ids"),
        ("read", f"{body['chunks_read']:,} chunks, again ones included"),
        ("rewinds", f"{body['rewinds']:,}, {body['reread_ids']:,} ids read again"),
        (
            "kill -9",
            f"{killed['acknowledged']:,} ids acknowledged before, {killed['present']:,} present "
            "after",
        ),
        ("checkpoints", f"{agree:,} of {len(checkpoints):,} digests equal to a fresh prefill's"),
        (
            "state",
            f"{bytes_shown(state['bytes'])} compared bit by bit at position {state['position']:,}"
            if state
            else "not compared",
        ),
        (
            "on disk",
            f"journal {bytes_shown(body['journal_bytes'])}, its write-ahead log among them",
        ),
        ("time", f"{body['seconds']:.1f} s"),
    ]
    console.print(facts("", rows))
    if body["exact"] and killed["intact"]:
        console.print(Text("exact: nothing was lost, and every bit is equal", "bold green"))
    else:
        why = "ids are missing after the kill" if not killed["intact"] else "the states differ"
        if state and state["difference"]:
            first = state["difference"]
            why += f", first in {first['tensor']} at {first['index']}: {first['why']}"
        console.print(Text(f"NOT exact: {why}", "bold red"), soft_wrap=True)
    if "kept" in body:
        kept = body["kept"]
        console.print(
            f"\nThe server goes on at {kept['address']} (process {kept['pid']}, journal "
            f"{kept['journal']}). Try:\n"
            f"  shadow-reader status demo --url {kept['address']}\n"
            f"  kill {kept['pid']}    # to end it",
            soft_wrap=True,
        )
