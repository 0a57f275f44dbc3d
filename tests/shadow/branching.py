"""A rig whose sessions may have lines beside their first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.fake_journal import FlakyJournal
from tests.fakes import GRID
from tests.shadow.rig import LIMITS, Rig

BRANCH_MIN = 2 * GRID


def a_rig(journal: FlakyJournal | None = None, *, branches: int = 2, **more: Any) -> Rig:
    rig = Rig(journal=journal or FlakyJournal(), **more)
    rig.sessions.limits = replace(LIMITS, branches=branches, branch_min=BRANCH_MIN)
    return rig


async def known(rig: Rig, name: str) -> list[int]:
    live = await rig.sessions.load(name)
    return list(live.tentative.known) if live.tentative else []
