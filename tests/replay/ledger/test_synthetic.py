"""The made ledger: what it is by construction, and what an independent simulator makes of it."""

from __future__ import annotations

import importlib.util
from statistics import mean
from typing import Any

import pytest

from shadow_reader.replay.ledger import Turn, ledger_of
from shadow_reader.replay.ledger.freshness import figures
from shadow_reader.replay.ledger.shipped import open_shipped
from shadow_reader.replay.ledger.summary import summary
from shadow_reader.replay.ledger.synthetic import SHIPPED_SEED, Shape, gap_median_s, synthetic
from tests.replay.ledger.turns import REFERENCE

IDLE_FRESH, IDLE_P90 = 0.41, 49_000


@pytest.mark.parametrize("seed", [0, 1, SHIPPED_SEED])
def test_it_has_the_published_size_and_median_gap(seed: int) -> None:
    turns = synthetic(seed)
    found = summary(ledger_of("made", turns))
    assert (found.sessions, found.turns, found.overlapping) == (41, 1624, 0)
    assert gap_median_s(turns) == pytest.approx(0.31, abs=0.001)
    assert found.assumed == {}
    assert found.no_first == 0
    assert max(turn.known_ids for turn in turns) <= 180_000
    assert 22 < mean(t.end_s - t.first_s for t in turns if t.first_s is not None) < 26


def test_a_seed_decides_every_bit() -> None:
    assert synthetic(3) == synthetic(3)
    assert synthetic(3) != synthetic(4)


def test_the_shipped_one_is_made_by_the_shipped_seed() -> None:
    assert list(open_shipped("opencode-41").turns) == synthetic()


def test_persons_rewind_and_compactions_start_over() -> None:
    shape = Shape(sessions=3, turns=300, person_share=0.2)
    ledger = ledger_of("made", synthetic(5, shape))
    kept = {"all": 0, "prompt": 0, "nothing": 0}
    for session in ledger.sessions.values():
        for before, now in zip(session.turns, session.turns[1:], strict=False):
            names = {before.known_ids: "all", before.prompt_ids: "prompt", 0: "nothing"}
            kept[names[now.prefix_ids]] += 1
            assert (now.prefix_ids == 0) == (now.prompt_ids < before.prompt_ids)
    assert all(kept.values())
    assert kept["all"] > kept["prompt"] > kept["nothing"]


def test_one_turn_a_session_is_enough_and_less_is_refused() -> None:
    assert len(synthetic(0, Shape(sessions=4, turns=4))) == 4
    with pytest.raises(ValueError, match="3 turns cannot fill 4 sessions"):
        synthetic(0, Shape(sessions=4, turns=3))


def test_against_reference_the_idle_window_alone_is_as_published() -> None:
    """Fitted figures; those of a reader with a share of decode time are never looked at here."""
    if not REFERENCE.exists():
        pytest.skip("the independent simulator is not here")
    spec = importlib.util.spec_from_file_location("ledger_reference", REFERENCE)
    assert spec is not None
    assert spec.loader is not None
    reference: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    turns = synthetic()
    found = [figures(reference.replay(_rows(turns), {}, seed)["A"]) for seed in range(5)]
    assert all(abs(one.fresh - IDLE_FRESH) < 0.05 for one in found)
    assert all(IDLE_P90 / 2 < one.p90 < IDLE_P90 * 2 for one in found)


def _rows(turns: list[Turn]) -> list[dict[str, Any]]:
    return [
        {
            "s": turn.session,
            "k": turn.turn,
            "start": turn.start_s,
            "first": turn.first_s,
            "end": turn.end_s,
            "prompt": turn.prompt_ids,
            "out": turn.output_ids,
            "div": turn.prefix_ids,
        }
        for turn in turns
    ]
