"""Every law, looked at from outside: at every moment, at quiet ones, after an erasure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from bench.faults_world import folder_of
from shadow_reader.errors import SnapshotError
from shadow_reader.events.branches import MAX_BRANCHES, line_names, split_name
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.snapshot_rules import restorable_position
from tests.machine.parts import CHUNK_S, files_below
from tests.shadow.states import assert_all_is_counted

if TYPE_CHECKING:
    from tests.machine.world import World

QUIET_S: Final = 400.0
"""Longer than three times the timeout of a turn, and than any question or request."""


def check_now(world: World) -> None:
    """What holds at every moment between two jobs."""
    life = world.life
    assert life.shadow.state == "ready", life.shadow.reason
    world.reap()
    engine, stats = life.engine, life.engine.stats()
    assert stats.bytes <= stats.peak_bytes <= world.cap_bytes, "law 6: memory"
    assert world.disk.most <= world.disk_bytes, "law 6: disk"
    for limit in life.shadow.bounds.limits():
        slack = 8 if limit.name.startswith("pending") else 0  # one submission may pass it
        assert limit.used <= limit.limit + slack, f"law 6: {limit}"
    for session in engine.residents():
        read = list(engine.read_of(session))
        assert engine.digest(session) == world.oracle.digest(read), f"law 2: {session}"
    assert max(world.waits, default=0.0) <= CHUNK_S + 1e-6, "law 5"


async def quiet(world: World) -> None:
    """Everything comes to its end: then all that can be read is, and every law is seen."""
    await world.settle_told()
    if world.holding:
        await asyncio.wait(world.holding)
    await asyncio.sleep(QUIET_S)
    check_now(world)
    assert not world.asking, "questions time out"
    await check_journal(world, adopt=False)
    life, engine = world.life, world.life.engine
    assert_all_is_counted(engine)
    newest: tuple[float, str] = (float("-inf"), "")
    for live in life.shadow.sessions.live():
        view = live.durable
        assert live.tentative == view
        if view is None:
            continue
        assert not view.questions
        newest = max(newest, (live.heard_s, live.session))
        read = engine.read_of(live.session)
        assert read.common_prefix(view.known) == len(read), "law 2"
        if read:
            assert engine.true_digest(live.session) == world.oracle.digest(list(read)), "law 2"
        status = await life.shadow.session_status(_line(live.session))
        assert status.fresh or status.note, status
        assert status.mismatches == 0
    if newest[1]:
        status = await life.shadow.session_status(_line(newest[1]))
        assert status.fresh, f"the one heard of last: {status}"


async def check_journal(world: World, *, adopt: bool) -> None:
    """Law 1."""
    entries = [entry async for entry in world.life.shadow.journal_entries()]
    lines = world.book.check(entries, adopt=adopt)
    for live in world.life.shadow.sessions.live():
        if live.durable is not None and not live.inflight:
            assert list(live.durable.known) == lines[live.session].known


def check_erased(world: World, session: str) -> None:
    """Nothing of it is in the journal's bytes, in any snapshot, or in memory."""
    life = world.life
    others = [t for name, t in world.book.talks.items() if name != session]
    kept = b"|".join(Ids.of(ids).to_bytes() for t in others for ids in t.everything())
    marks = [Ids.of(mark).to_bytes() for mark in world.marks[session]]
    gone = [mark for mark in marks if mark not in kept]
    world.marks[session].clear()
    mixed = {folder_of(life.snapshots, name) for name in world.damaged}  # by the damage
    files = [p for p in files_below(life.folder) if p.parent not in mixed]
    for path in files:
        content = path.read_bytes()
        assert not any(mark in content for mark in gone), f"ids of {session} in {path.name}"
        if path.parent != life.folder:  # the journal says that there was one of that name
            assert session.encode() not in content, f"the name of {session} in {path}"
    for line in line_names(session, MAX_BRANCHES):
        assert not folder_of(life.snapshots, line).exists()
    engine = life.engine
    assert all(split_name(name)[0] != session for name in engine.residents())
    for page in engine._memory._pages.values():
        assert not any(mark in page.ids for mark in gone), f"a page of {session} is held"


def check_from_zero(world: World, session: str, known: Ids) -> None:
    """Law 4: no snapshot that would have saved it lies there, whole."""
    if split_name(session)[0] in world.damaged:
        return
    snapshots = world.life.shadow._running().snapshots
    assert snapshots is not None
    store = snapshots.store
    try:
        manifest = store.find(session)
    except SnapshotError as error:
        raise AssertionError(f"nobody damaged it: {error}") from error
    if manifest is None:
        return
    read = Ids.from_bytes(bytes(store.read_head(manifest)["ids"].data))
    line = restorable_position(manifest, read, known)
    assert not line, f"law 4: {session} is read from 0, a snapshot has {line}"


def _line(name: str) -> str:
    """A line of talk by a name that means it and no other."""
    session, branch = split_name(name)
    return f"{session}~branch{branch or 0}"
