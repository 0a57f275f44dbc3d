"""``shadow-reader import``: records of agents, proxies and benchmarks become a usage ledger."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shadow_reader.cli.options import JsonFlag
from shadow_reader.cli.output import errors, facts, people, print_json, shown, table

_COLUMNS: Final = (
    TextColumn("importing"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
)
_SPREADS: Final = ("gap_s", "turn_s", "decode_s", "prompt_ids", "growth_ids", "output_ids")

if TYPE_CHECKING:
    from shadow_reader.replay.ledger.imports import Imported
    from shadow_reader.replay.ledger.summary import Summary


def import_records(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="opencode's storage folder, opencode.db or exports; session files of Claude Code, "
            "Codex, Pi or qwen-code, or a folder of them; LiteLLM spend logs; vLLM multi-turn "
            "statistics. What a file is is told by what it holds.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="The ledger to write: JSON lines; compressed if it ends in .gz."
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Turn recorded sessions into a usage ledger: when each request ran, how many ids it brought.

    Records are only read, also a database that opencode has open. What they do not say is assumed
    and marked in the ledger, or left out; both are counted on standard error and with --json.
    """
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} exists; --force replaces it", param_hint="--out")
    from shadow_reader.replay.ledger import ledger_of, write_ledger
    from shadow_reader.replay.ledger.imports import import_records as read
    from shadow_reader.replay.ledger.summary import summary

    with Progress(*_COLUMNS, console=errors(), transient=True) as progress:
        bar = progress.add_task("", total=None)

        def advance(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        imported = read(paths, advance)
    write_ledger(out, imported.turns)
    found = summary(ledger_of(out.name, imported.turns))
    if as_json:
        print_json(
            {
                "ledger": str(out),
                "sources": dict(imported.sources),
                "left_out": dict(imported.left_out),
                "not_as_recorded": dict(imported.notes),
                "summary": asdict(found),
            }
        )
    else:
        _show(out, imported, found)
    _complain(imported)


def _show(out: Path, imported: Imported, found: Summary) -> None:
    console = people()
    sources = ", ".join(f"{n} of {name}" for name, n in imported.sources.items())
    console.print(
        facts(
            "",
            [
                ("ledger", str(out)),
                ("files", sources),
                ("sessions", found.sessions),
                ("requests", found.turns),
            ],
        )
    )
    rows = [
        (name, spread.count, *(shown(value) for value in (spread.p10, spread.p50, spread.p90)))
        for name in _SPREADS
        for spread in (getattr(found, name),)
    ]
    console.print(table("", ("", "#values", "#p10", "#p50", "#p90"), rows))


def _complain(imported: Imported) -> None:
    """What the ledger does not hold as the records say it, on standard error."""
    console = errors()
    rows = [("left out", why, n) for why, n in imported.left_out.items()]
    rows += [("not as recorded", why, n) for why, n in imported.notes.items()]
    if rows:
        console.print(table("", ("", "what", "#requests"), rows))
