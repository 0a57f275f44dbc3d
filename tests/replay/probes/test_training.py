"""From a journal to a probe's file, and the file on journals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shadow_reader.errors import InvalidInputError, NotFoundError, ProbeError, TrainingError
from shadow_reader.replay.probes.fit import Rules
from shadow_reader.replay.probes.labels import OTHER_CLASS
from shadow_reader.replay.probes.training import check_found
from shadow_reader.shadow.probe_file import packed, unpacked
from tests.replay.probes.taught import LEARNED, QUICK, SAYS, judge, learn, taught
from tests.replay.probes.told import KIND, ROUTER, found_in, vectors_of
from tests.replay.router.journals import GRID, engine
from tests.shadow.models import SMALL

pytest.importorskip("sklearn")


async def test_a_probe_says_what_it_was_made_of(tmp_path: Path) -> None:
    journal = await taught(tmp_path)
    trained = await learn(journal, how=replace(LEARNED, layers=(0, SMALL.layers)))
    probe, own = trained.probe, engine()
    found = await found_in(tmp_path, KIND)
    assert (probe.name, probe.source) == ("said", "labels:kind")
    assert (probe.weights, probe.grid) == (own.identity.weights, GRID)
    assert (probe.labels, probe.sessions) == (60, 6)
    assert (probe.first_seq, probe.last_seq) == (found.labels[0].seq, found.labels[-1].seq)
    assert probe.layer in (0, SMALL.layers)
    assert (probe.last, probe.suffix) == (8, LEARNED.suffix)
    assert probe.classes == tuple(sorted(SAYS))
    assert probe.beats
    assert probe.metrics.accuracy > 0.9 > probe.metrics.constant
    assert trained.by_class == dict(Counter(one.value for one in found.labels))
    assert not trained.skipped
    raw = packed(probe)
    assert packed(unpacked(raw)) == raw
    again = await learn(journal, how=replace(LEARNED, layers=(0, SMALL.layers)))
    assert packed(again.probe) == raw
    other = await learn(
        journal, how=replace(LEARNED, layers=(0, SMALL.layers)), rules=replace(QUICK, seed=1)
    )
    assert other.fitted.measured != trained.fitted.measured


async def test_the_file_says_of_a_vector_what_was_fitted(tmp_path: Path) -> None:
    journal = await taught(tmp_path)
    probe = (await learn(journal)).probe
    read, _ = await vectors_of(tmp_path, KIND, LEARNED)
    right = 0
    for one, vector in zip(read.labels, read.layers[SMALL.layers], strict=True):
        chances = probe.classify(vector)
        shown = (vector.astype(np.float64) - probe.mean) / probe.scale
        scores = probe.coef.astype(np.float64) @ shown + probe.intercept
        odds = np.exp(scores - scores.max())
        np.testing.assert_allclose(chances, odds / odds.sum(), atol=1e-9)
        right += probe.classes[int(np.argmax(chances))] == one.value
    assert right >= 57


async def test_the_router_s_classes_are_learned_as_well(tmp_path: Path) -> None:
    journal = await taught(tmp_path, each=12)
    probe = (await learn(journal, ROUTER, LEARNED)).probe
    assert probe.source == "router"
    assert probe.beats


async def test_on_its_own_labels_and_on_later_ones(tmp_path: Path) -> None:
    journal = await taught(tmp_path)
    probe = (await learn(journal)).probe
    own = await judge(journal, probe)
    assert (own.labels, own.sessions, own.overlap, own.other) == (60, 6, 60, 0)
    assert own.measured.metrics.accuracy >= probe.metrics.accuracy
    await taught(tmp_path, seed=5, prefix="later", sessions=3)
    later = await judge(journal, probe, replace(KIND, session="later1"))
    assert (later.labels, later.sessions, later.overlap) == (10, 1, 0)
    assert (await judge(journal, probe)).overlap == 60
    counts = Counter(one.value for one in (await found_in(tmp_path, KIND)).labels)
    every = await judge(journal, probe)
    assert every.measured.metrics.constant == max(counts.values()) / 90
    assert every.measured.metrics.accuracy > 0.9


async def test_a_class_that_the_probe_does_not_have_is_answered_wrongly(tmp_path: Path) -> None:
    journal = await taught(tmp_path, each=12)
    two = replace(KIND, classes=("alpha", "beta"))
    trained = await learn(journal, two)
    assert trained.probe.classes == ("alpha", "beta")
    others = trained.skipped[OTHER_CLASS]
    assert others + trained.probe.labels == 72
    found = await judge(journal, trained.probe)
    assert found.other == others > 0
    assert found.measured.metrics.accuracy <= 1 - others / 72


async def test_of_another_model_it_is_not_asked(tmp_path: Path) -> None:
    journal = await taught(tmp_path)
    probe = (await learn(journal)).probe
    for own, field in ((engine(grid=2 * GRID), "grid"), (engine(intermediate=64), "weights")):
        with pytest.raises(ProbeError, match=field) as caught:
            await judge(journal, probe, own=own)
        assert caught.value.details["field"] == field
    narrow = replace(
        probe, mean=probe.mean[1:], scale=probe.scale[1:], coef=probe.coef[:, 1:].copy()
    )
    with pytest.raises(ProbeError, match="hidden"):
        await judge(journal, narrow)
    with pytest.raises(NotFoundError, match="too long for the context: 60"):
        await judge(journal, probe, own=engine(context=20))


async def test_what_cannot_be_learned_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    await taught(tmp_path, sessions=2, each=11)
    found = await found_in(tmp_path, KIND)
    with pytest.raises(TrainingError, match="10 labels at least") as caught:
        check_found(found, "said")
    assert sum(caught.value.details["found"].values()) == 22
    await taught(tmp_path, prefix="more", each=12)
    check_found(await found_in(tmp_path, KIND), "said")
    one = await found_in(tmp_path, replace(KIND, session="more1"))
    lines = {line: labels * 9 for line, labels in one.lines.items()}
    with pytest.raises(TrainingError, match="2 sessions at least"):
        check_found(replace(one, lines=lines), "said")


@pytest.mark.parametrize("name", ["", " said", "said ", "a\nb", "x" * 201])
async def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    await taught(tmp_path)
    found = await found_in(tmp_path, KIND)
    with pytest.raises(InvalidInputError):
        check_found(found, name)
    check_found(found, "x" * 200)
    long = replace(found, wanted=replace(KIND, source="s" * 199))
    with pytest.raises(InvalidInputError, match="source"):
        check_found(long, "said")


async def test_labels_that_have_no_vector_do_not_count(tmp_path: Path) -> None:
    """Refused only once it is known how many do not fit."""
    journal = await taught(tmp_path)
    with pytest.raises(TrainingError):
        await learn(journal, rules=Rules(), own=engine(context=45))
