"""Simulations: the same every time, near an independent simulator, and lawful."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from shadow_reader.errors import InvalidInputError
from shadow_reader.replay.ledger.freshness import figures
from shadow_reader.replay.ledger.ledger import Ledger
from shadow_reader.replay.ledger.shipped import open_shipped
from shadow_reader.replay.simulation.policy import PRESETS, Policy, parse_policy
from shadow_reader.replay.simulation.simulate import Outcome, simulate
from tests.replay.simulation.ledgers import made

ORACLE = Path(__file__).parents[3].parent / "shared" / "reference" / "ledger_sim.py"


@cache
def outcome(seed: int, policy: Policy) -> Outcome:
    return simulate(made(seed), policy)


def test_the_same_ledger_and_policy_give_the_same_outcome() -> None:
    first = simulate(made(3), PRESETS["original"])
    again = simulate(made(3), PRESETS["original"])
    assert first == again
    assert first.interval() == again.interval()


@pytest.mark.parametrize("seed", range(3))
def test_fresh_grows_with_share_and_falls_with_poll_and_cost(seed: int) -> None:
    def mean(policy: Policy) -> float:
        behind = outcome(seed, policy).values()
        return sum(behind) / len(behind)

    events = PRESETS["events"]
    laws = (
        [replace(events, share=share) for share in (0.0, 0.01, 0.02, 0.05, 0.2)],
        [replace(events, share=0.0, poll_s=poll_s) for poll_s in (5.0, 1.0, 0.2, 0.0)],
        [replace(events, read_ms_per_1000=ms) for ms in (300.0, 174.0, 87.0, 40.0)],
    )
    for policies in laws:
        behind = [mean(policy) for policy in policies]
        assert all(after <= 1.02 * before for before, after in pairwise(behind))
        assert behind[-1] < behind[0]


@pytest.mark.parametrize("name", ["original", "events", "shared"])
def test_the_share_is_kept_in_every_turn(name: str) -> None:
    policy = PRESETS[name]
    found = outcome(1, policy)
    assert found.used
    for _, event in found.used:
        assert event.used_ms <= policy.share * event.decode_ms + 1000 * policy.chunk_s
    assert 0 < found.share_used <= policy.share


def test_a_fresh_tail_is_half_a_chunk_on_average() -> None:
    tails = [a for seed in range(3) for a in outcome(seed, PRESETS["events"]).values() if a < 512]
    tails = [tail for tail in tails if tail]
    assert 220 < sum(tails) / len(tails) < 292


def test_shares_of_nothing_and_of_everything() -> None:
    nothing = outcome(2, replace(PRESETS["events"], share=0.0))
    assert nothing.share_used == 0
    everything = outcome(2, replace(PRESETS["events"], share=1.0, slice_s=60.0))
    assert everything.figures().fresh > nothing.figures().fresh


def test_first_turns_are_behind_by_nothing_and_b_counts_their_whole_prompts() -> None:
    ledger = made(1)
    for name, every in outcome(1, PRESETS["original"]).behind.items():
        assert every[0].a == every[0].c == 0
        assert every[0].b == ledger.sessions[name].turns[0].prompt_ids
        assert len(every) == len(ledger.sessions[name].turns)


def test_prompts_that_begin_alike_are_read_once() -> None:
    shared = replace(PRESETS["events"], shared_ids=8_192)
    third = list(outcome(1, shared).behind.values())[3]
    assert third[0].b <= list(outcome(1, PRESETS["events"]).behind.values())[3][0].b - 8_192


def test_a_cap_costs_freshness_and_a_disk_gives_some_of_it_back() -> None:
    free = outcome(1, PRESETS["events"]).figures().fresh
    capped = replace(PRESETS["events"], cap_gb=0.8)
    read_again = simulate(made(1), capped).figures().fresh
    assert read_again <= free
    assert simulate(made(1), replace(capped, restore_ms=300.0)).figures().fresh >= read_again


def test_a_policy_is_named_and_changed_or_refused() -> None:
    assert parse_policy("original") == PRESETS["original"]
    changed = parse_policy("events:grid=256,share=0.03")
    assert (changed.grid, changed.share, changed.name) == (256, 0.03, "events:grid=256,share=0.03")
    for text in ("other", "events:colour=1", "events:share=x", "events:share=1.5", "events:grid=0"):
        with pytest.raises(InvalidInputError) as refused:
            parse_policy(text)
        assert refused.value.details["field"] in {"policy", "share", "grid"}
    with pytest.raises(InvalidInputError):
        parse_policy("events:share=nan")


# -- the published figures, and an independent simulator ---------------------------------------


def test_the_published_figures_are_plausible_on_the_made_ledger() -> None:
    ledger = open_shipped("opencode-41")
    idle = simulate(ledger, PRESETS["original-idle"]).figures()
    assert abs(idle.fresh - 0.41) <= 0.05
    assert 49_000 / 2 <= idle.p90 <= 49_000 * 2
    both = simulate(ledger, PRESETS["original"]).figures()
    assert abs(both.fresh - 0.84) <= 0.05
    assert abs(both.p50 - 307) <= 31
    assert 4_347 / 3 <= both.p90 <= 4_347 * 3


def _oracle() -> ModuleType:
    if not ORACLE.exists():
        pytest.skip("the independent simulator is not here")
    spec = importlib.util.spec_from_file_location("ledger_sim", ORACLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ledger_sim"] = module
    spec.loader.exec_module(module)
    return module


def _turns(ledger: Ledger) -> list[dict[str, object]]:
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
        for turn in ledger.by_start()
    ]


@pytest.mark.parametrize("share", [0.0, 0.02])
def test_against_the_reference_simulator(share: float) -> None:
    """Woken by event: what phase a poll has is the only thing that neither can know."""
    module = _oracle()
    ledger = open_shipped("opencode-41")
    told = module.replay(_turns(ledger), {"ration": share, "phase": 0.0, "cost": 0.087 * 0.512})
    expected = figures(told["A"])
    found = simulate(ledger, replace(PRESETS["events"], share=share)).figures()
    assert abs(found.fresh - expected.fresh) <= 0.015
    assert abs(found.p90 - expected.p90) <= 0.2 * expected.p90
    if share:  # without, the median lies among sessions that are far behind, and means little
        assert abs(found.p50 - expected.p50) <= 8
