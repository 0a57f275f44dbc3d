"""``shadow-reader serve``: the service, until it is told to end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shadow_reader.cli.options import (
    DeviceOption,
    GridOption,
    JsonFlag,
    MemoryOption,
    ModelOption,
    ThreadsOption,
    invocation,
)
from shadow_reader.cli.output import facts, people, print_json

if TYPE_CHECKING:
    from shadow_reader.config import Settings
    from shadow_reader.http.serve import Address


def serve(
    context: typer.Context,
    model: ModelOption = None,
    host: Annotated[str | None, typer.Option(help="Where to listen.")] = None,
    port: Annotated[int | None, typer.Option(help="Where to listen; 0 takes a free one.")] = None,
    journal: Annotated[Path | None, typer.Option(help="The journal's file.")] = None,
    durability: Annotated[
        str | None,
        typer.Option(help="normal: a commit survives the process; full: a power loss too."),
    ] = None,
    device: DeviceOption = None,
    grid: GridOption = None,
    threads: ThreadsOption = None,
    gb: MemoryOption = None,
    foreground: Annotated[
        str | None,
        typer.Option(help="turns: rationed while turns run; lease: the model has its own device."),
    ] = None,
    token: Annotated[str | None, typer.Option(help="Bearer token that clients must send.")] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option("--ready-file", help="Written once it listens: host, port, pid, url as JSON."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run the service. Without a model it only journals what it is told.

    Ends in order on Ctrl-C or SIGTERM. Every option but --ready-file and --json is also a setting.
    """
    settings = invocation(context).settings(
        model=model,
        host=host,
        port=port,
        journal=journal,
        durability=durability,
        device=device,
        grid_ids=grid,
        threads=threads,
        cap_gb=gb,
        foreground=foreground,
        token=token,
    )
    from shadow_reader.http.serve import run

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )

    def ready(address: Address) -> None:
        announce(settings, address, as_json=as_json)

    run(settings, on_ready=ready, ready_file=ready_file)


def announce(settings: Settings, address: Address, *, as_json: bool) -> None:
    """Say that the service is ready, and where."""
    journal = str(settings.journal.expanduser().absolute())
    if as_json:
        print_json(
            {
                "address": address.url,
                "pid": address.pid,
                "model": settings.model_spec() or None,
                "journal": journal,
            }
        )
        return
    people().print(
        facts(
            "shadow reader is ready",
            [
                ("address", address.url),
                ("model", settings.model_spec() or "none: sessions are only journaled"),
                ("journal", journal),
                ("process", str(address.pid)),
            ],
        )
    )
