"""A real disk that runs full under commits, spills and heads, and has room again."""

from __future__ import annotations

from pathlib import Path

from tests.small_disk import run_on_a_small_disk


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    report = run_on_a_small_disk("tests.faults.full_child", tmp_path / "small", size="3m")
    assert report.pop("asked on a full disk") in ("answered", "journal_full", "timeout")
    everything = {"a": True, "b": True, "c": True}
    assert report == {
        "refused": "journal_full",
        "ready": "ready",
        "exact after it": everything,
        "exact after a start": everything,
        "kept": True,
    }
