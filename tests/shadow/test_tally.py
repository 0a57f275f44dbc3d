"""The tally: every committed event counts once, what failed counts for nothing."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.errors import JournalError
from shadow_reader.events import types as t
from shadow_reader.events.codec import VERSIONS
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.tally import Histogram, Tally
from tests.events.samples import SAMPLES
from tests.fake_journal import FlakyJournal, script
from tests.fakes import GRID, steps, virtual
from tests.shadow.rig import CHUNK_S, Rig, ids, quiet


def drafts(*events: t.Event) -> list[t.Draft]:
    return [t.Draft(1.0, "s", "t", event) for event in events]


def test_every_event_of_a_session_is_counted_by_its_type() -> None:
    tally = Tally()
    newest = [event for (kind, version), event in SAMPLES.items() if version == VERSIONS[kind]]
    samples = [event for event in newest if isinstance(event, t.SessionEvent)]
    assert tally.events == dict.fromkeys(get_args(t.SessionEvent), 0)
    tally.committed(drafts(*samples))
    assert tally.events == dict.fromkeys(get_args(t.SessionEvent), 1)
    tally.committed(drafts(*samples[:2], *samples[:2]))
    assert [tally.events[type(event)] for event in samples[:3]] == [3, 3, 1]


def test_what_events_say_is_summed_up() -> None:
    tally = Tally()
    tally.committed(
        drafts(
            t.Prompt(4, Ids.of([1, 2, 3])),
            t.Output(0, Ids.of([1, 2])),
            t.Output(2, Ids.of([3])),
            t.TurnEnded("stop"),
            t.TurnEnded("timeout"),
            t.Rewind(1300, 1024, 276),
            t.Rewind(1300, 1300, 0),
            t.Spill(512, 4096, 1.0, True),
            t.Restore(512, 1000, 1.0),
            t.Restore(0, 24, 1.0, "of another engine"),
            t.Dropped("cap", 512),
            t.QuestionEnded("q", "timeout"),
            t.Answer("q", "a", (0.5, 0.5), 9, 0, lag_ms=2000.0, forward_ms=20.0),
        )
    )
    assert (tally.prompt_ids, tally.output_ids, tally.reread_ids) == (3, 3, 276)
    assert (tally.spilled_bytes, tally.restored_bytes, tally.refused) == (4096, 1024, 1)
    assert {reason: n for reason, n in tally.turns_ended.items() if n} == {"stop": 1, "timeout": 1}
    assert tally.dropped == {"cap": 1, "failed": 0}
    assert tally.questions_ended == {"cancelled": 0, "timeout": 1, "failed": 0, "restart": 0}
    assert (tally.lag_s.sum, tally.forward_s.sum) == (2.0, 0.02)


@given(st.lists(st.floats(-10, 10)))
def test_a_histogram_counts_each_value_at_its_bound(values: list[float]) -> None:
    bounds = (-1.0, 0.0, 2.5)
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    for index, bound in enumerate(bounds):
        assert sum(histogram.counts[: index + 1]) == sum(value <= bound for value in values)
    assert sum(histogram.counts) == len(values)
    assert histogram.sum == pytest.approx(sum(values))


@virtual
async def test_what_failed_to_commit_counts_for_nothing() -> None:
    rig = Rig(FlakyJournal())
    rig.journal.fails = script([False, True])
    await rig.prompt("s", [1, 2], "t")
    tally = rig.sessions.tally
    with pytest.raises(JournalError):
        await rig.output("s", "t", 0, [3])
    assert (tally.commit_failures, tally.output_ids, tally.events[t.Output]) == (1, 0, 0)
    await rig.output("s", "t", 0, [3])
    await rig.output("s", "t", 0, [3])
    assert (tally.commit_failures, tally.output_ids, tally.events[t.Output]) == (1, 1, 1)


@virtual
async def test_a_run_of_outputs_counts_as_its_outputs_do() -> None:
    rig = Rig()
    await rig.prompt("s", [1, 2], "t")
    receipt = await rig.sessions.outputs("s", "t", [(0, [3, 4]), (2, [5]), (0, [3, 4])])
    await receipt
    tally = rig.sessions.tally
    assert (tally.events[t.Output], tally.output_ids) == (2, 3)


@virtual
async def test_chunks_are_counted_when_they_are_read_and_stay_when_the_session_goes() -> None:
    rig = Rig().start()
    await rig.whole_turn("s", ids(3 * GRID + 1), "t1")
    await quiet()
    await rig.erase("s")
    tally = rig.sessions.tally
    assert (tally.chunks["idle"], tally.read_ids["idle"]) == (3, 3 * GRID)
    assert tally.read_s["idle"] == pytest.approx(3 * CHUNK_S)
    assert (tally.chunks["question"], tally.events[t.SessionErased]) == (0, 1)
    await rig.stop()


@virtual
async def test_chunks_that_a_question_waits_for_have_their_own_window() -> None:
    rig = Rig()
    await rig.whole_turn("s", ids(2 * GRID), "t1")
    asking = rig.ask("s")
    await steps()
    rig.start()
    await asking
    tally = rig.sessions.tally
    assert (tally.chunks["question"], tally.read_ids["question"]) == (2, 2 * GRID)
    assert sum(tally.lag_s.counts) == sum(tally.forward_s.counts) == 1
    assert tally.events[t.Question] == tally.events[t.Answer] == 1
    await rig.stop()
