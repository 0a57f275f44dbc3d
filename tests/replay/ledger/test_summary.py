"""A ledger's marginals, counted by hand."""

from __future__ import annotations

from shadow_reader.replay.ledger import Turn, ledger_of
from shadow_reader.replay.ledger.summary import Spread, spread, summary


def test_the_marginals_of_a_small_ledger() -> None:
    turns = [
        Turn("a", None, 0, 0.0, 1.0, 5.0, 100, 0, 10),
        Turn("a", None, 1, 5.5, 6.0, 9.0, 130, 110, 20, ("prefix_ids",)),
        Turn("b", "a", 0, 8.0, None, 12.0, 50, 0, 5),
        Turn("a", None, 2, 14.0, 15.0, 16.0, 40, 40, 1, ("prefix_ids", "end_s")),
        Turn("c", "gone", 0, 16.25, None, 17.0, 60, 0, 5),
    ]
    found = summary(ledger_of("small", turns))
    assert (found.sessions, found.turns, found.subagents, found.orphans) == (3, 5, 2, 1)
    assert (found.span_s, found.longest_turns) == (17.0, 3)
    assert found.gap_s == Spread(2, 0.5, 0.5, 5.0)
    assert found.box_gap_s == Spread(3, 0.25, 0.5, 2.0)
    assert found.overlapping == 1
    assert found.decode_s == Spread(3, 1.0, 3.0, 4.0)
    assert found.growth_ids == Spread(2, 0, 0, 20)
    assert (found.shrunk, found.no_first) == (1, 2)
    assert found.assumed == {"end_s": 1, "prefix_ids": 2}


def test_no_values_have_no_percentiles() -> None:
    assert spread([]) == Spread(0, None, None, None)
