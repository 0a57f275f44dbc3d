"""What a model claims, and whether the memory that is free has room for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shadow_reader.errors import OutOfRoomError, ShadowError
from shadow_reader.shadow.claim import Claim, free_memory


def test_free_memory_is_the_machine_s_or_less_where_the_group_has_less(tmp_path: Path) -> None:
    proc, group = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (group / "a" / "b").mkdir(parents=True)
    assert free_memory(proc, group) == 2**63 - 1
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    assert free_memory(proc, group) == 8000 * 1024
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    assert free_memory(proc, group) == 8000 * 1024
    (group / "a" / "b" / "memory.max").write_text("max\n")
    (group / "a" / "b" / "memory.current").write_text("77\n")
    (group / "a" / "memory.max").write_text("5000\n")
    (group / "a" / "memory.current").write_text("3000\n")
    (group / "a" / "memory.stat").write_text("anon 1\ninactive_file 400\n")
    assert free_memory(proc, group) == 2400
    (group / "a" / "memory.current").write_text("9000\n")
    assert free_memory(proc, group) == 0


def test_a_claim_that_does_not_fit_says_by_how_much() -> None:
    Claim(10, 10).check()
    with pytest.raises(OutOfRoomError) as caught:
        Claim(11, 10).check()
    assert caught.value.details == {"field": "cap_gb", "found": 11, "limit": 10}
    assert isinstance(caught.value, ShadowError)
