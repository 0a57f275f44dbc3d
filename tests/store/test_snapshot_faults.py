"""Whatever fails or stops, wherever: the old or the new snapshot is whole, and nothing else stays.

A spill that replaces a session's snapshot and evicts another's is broken off at each of its steps:
by an error before or after the step took effect, by the end of the process, by the loss of power.
"""

from __future__ import annotations

import errno
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadow_reader.errors import SnapshotError, SnapshotFullError
from shadow_reader.store.snapshots.store import FileSnapshots
from tests.fakes import EFFORT
from tests.small_disk import run_on_a_small_disk
from tests.store.snapshot_child import VERSIONS
from tests.store.snapshot_disk import Crash, ForgetfulDisk, TestDisk
from tests.store.snapshot_samples import (
    file_bytes,
    files_of,
    names_in,
    opened,
    restored,
    same,
    sample,
    spill,
)

OLD = sample("s", "ab", seq=1)
NEW = sample("s", "acd", seq=2)
OTHER = sample("other", "xy")
FIRST = sample("first", "f")


def prepared(root: Path, kind: type[TestDisk] = TestDisk) -> tuple[FileSnapshots, TestDisk]:
    """Two snapshots, and a cap that makes the other session's give way to the new one."""
    disk = kind(root, 1 << 20)
    store = opened(root, disk=disk, cap=1 << 20)
    spill(store, OTHER)
    spill(store, OLD)
    used = sum(files_of(root).values())
    store.close()
    cap = used + file_bytes(root, "s") // 3
    disk.cap = cap
    store = opened(root, disk=disk, cap=cap)
    disk.steps.clear()
    return store, disk


def check(root: Path, cap: int) -> None:
    """Reopened: old or new, whole; no stray; under the cap; and the next spill works."""
    store = opened(root, cap=cap, disk=TestDisk(root, cap))
    try:
        found = restored(store, "s")
        assert found is not None
        assert same(found, NEW if found.manifest.seq == 2 else OLD)
        other = restored(store, "other")
        assert other is None or same(other, OTHER)
        samples = [found] if other is None else [found, other]
        assert len(files_of(root)) == 1 + sum(1 + len(s.pieces) for s in samples)
        assert store.stats().bytes == sum(files_of(root).values())
        spill(store, NEW)
        assert same(restored(store, "s"), NEW)
    finally:
        store.close()


def steps_of_a_spill(tmp_path: Path) -> tuple[str, ...]:
    store, disk = prepared(tmp_path / "count")
    spill(store, NEW)
    steps = tuple(disk.steps)
    assert same(restored(store, "s"), NEW)
    assert restored(store, "other") is None
    store.close()
    kinds = {step.split()[0] for step in steps}
    assert kinds >= {"create", "write", "fsync", "rename", "fsync_folder", "unlink", "touch"}
    return steps


@pytest.mark.parametrize(("error", "after"), [(errno.EIO, False), (errno.ENOSPC, True)])
def test_an_error_at_any_step_of_a_spill(tmp_path: Path, error: int, after: bool) -> None:
    open_files = len(names_in(Path("/proc/self/fd")))
    for step in range(len(steps_of_a_spill(tmp_path))):
        root = tmp_path / str(step)
        store, disk = prepared(root)
        disk.fail_at, disk.after, disk.error = step, after, error
        try:
            spill(store, NEW)
        except SnapshotFullError:  # also when nobody could be evicted
            assert error == errno.ENOSPC or "unlink" in disk.steps[step]
        except SnapshotError:
            assert error == errno.EIO
        failed = disk.steps[step]
        assert restored(store, "s") is not None, failed
        other = restored(store, "other")
        assert other is None or same(other, OTHER), failed
        assert store.stats().bytes >= sum(files_of(root).values()), failed
        spill(store, NEW)  # in the same process, at once
        assert same(restored(store, "s"), NEW), failed
        store.sweep()
        found = set(files_of(root))
        assert not [name for name in found if name.endswith(".tmp")], failed
        assert store.stats().bytes == sum(files_of(root).values()), failed
        store.close()
        check(root, disk.cap)
    assert len(names_in(Path("/proc/self/fd"))) == open_files


@pytest.mark.parametrize("after", [False, True])
def test_the_end_of_the_process_at_any_step_of_a_spill(tmp_path: Path, after: bool) -> None:
    for step in range(len(steps_of_a_spill(tmp_path))):
        root = tmp_path / str(step)
        store, disk = prepared(root)
        disk.fail_at, disk.after, disk.crash = step, after, True
        with pytest.raises(Crash):
            spill(store, NEW)
        store.close()
        check(root, disk.cap)


@pytest.mark.parametrize("names", ["lost", "kept", "removed"])
def test_the_loss_of_power_at_any_step_of_a_spill(tmp_path: Path, names: str) -> None:
    for step in range(len(steps_of_a_spill(tmp_path))):
        root = tmp_path / str(step)
        store, disk = prepared(root, ForgetfulDisk)
        assert isinstance(disk, ForgetfulDisk)
        disk.fail_at, disk.crash = step, True
        with pytest.raises(Crash):
            spill(store, NEW)
        store.close()
        disk.lose_power(tmp_path / f"{step} after", names=names)
        check(tmp_path / f"{step} after", disk.cap)


def test_the_loss_of_power_after_folders_could_not_be_synced(tmp_path: Path) -> None:
    """The old head may come back then, so the pieces that it names must still be there."""
    heads = set()
    for step, name in enumerate(steps_of_a_spill(tmp_path)):
        if not name.startswith("fsync_folder"):
            continue
        root = tmp_path / str(step)
        store, disk = prepared(root, ForgetfulDisk)
        assert isinstance(disk, ForgetfulDisk)
        disk.kinds, disk.kinds_from = frozenset({"fsync_folder"}), step
        try:
            spill(store, NEW)
        except SnapshotError:
            found = store.find("s")
            assert found is not None
            heads.add(found.seq)
        store.sweep()
        store.close()
        for names in ("lost", "kept", "removed"):
            disk.lose_power(tmp_path / f"{step} {names}", names=names)
            check(tmp_path / f"{step} {names}", disk.cap)
    assert heads == {1, 2}


@pytest.mark.parametrize("kind", ["create", "write", "fsync", "rename", "fsync_folder", "touch"])
def test_a_fault_that_lasts_leaves_the_old_snapshot(tmp_path: Path, kind: str) -> None:
    store, disk = prepared(tmp_path / "s")
    disk.kinds = frozenset({kind})
    disk.error = errno.EDQUOT
    with pytest.raises(SnapshotFullError, match="the disk is full"):
        spill(store, NEW)
    assert same(restored(store, "s"), OLD)
    disk.kinds = frozenset()
    spill(store, NEW)
    assert same(restored(store, "s"), NEW)
    store.close()


@pytest.mark.parametrize("after", [False, True])
def test_files_that_cannot_be_removed_wedge_nothing(tmp_path: Path, after: bool) -> None:
    root = tmp_path / "s"
    disk = TestDisk(root, 1 << 20)
    store = opened(root, disk=disk)
    spill(store, OLD)
    spill(store, OTHER)
    disk.kinds, disk.after = frozenset({"unlink", "remove_folder"}), after
    disk.error = errno.ENOSPC
    spill(store, NEW)
    assert same(restored(store, "s"), NEW)
    store.abandon("s")
    store.sweep()
    with pytest.raises(SnapshotFullError, match="erasing snapshot"):
        store.erase("other")
    disk.kinds = frozenset()
    store.erase("other")
    store.sweep()
    assert restored(store, "other") is None
    assert len(files_of(root)) == 1 + len(NEW.pieces) + 1
    assert store.stats().bytes == sum(files_of(root).values())
    store.close()


class StuckHeads(TestDisk):
    """No head can be removed."""

    def unlink(self, path: Path) -> None:
        if path.name == "head.safetensors":
            raise OSError(errno.EIO, "stuck")
        super().unlink(path)


def test_a_snapshot_whose_head_cannot_be_removed_stays_whole(tmp_path: Path) -> None:
    store, _ = prepared(tmp_path / "s", StuckHeads)
    with pytest.raises(SnapshotFullError):
        spill(store, NEW)
    assert same(restored(store, "other"), OTHER)
    assert same(restored(store, "s"), OLD)
    store.close()


def test_an_erasure_that_fails_at_any_step_says_so_and_works_when_called_again(
    tmp_path: Path,
) -> None:
    for after, step in itertools.product([False, True], range(100)):
        root = tmp_path / f"{after}{step}"
        disk = TestDisk(root, 1 << 20)
        store = opened(root, disk=disk)
        spill(store, OLD)
        store.write_piece("s", NEW.manifest.pieces[1], NEW.pieces[NEW.manifest.pieces[1].name])
        disk.steps.clear()
        disk.fail_at, disk.after = step, after
        try:
            assert store.erase("s")
            done = len(disk.steps) <= step
        except SnapshotError:
            done = False
            store.erase("s")
        assert list(files_of(root)) == ["snapshots.lock"]
        assert "fsync_folder" in disk.steps[-1]
        assert store.stats().bytes == sum(files_of(root).values())
        store.close()
        if done and after:
            return


def killed(root: Path, seed: int, cap: int, lines: int) -> Iterator[list[str]]:
    """What a child says that spills until it is killed."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.store.snapshot_child", str(root), str(seed), str(cap)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    with child, child.stdout as said:
        for _ in range(lines):
            yield said.readline().decode().split()
        child.kill()
        yield from (line.decode().split() for line in said.read().splitlines())
    assert child.returncode == -9


def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    root = tmp_path / "s"
    choices = random.Random(5)
    cap = 9_000
    newest: dict[str, int] = {}
    for seed in range(2 * EFFORT):
        for session, what, seq in killed(root, seed, cap, choices.randrange(3, 40)):
            assert what == "spilled"
            newest[session] = int(seq)
        store = opened(root, cap=cap, disk=TestDisk(root, cap))
        names = 1
        for session in VERSIONS:
            found = restored(store, session)
            if found is None:
                continue
            seqs = {v.manifest.seq: v for v in VERSIONS[session]}
            assert same(found, seqs[found.manifest.seq])
            names += 1 + len(found.pieces)
        assert len(files_of(root)) == names
        assert store.stats().bytes == sum(files_of(root).values()) <= cap
        store.close()
    assert newest


def test_a_real_full_disk(tmp_path: Path) -> None:
    report = run_on_a_small_disk("tests.store.snapshot_full_child", tmp_path / "small", size="1m")
    for what in ("spilling", "opening"):
        kind, message = report.pop(what, ["SnapshotFullError", "the disk is full"])
        assert kind == "SnapshotFullError", what
        assert "the disk is full" in message, what
    assert report == {"kept": True, "goes on": True, "erased": True, "files": ["snapshots.lock"]}
