"""``shadow-reader probe train``: learn to answer a question from a journal's labels."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from shadow_reader.cli.journal import SessionFilter, SinceOption, UntilOption
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
from shadow_reader.cli.probe_labels import (
    ClassesOption,
    DecidedFlag,
    LabelOption,
    LeastOption,
    RouterFlag,
    SnapshotsFlag,
    SourceOption,
    bars,
    chosen,
)
from shadow_reader.cli.probe_shown import measured_json, show_measured, show_skipped

if TYPE_CHECKING:
    from shadow_reader.config import Settings
    from shadow_reader.replay.probes.labels import Wanted
    from shadow_reader.replay.probes.training import Trained


def train(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What the probe is asked by.")],
    out: Annotated[Path, typer.Option(help="Write the probe to this file.", show_default=False)],
    journal: Annotated[
        Path | None,
        typer.Option(help="The journal's file, also while a server writes it. Default: settings."),
    ] = None,
    router: RouterFlag = False,
    label: LabelOption = None,
    source: SourceOption = None,
    decided: DecidedFlag = False,
    classes: ClassesOption = None,
    least_ids: LeastOption = 0,
    session: SessionFilter = None,
    since: SinceOption = None,
    until: UntilOption = None,
    layer: Annotated[
        list[int] | None,
        typer.Option(
            help="A layer to choose from, counted from 0, their number being what is left after "
            "the final norm; repeatable. Default: half-way, three quarters, and that.",
            show_default=False,
        ),
    ] = None,
    last: Annotated[int, typer.Option(help="A vector is the mean of the last so many rows.")] = 1,
    suffix: Annotated[
        str, typer.Option(help="Read behind what a label is about; special tokens are read as such")
    ] = "<|im_end|>",
    seed: Annotated[int, typer.Option(help="Of the divisions and the interval.")] = 0,
    snapshots: SnapshotsFlag = True,
    model: ModelOption = None,
    device: DeviceOption = None,
    grid: GridOption = None,
    threads: ThreadsOption = None,
    gb: MemoryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a probe on labels of a journal, and measure it on sessions it has not seen.

    Beside every figure stands that of the constant answer. The same journal, model, options and
    seed give the same file. Needs the extra shadow-reader[probes].
    """
    settings = invocation(context).settings(
        model=model, journal=journal, device=device, grid_ids=grid, threads=threads, cap_gb=gb
    )
    if not settings.model:
        raise typer.BadParameter("which model? give --model, or set it (QWEN38_SHADOW_MODEL)")
    if not out.parent.is_dir():
        raise typer.BadParameter(f"--out: there is no folder {out.parent}")
    wanted = chosen(
        router=router,
        label=label,
        source=source,
        decided=decided,
        classes=classes,
        least_ids=least_ids,
        session=session,
        since=since,
        until=until,
    )
    trained = _train(
        settings, wanted, name, suffix, tuple(layer or ()), last, seed, snapshots=snapshots
    )
    raw = _packed(trained)
    _write(out, raw)
    if as_json:
        print_json(_json(trained, seed, out))
    else:
        _show(trained, seed)
        people().print(Text(f"written to {out}: {len(raw):,} bytes"))


def _train(
    settings: Settings,
    wanted: Wanted,
    name: str,
    suffix: str,
    layers: tuple[int, ...],
    last: int,
    seed: int,
    *,
    snapshots: bool,
) -> Trained:
    """All on this thread: the engine's."""
    from shadow_reader.events.ids import Ids
    from shadow_reader.replay.held_state import HeldState
    from shadow_reader.replay.probes.fit import Rules, check_installed
    from shadow_reader.replay.probes.labels import find_labels
    from shadow_reader.replay.probes.training import check_found, train
    from shadow_reader.replay.probes.vectors import Reading, default_layers
    from shadow_reader.shadow.torch_engine import build_engine
    from shadow_reader.shadow.vocabulary import load_vocabulary
    from shadow_reader.store.reader import JournalReader

    check_installed()

    async def run() -> Trained:
        async with await JournalReader.open(settings.journal) as journal:
            vocabulary = load_vocabulary(settings.model_spec())
            found = await find_labels(journal, wanted, vocabulary.special.im_end)
            check_found(found, name)  # before a model is loaded for nothing
            ids = Ids.of(vocabulary.encode(suffix, special=True))
            with closing(build_engine(settings)) as engine, bars() as shown:
                reading = Reading(ids, layers or default_layers(engine.layers), last)
                folder = settings.snapshot_dir if snapshots else None
                held = HeldState(engine, folder, shown.read)
                return await train(
                    *(journal, found, held, name, reading, Rules(seed=seed)),
                    begun=shown.begun,
                    progress=shown.fitted,
                )

    return asyncio.run(run())


def _packed(trained: Trained) -> bytes:
    from shadow_reader.shadow.probe_file import packed

    return packed(trained.probe)


def _write(out: Path, raw: bytes) -> None:
    try:
        out.write_bytes(raw)
    except OSError as error:
        raise typer.BadParameter(f"{out} cannot be written: {error.strerror}") from error


def _show(trained: Trained, seed: int) -> None:
    probe, fitted = trained.probe, trained.fitted
    console = people()
    counts = ", ".join(f"{name} {count}" for name, count in trained.by_class.items())
    rows: list[tuple[str, object]] = [
        ("labels", f"{probe.labels:,} of {probe.sessions:,} sessions ({probe.source}): {counts}"),
        ("entries", f"{probe.first_seq:,} to {probe.last_seq:,}"),
        ("reads", f"layer {probe.layer}, last {probe.last} of suffix {list(probe.suffix)}"),
        ("strength", f"{probe.strength:g}"),
        ("seed", str(seed)),
    ]
    console.print(facts(f"probe {probe.name}", rows))
    show_skipped(trained.skipped)
    if fitted.unconverged:
        said = f"{fitted.unconverged} fits ended before they converged"
        console.print(Text(said, "yellow"))
    show_measured("on sessions it had not seen", fitted.measured)


def _json(trained: Trained, seed: int, out: Path) -> dict[str, Any]:
    probe, fitted = trained.probe, trained.fitted
    plain = ("name", "source", "weights", "grid", "layer", "last", "strength")
    more = ("first_seq", "last_seq", "labels", "sessions", "classes", "beats")
    return {
        **{key: getattr(probe, key) for key in plain + more},
        "suffix": list(probe.suffix),
        "seed": seed,
        "by_class": trained.by_class,
        "skipped": trained.skipped,
        "tried": [asdict(choice) for choice in fitted.tried],
        "unconverged": fitted.unconverged,
        **measured_json(fitted.measured),
        "file": str(out),
    }
