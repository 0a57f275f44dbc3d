"""``shadow-reader probe eval``: a probe held against labels of a journal."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from shadow_reader.replay.probes.training import Evaluated
    from shadow_reader.shadow.probe_file import TrainedProbe


def evaluate(
    context: typer.Context,
    file: Annotated[Path, typer.Option(help="A probe's file.", show_default=False)],
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
    later: Annotated[
        bool, typer.Option("--later", help="Only labels behind the entries it was trained on.")
    ] = False,
    session: SessionFilter = None,
    since: SinceOption = None,
    until: UntilOption = None,
    snapshots: SnapshotsFlag = True,
    model: ModelOption = None,
    device: DeviceOption = None,
    grid: GridOption = None,
    threads: ThreadsOption = None,
    gb: MemoryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Ask a probe at the labels of a journal, and hold what it says against them.

    Without --router or --label the labels are of the kind that it learned. The constant beside it
    is the best there is: the most frequent class of these very labels.
    """
    settings = invocation(context).settings(
        model=model, journal=journal, device=device, grid_ids=grid, threads=threads, cap_gb=gb
    )
    if not settings.model:
        raise typer.BadParameter("which model? give --model, or set it (QWEN38_SHADOW_MODEL)")
    probe = _probe(file)
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
        told=probe.source,
    )
    if later:
        wanted = replace(wanted, after=probe.last_seq)
    found = _evaluate(settings, probe, wanted, snapshots=snapshots)
    if as_json:
        body = {"probe": probe.name, "source": wanted.told, "labels": found.labels}
        body |= {"sessions": found.sessions, "overlap": found.overlap, "other": found.other}
        print_json({**body, "skipped": found.skipped, **measured_json(found.measured)})
    else:
        _show(probe, wanted, found)


def _probe(file: Path) -> TrainedProbe:
    from shadow_reader.shadow.probe_file import MAX_FILE_BYTES, unpacked

    try:
        with file.open("rb") as stream:
            return unpacked(stream.read(MAX_FILE_BYTES + 1))
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from error


def _evaluate(
    settings: Settings, probe: TrainedProbe, wanted: Wanted, *, snapshots: bool
) -> Evaluated:
    """All on this thread: the engine's."""
    from shadow_reader.replay.held_state import HeldState
    from shadow_reader.replay.probes.labels import find_labels
    from shadow_reader.replay.probes.training import evaluate
    from shadow_reader.shadow.torch_engine import build_engine
    from shadow_reader.shadow.vocabulary import load_vocabulary
    from shadow_reader.store.reader import JournalReader

    async def run() -> Evaluated:
        async with await JournalReader.open(settings.journal) as journal:
            vocabulary = load_vocabulary(settings.model_spec())
            found = await find_labels(journal, wanted, vocabulary.special.im_end)
            with closing(build_engine(settings)) as engine, bars() as shown:
                folder = settings.snapshot_dir if snapshots else None
                held = HeldState(engine, folder, shown.read)
                return await evaluate(journal, found, held, probe, begun=shown.begun)

    return asyncio.run(run())


def _show(probe: TrainedProbe, wanted: Wanted, found: Evaluated) -> None:
    console = people()
    trained = f"{probe.labels:,} labels ({probe.source}), {probe.metrics.accuracy:.1%} right on "
    trained += f"unseen sessions, the constant {probe.metrics.constant:.1%}"
    rows: list[tuple[str, object]] = [
        ("trained on", trained),
        ("held against", f"{found.labels:,} labels ({wanted.told}), {found.sessions:,} sessions"),
    ]
    console.print(facts(f"probe {probe.name}", rows))
    show_skipped(found.skipped)
    if found.overlap:
        said = f"{found.overlap:,} labels lie within the entries it was trained on, "
        said += f"{probe.first_seq:,} to {probe.last_seq:,}: --later leaves them out"
        console.print(Text(said, "yellow"))
    if found.other:
        said = f"{found.other:,} labels are of classes that it does not have: they count as wrong"
        console.print(Text(said, "yellow"))
    show_measured("of these labels", found.measured)
