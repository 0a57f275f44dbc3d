"""The program ``shadow-reader``: one module a command, and what they all share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shadow_reader.cli import (
    ask,
    demo,
    feed,
    import_records,
    journal,
    journal_prune,
    journal_query,
    journal_share,
    label,
    model,
    probe,
    rebuild,
    replay_ledger,
    replay_router,
    serve,
    status,
    summary,
)
from shadow_reader.cli.group import ShadowGroup
from shadow_reader.cli.options import Invocation
from shadow_reader.cli.output import EXIT_CODES_HELP

app = typer.Typer(
    name="shadow-reader",
    cls=ShadowGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES_HELP,
)
app.command("serve", epilog=EXIT_CODES_HELP)(serve.serve)
app.command("demo", epilog=EXIT_CODES_HELP)(demo.demo)
app.command("feed", epilog=EXIT_CODES_HELP)(feed.feed)
app.command("ask", epilog=EXIT_CODES_HELP)(ask.ask)
app.command("label", epilog=EXIT_CODES_HELP)(label.label)
app.command("summary", epilog=EXIT_CODES_HELP)(summary.summary)
app.command("status", epilog=EXIT_CODES_HELP)(status.status)
app.command("load", epilog=EXIT_CODES_HELP)(model.load)
app.command("release", epilog=EXIT_CODES_HELP)(model.release)
journal.app.command("query", epilog=EXIT_CODES_HELP)(journal_query.query)
journal.app.command("schema", epilog=EXIT_CODES_HELP)(journal_query.schema)
journal.app.command("prune", epilog=EXIT_CODES_HELP)(journal_prune.prune)
journal.app.command("share", epilog=EXIT_CODES_HELP)(journal_share.share)
app.add_typer(journal.app, name="journal")
app.add_typer(probe.app, name="probe")
app.command("rebuild", epilog=EXIT_CODES_HELP)(rebuild.rebuild)
app.command("import", epilog=EXIT_CODES_HELP)(import_records.import_records)
replay_ledger.app.command("router", epilog=EXIT_CODES_HELP)(replay_router.replay_router)
app.add_typer(replay_ledger.app, name="replay")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="shadow.toml", help="Settings file; see also below."),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """A small model that keeps its own exact state of every live session of a big one.

    Settings come from --config, then the environment (QWEN38_SHADOW_MODEL, _DIR, _GB, _GRID,
    _DISK, _DISK_GB, _JOURNAL, _DURABILITY, _DEVICE, _THREADS, _HOST, _PORT, _TOKEN), then a
    command's own options; the later wins.
    """
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("shadow-reader"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    context.obj = Invocation(config)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
