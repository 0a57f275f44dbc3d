"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from shadow_reader.config import Settings
    from shadow_reader.http.client import ShadowClient

JsonFlag: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object, and nothing else, on stdout.")
]
RowsFlag: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object a line (NDJSON) on stdout.")
]
UrlOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--url", help="The server's address. Default: host and port of the settings."),
]
TokenOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--token", help="The server's bearer token. Default: that of the settings."),
]
ModelOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A model folder, a name under the settings' dir, or random:tiny, random:0.8B, "
        "random:2B, random:4B.",
    ),
]
DeviceOption: TypeAlias = Annotated[
    str | None, typer.Option("--device", help="Where the model runs: auto, cpu or cuda.")
]
GridOption: TypeAlias = Annotated[int | None, typer.Option("--grid", help="Ids a chunk.")]
ThreadsOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--threads", help="CPU threads of the model; part of what makes states equal."),
]
MemoryOption: TypeAlias = Annotated[
    float | None, typer.Option("--gb", help="GiB that pages, states and checkpoints may take.")
]


@dataclass(frozen=True, slots=True)
class Invocation:
    """What stands before the command's name.

    Attributes:
        config: the settings file, if one was named.
    """

    config: Path | None = None

    def settings(self, **overrides: Any) -> Settings:
        """The settings from file, environment and the command's own options.

        Raises:
            SettingsError: names every key that is wrong.
        """
        from shadow_reader.config import load_settings

        return load_settings(file=self.config, environ=os.environ, overrides=overrides)

    def client(self, url: str | None, token: str | None) -> ShadowClient:
        """A client of the server that ``--url`` or the settings name."""
        from shadow_reader.http.client import ShadowClient

        settings = self.settings(token=token)
        return ShadowClient(url or base_url(settings.host, settings.port), settings.token)


def invocation(context: typer.Context) -> Invocation:
    """What the outermost command left for this one."""
    found = context.obj
    assert isinstance(found, Invocation), "the outermost command sets it"
    return found


def base_url(host: str, port: int) -> str:
    """Where a server with these settings is reached from the same machine."""
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
