"""``shadow-reader demo``: the whole service at work on one session, killed once, proved exact."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shadow_reader.cli.demo_stage import Stage, show_result
from shadow_reader.cli.options import JsonFlag, ModelOption, invocation
from shadow_reader.cli.output import ExitCode, errors, people, print_json
from shadow_reader.errors import ShadowError

if TYPE_CHECKING:
    from shadow_reader.cli.demo_run import Demo, DemoResult
    from shadow_reader.config import Settings
    from shadow_reader.replay.records import Recording

DEMO_MODEL: Final = "random:tiny"
DEMO_CAP_GB: Final = 1.0
"""So that it runs on a machine with little memory, where nothing else is set."""
SESSION: Final = "demo"


def demo(
    context: typer.Context,
    session: Annotated[
        Path | None,
        typer.Option(
            "--session",
            help="A recorded session (opencode export, Claude Code or Pi JSONL). Default: one made "
            "out of this project's own source files.",
        ),
    ] = None,
    model: ModelOption = None,
    seed: Annotated[
        int, typer.Option(help="Makes the session and cuts its outputs into deltas.")
    ] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the server running, and its files where they are.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Feed a coding session to a real server, ask about it, kill it, and prove its state exact.

    The server runs in a process of its own with a journal in a temporary folder. It is killed with
    SIGKILL in the middle of a turn and started again; at the end another process prefills the
    session from the journal and compares every bit. Exits with 1 if anything was lost or differs.
    """
    from shadow_reader.replay.made_session import make_recording
    from shadow_reader.replay.records import read_recording

    shared = invocation(context)
    settings = shared.settings(model=model)
    update: dict[str, object] = {"model": settings.model_spec() or DEMO_MODEL}
    if "cap_gb" not in settings.model_fields_set:
        update["cap_gb"] = DEMO_CAP_GB
    settings = settings.model_copy(update=update)
    recording = read_recording(session) if session is not None else make_recording(seed=seed)
    folder = Path(tempfile.mkdtemp(prefix="shadow-reader-demo-"))
    settings = settings.model_copy(
        update={"journal": folder / "shadow.db", "host": "127.0.0.1", "port": 0}
    )
    stage = Stage(errors())
    try:
        with stage:
            stage.introduce(recording, settings)
            body = asyncio.run(_run(recording, settings, shared.config, folder, seed, keep, stage))
    except asyncio.CancelledError:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except ShadowError as error:
        stage.show_log(error)
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print_json(body)
    else:
        show_result(people(), body)
    if not (body["exact"] and body["killed"]["intact"]):
        raise typer.Exit(ExitCode.FAILED)


async def _run(
    recording: Recording,
    settings: Settings,
    config: Path | None,
    folder: Path,
    seed: int,
    keep: bool,
    stage: Stage,
) -> dict[str, Any]:
    from shadow_reader.cli.demo_plan import plan_demo
    from shadow_reader.cli.demo_run import Demo
    from shadow_reader.replay.turns import recorded_turns
    from shadow_reader.shadow.vocabulary import load_vocabulary

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    demo = Demo(
        settings=settings,
        config=config,
        folder=folder,
        session=SESSION,
        plan=plan_demo(recording),
        seed=seed,
        say=stage.say,
        show=stage.show,
        asked=stage.asked,
    )
    staying = False
    try:
        loading = asyncio.create_task(asyncio.to_thread(load_vocabulary, settings.model_spec()))
        try:
            await demo.start()
        finally:
            await asyncio.wait([loading])
        result = await demo.run(iter(recorded_turns(recording, loading.result())))
        staying = keep
        return result_body(result, demo, staying)
    finally:
        await demo.close(keep=staying)


def result_body(result: DemoResult, demo: Demo, staying: bool) -> dict[str, Any]:
    """The demo's one JSON object."""
    status, killed = result.status, result.killed
    proof = result.rebuild["sessions"][0]
    body: dict[str, Any] = {
        "session": status.session,
        "model": demo.settings.model,
        "turns": status.turns,
        "ids": status.known,
        "committed": status.committed,
        "chunks_read": status.read // demo.settings.grid_ids,
        "rewinds": status.rewinds,
        "reread_ids": status.reread,
        "checkpoints": proof["checkpoints"],
        "asks": result.asks,
        "killed": {
            "turn": killed.turn,
            "acknowledged": killed.acknowledged,
            "present": killed.present,
            "acknowledged_output": killed.acknowledged_output,
            "present_output": killed.present_output,
            "intact": killed.intact,
        },
        "state": proof["state"],
        "exact": result.exact,
        "journal_bytes": result.journal_bytes,
        "state_bytes": status.bytes,
        "seconds": round(result.seconds, 3),
    }
    if staying:
        assert demo.server is not None
        body["kept"] = {
            "address": demo.server.url,
            "pid": demo.server.pid,
            "journal": str(demo.settings.journal),
            "log": str(demo.server.log),
        }
    return body
