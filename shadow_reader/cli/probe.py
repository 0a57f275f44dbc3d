"""``shadow-reader probe``: questions that are learned."""

from __future__ import annotations

import typer

from shadow_reader.cli import probe_eval, probe_train
from shadow_reader.cli.output import EXIT_CODES_HELP

app = typer.Typer(help="Train learned questions, and hold them against labels.")
app.command("train", epilog=EXIT_CODES_HELP)(probe_train.train)
app.command("eval", epilog=EXIT_CODES_HELP)(probe_eval.evaluate)
