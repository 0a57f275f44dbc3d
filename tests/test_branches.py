"""Lines of talk through the whole service: a real model, the journal's file, snapshots."""

from __future__ import annotations

from pathlib import Path

from shadow_reader.config import Settings
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.fakes import fake_vocabulary
from tests.shadow.models import small_model
from tests.shadow.states import GIB, assert_like_fresh, make_ids

GRID = 64
LIMIT_S = 60.0


def service(folder: Path) -> tuple[Runtime, TorchEngine]:
    engine = TorchEngine(small_model(), grid=GRID, cap_bytes=GIB)
    settings = Settings(journal=folder / "shadow.db")
    return Runtime(settings, engine=engine, vocabulary=fake_vocabulary()), engine


async def turn(shadow: Runtime, turn: str, ids: list[int]) -> None:
    await shadow.prompt("s", ids, turn=turn)
    await shadow.end("s", turn)
    await shadow.wait_fresh("s", timeout_s=LIMIT_S)


async def chunks_read(shadow: Runtime, name: str) -> int:
    events = [e.event async for e in shadow.journal_entries(session=name, kinds=["read"])]
    return sum((e.stop - e.start) // GRID for e in events if isinstance(e, t.Read))


async def test_case_06_a_compaction_or_title_under_the_same_key(tmp_path: Path) -> None:
    """A (7,139 ids), then unrelated B (558), then a continuation of A, and all that once more
    after a restart: at most the continuation is read."""
    a, b = list(make_ids(7_139, 1)), list(make_ids(558, 2))
    longer = [*a, *make_ids(200, 3)]
    shadow, engine = service(tmp_path)
    async with shadow:
        await turn(shadow, "a1", a)
        await turn(shadow, "b1", b)
        assert (await shadow.session_status("s")).session == "s~branch1"
        await turn(shadow, "a2", longer)
        assert await chunks_read(shadow, "s") == len(longer) // GRID
        assert await chunks_read(shadow, "s~branch1") == len(b) // GRID
        assert (await shadow.session_status("s")).session == "s"
        for name, ids in (("s", longer), ("s~branch1", b)):
            assert_like_fresh(engine, name, Ids.of(ids), small_model())

    again, engine = service(tmp_path)
    longer += make_ids(100, 4)
    async with again:
        await turn(again, "a3", longer)
        await turn(again, "b2", [*b, *make_ids(70, 5)])
        assert await chunks_read(again, "s") == len(longer) // GRID
        assert await chunks_read(again, "s~branch1") == (len(b) + 70) // GRID
        assert_like_fresh(engine, "s", Ids.of(longer), small_model())
        erased = await again.erase("s")
        assert (erased.branches, erased.ids) == (1, len(longer) + len(b) + 70)
        assert engine.stats().sessions == 0
    assert not list((tmp_path / "shadow.db-snapshots").glob("*/*.safetensors"))


async def test_case_07_a_title_request_overlaps_the_main_one(tmp_path: Path) -> None:
    """Both turns open at once under one key: both journaled, no delta lost or mixed."""
    main, title = list(make_ids(700, 1)), list(make_ids(90, 2))
    said = {"main": list(make_ids(40, 3)), "title": list(make_ids(40, 4))}
    shadow, engine = service(tmp_path)
    async with shadow:
        await shadow.prompt("s", main, turn="main")
        await shadow.prompt("s", title, turn="title")
        for offset in range(40):
            for name, ids in said.items():
                await shadow.output("s", name, offset=offset, ids=[ids[offset]])
        await shadow.end("s", "title", produced=40)
        await shadow.end("s", "main", produced=40)
        for name, ids in (("s", main + said["main"]), ("s~branch1", title + said["title"])):
            await shadow.wait_fresh(f"{name}" if "~" in name else "s~branch0", timeout_s=LIMIT_S)
            status = await shadow.session_status(name if "~" in name else "s~branch0")
            assert (status.known, status.unsure, status.reason) == (len(ids), False, "stop")
            assert_like_fresh(engine, name, Ids.of(ids), small_model())
