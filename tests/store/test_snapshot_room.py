"""What goes from the snapshots' folder and what stays: the cap, age, strays, erasure."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from shadow_reader.clock import ManualClock
from shadow_reader.errors import SnapshotError, SnapshotFullError
from tests.store.snapshot_disk import TestDisk
from tests.store.snapshot_samples import (
    TTL_S,
    file_bytes,
    files_of,
    folder_of,
    opened,
    restored,
    same,
    sample,
    spill,
)


def test_case_30_the_least_recently_used_goes_and_the_cap_is_never_passed(tmp_path: Path) -> None:
    one = opened(tmp_path)
    spill(one, sample("a"))
    each = file_bytes(tmp_path, "a")
    one.close()
    cap = each * 3 + each // 2
    clock = ManualClock()
    disk = TestDisk(tmp_path, cap)
    store = opened(tmp_path, cap=cap, clock=clock, disk=disk)
    for session in ("b", "c"):
        clock.jump(-1000)  # the order of use is not the clock's
        spill(store, sample(session))
    assert restored(store, "a") is not None  # used last now
    spill(store, sample("d"))
    assert [store.find(s) is not None for s in "abcd"] == [True, False, True, True]
    store.close()
    store = opened(tmp_path, cap=cap, clock=clock, disk=disk)  # a restart knows the order
    spill(store, sample("e"))
    assert [store.find(s) is not None for s in "abcde"] == [True, False, False, True, True]
    for number in range(30):
        spill(store, sample(f"more {number}"))
    stats = store.stats()
    assert stats.sessions == 3
    assert stats.bytes == sum(files_of(tmp_path).values())
    assert stats.bytes <= disk.most <= stats.peak_bytes <= stats.cap_bytes == cap
    store.close()


def test_what_cannot_fit_evicts_nobody_and_keeps_its_old_snapshot(tmp_path: Path) -> None:
    disk = TestDisk(tmp_path, 8_000)
    store = opened(tmp_path, cap=8_000, disk=disk)
    old, other = sample("s"), sample("other")
    spill(store, old)
    spill(store, other)
    files = files_of(tmp_path)
    with pytest.raises(SnapshotFullError, match="the cap is 8000") as caught:
        spill(store, sample("s", "c", rows=800, seq=2))
    assert caught.value.details["limit"] == 8_000
    assert files_of(tmp_path) == files
    with pytest.raises(SnapshotFullError):  # some pieces fit, beside nobody else's; they go again
        spill(store, sample("s", "cdefghijklm", seq=2))
    assert same(restored(store, "s"), old)
    assert file_bytes(tmp_path, "s") == sum(
        size for name, size in files.items() if name.startswith(folder_of(tmp_path, "s").name)
    )
    store.close()


def test_an_opening_under_a_smaller_cap(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for session in "abc":
        spill(store, sample(session))
    used = store.stats().bytes
    store.close()
    store = opened(tmp_path, cap=used - 1)
    assert [store.find(s) is not None for s in "abc"] == [False, True, True]
    assert store.stats().peak_bytes == store.stats().bytes < used
    store.close()
    store = opened(tmp_path, cap=0)
    assert list(files_of(tmp_path)) == ["snapshots.lock"]
    with pytest.raises(SnapshotFullError):
        spill(store, sample("a"))
    assert list(files_of(tmp_path)) == ["snapshots.lock"]
    store.close()


def test_ttl_by_the_clock_that_is_given(tmp_path: Path) -> None:
    clock = ManualClock()
    store = opened(tmp_path, clock=clock)
    spill(store, sample("old"))
    clock.advance(TTL_S)
    spill(store, sample("new"))
    assert store.stats().oldest == clock.wall() - TTL_S
    assert store.stats().newest == clock.wall()
    assert store.sweep() == ()
    assert restored(store, "old") is not None  # being read makes nothing younger
    clock.advance(1)
    assert store.sweep() == ("old",)
    assert not folder_of(tmp_path, "old").exists()
    store.close()
    clock.advance(TTL_S)
    store = opened(tmp_path, clock=clock)
    assert store.find("new") is None
    assert store.stats().sessions == 0
    assert store.stats().oldest is None
    store.close()


def test_a_clock_that_jumps_back_makes_nothing_old_and_keeps_nothing_for_ever(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    store = opened(tmp_path, clock=clock)
    spill(store, sample("s"))
    clock.jump(-1e9)
    assert store.sweep() == ()
    clock.jump(1e9)
    assert store.sweep() == ()  # back again: young still
    clock.jump(-1e9)
    assert store.sweep() == ()
    clock.advance(TTL_S)
    assert store.sweep() == ()
    clock.advance(1)
    assert store.sweep() == ("s",)
    store.close()


def test_strays_go_at_the_opening_and_what_is_not_ours_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    whole, other = sample("s"), sample("other")
    spill(store, whole)
    spill(store, other)
    store.close()
    mine, its = folder_of(tmp_path, "s"), folder_of(tmp_path, "other")
    strays = [
        mine / f".head.safetensors.{os.getpid()}.tmp",
        mine / ".a-40.safetensors.999999999.tmp",
        mine / "z-40.safetensors",
        folder_of(tmp_path, "headless") / "a-40.safetensors",
        folder_of(tmp_path, "begun") / ".a-40.safetensors.1.tmp",
    ]
    strangers = [tmp_path / "notes.txt", tmp_path / "lost+found" / "x", its / "notes.txt"]
    for path in (*strays, *strangers):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"something")
    folder_of(tmp_path, "empty").mkdir()
    (tmp_path / ("0" * 32)).symlink_to(mine)
    with caplog.at_level(logging.WARNING):
        store = opened(tmp_path)
    for path in (tmp_path / "notes.txt", tmp_path / "lost+found", its, tmp_path / ("0" * 32)):
        assert str(path) in caplog.text
    assert not [path for path in strays if path.exists()]
    assert all(path.exists() for path in strangers)
    assert len(list(tmp_path.iterdir())) == 2 + 2 + 1 + 1
    assert same(restored(store, "s"), whole)
    for attempt in (
        store.find,
        lambda s: spill(store, sample(s)),
        lambda s: store.has_piece(s, "a"),
    ):
        with pytest.raises(SnapshotError, match=r"expected our files, found notes\.txt"):
            attempt("other")
    assert len(files_of(its)) == 4
    assert store.stats().bytes == file_bytes(tmp_path, "s") + len(str(os.getpid()))
    assert store.erase("other")
    assert list(files_of(its)) == ["notes.txt"]
    store.close()


def test_erasing_leaves_nothing_of_the_session(tmp_path: Path) -> None:
    store = opened(tmp_path)
    whole, other = sample("s"), sample("other")
    spill(store, whole)
    spill(store, other)
    half = sample("s", "xyz", seq=2)
    store.write_piece("s", half.manifest.pieces[0], half.pieces["x-40"])
    (folder_of(tmp_path, "s") / ".y-40.safetensors.1.tmp").write_bytes(b"half")
    assert store.erase("s")
    assert not folder_of(tmp_path, "s").exists()
    assert not store.erase("s")
    assert not store.erase("never")
    assert store.find("s") is None
    store.write_piece("s", half.manifest.pieces[0], half.pieces["x-40"])
    assert store.erase("s")
    assert not folder_of(tmp_path, "s").exists()
    assert same(restored(store, "other"), other)
    store.close()
