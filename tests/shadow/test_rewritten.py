"""Why a session is read again turn after turn: pure, from what its prompts kept."""

from __future__ import annotations

import pytest

from shadow_reader.events.view import CutView, SessionView
from shadow_reader.shadow.status import why_rewritten

GRID = 512
NONCE = CutView(40, 60_000)


def said(*cuts: CutView) -> str:
    return why_rewritten(SessionView("s", 0.0, 0.0, cuts=cuts), GRID)


def test_three_prompts_that_keep_little_are_named_with_the_newest() -> None:
    found = said(CutView(90, 50_000), NONCE, CutView(41, 61_000))
    assert "41 of 61000 ids" in found
    assert said(CutView(499, 1_011), NONCE, NONCE), "less than half, and a chunk"


@pytest.mark.parametrize(
    "one",
    [CutView(60_000, 60_000), CutView(30_000, 60_000), CutView(40, 551)],
    ids=["all is kept", "half is kept", "less than a chunk goes"],
)
def test_one_prompt_that_goes_on_is_enough_to_say_nothing(one: CutView) -> None:
    assert said(NONCE, NONCE, NONCE)
    for cuts in ((one, NONCE, NONCE), (NONCE, one, NONCE), (NONCE, NONCE, one)):
        assert not said(*cuts)


def test_a_session_that_is_young_says_nothing() -> None:
    assert not said()
    assert not said(NONCE, NONCE)
