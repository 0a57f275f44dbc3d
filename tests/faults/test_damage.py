"""A snapshot damaged while the service is down: refused with the reason, read again, exact."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from bench.faults_damage import KINDS, STRAY, Kind
from bench.faults_world import folder_of
from shadow_reader.config import Settings
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.runtime import Runtime
from tests.fakes import FakeEngine, fake_vocabulary
from tests.faults.moving import prompt_of

SESSIONS = ("a", "b")
CHUNKS = 40
QUESTION = [1, 2, 3]


def settings_in(folder: Path) -> Settings:
    return Settings(journal=folder / "shadow.db", disk=str(folder / "snapshots"))


def a_runtime(folder: Path) -> tuple[Runtime, FakeEngine]:
    engine = FakeEngine()
    return Runtime(settings_in(folder), engine=engine, vocabulary=fake_vocabulary()), engine


async def fed(folder: Path) -> None:
    """Two sessions in the journal, both spilled by an orderly stop."""
    runtime, _ = a_runtime(folder)
    async with runtime as shadow:
        for session in SESSIONS:
            await shadow.prompt(session, prompt_of(session, CHUNKS), turn="t1")
            await shadow.end(session, "t1")
            await shadow.wait_fresh(session)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
async def test_a_damaged_snapshot_is_refused_and_the_session_read_again(
    tmp_path: Path, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    await fed(tmp_path)
    root = tmp_path / "snapshots"
    kind.damage(folder_of(root, "a"), folder_of(root, "b"), random.Random(kind.name))
    runtime, engine = a_runtime(tmp_path)
    async with runtime as shadow:
        for session in SESSIONS:
            await shadow.ask(session, QUESTION, ["yes", "no"])
        for session in SESSIONS:
            known = Ids.of(prompt_of(session, CHUNKS))
            assert (await shadow.digest(session)).digest == FakeEngine.hash_of(known)
        restores = [
            entry.event
            async for entry in shadow.journal_entries(session="a", kinds=["restore"])
            if isinstance(entry.event, t.Restore)
        ]
        assert [restore.refused is not None for restore in restores].count(True) == kind.refused
        if kind.refused:
            assert engine.chunks("a") == CHUNKS, "read again from the journal, whole"
            status = await shadow.session_status("a")
            assert status.refused == restores[0].refused
    runtime, engine = a_runtime(tmp_path)
    async with runtime as shadow:
        for session in SESSIONS:
            await shadow.ask(session, QUESTION, ["yes", "no"])
    strange = (folder_of(root, "a") / STRAY).exists()
    assert engine.chunks() == CHUNKS * strange, "the orderly stop made the snapshots whole again"
