"""The file of a probe: what is packed comes back; what is damaged is refused, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
import safetensors.numpy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shadow_reader.errors import ProbeError
from shadow_reader.events.ids import Ids
from shadow_reader.shadow import probe_file
from shadow_reader.shadow.probe_file import (
    ProbeMetrics,
    TrainedProbe,
    packed,
    probe_digest,
    unpacked,
)
from tests.fakes import EFFORT
from tests.shadow.probe_samples import METRICS, sample

F32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(2**-149, 2.0**127, width=32)
NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)


def floats(values: list[float]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


@st.composite
def probes(draw: st.DrawFn) -> TrainedProbe:
    hidden = draw(st.integers(1, 12))
    classes = tuple(draw(st.lists(NAMES, min_size=2, max_size=5, unique=True)))
    row = st.lists(F32, min_size=hidden, max_size=hidden)
    right, macro, error, constant = draw(st.tuples(*[st.floats(0, 1)] * 4))
    low, high = sorted(draw(st.tuples(st.floats(-1, 1), st.floats(-1, 1))))
    first, last = sorted(draw(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62))))
    return TrainedProbe(
        name=draw(NAMES),
        source=draw(NAMES),
        weights=draw(NAMES),
        grid=draw(st.integers(1, 4096)),
        layer=draw(st.integers(0, 40)),
        last=draw(st.integers(1, 40)),
        suffix=Ids.of(draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9))),
        classes=classes,
        mean=floats(draw(row)),
        scale=floats(draw(st.lists(POSITIVE, min_size=hidden, max_size=hidden))),
        coef=np.stack([floats(draw(row)) for _ in classes]),
        intercept=floats([draw(F32) for _ in classes]),
        strength=draw(st.floats(2**-20, 2**20)),
        first_seq=first,
        last_seq=last,
        labels=draw(st.integers(1, 2**40)),
        sessions=draw(st.integers(1, 2**40)),
        metrics=ProbeMetrics(draw(st.integers(1, 2**40)), right, macro, error, constant, low, high),
    )


@settings(max_examples=40 * EFFORT, deadline=None)
@given(probe=probes(), data=st.data())
def test_what_is_packed_comes_back_with_every_bit_and_classifies_alike(
    probe: TrainedProbe, data: st.DataObject
) -> None:
    raw = packed(probe)
    found = unpacked(raw)
    assert packed(found) == raw
    assert probe_digest(raw) == probe_digest(packed(found))
    for name in ("mean", "scale", "coef", "intercept"):
        assert getattr(found, name).tobytes() == getattr(probe, name).tobytes()
    for name in ("name", "source", "suffix", "classes", "metrics", "layer", "last", "hidden"):
        assert getattr(found, name) == getattr(probe, name)
    vector = floats(data.draw(st.lists(F32, min_size=probe.hidden, max_size=probe.hidden)))
    said = probe.classify(vector)
    assert found.classify(vector) == said
    assert len(said) == len(probe.classes)
    assert all(0 <= part <= 1 for part in said)
    assert math.isclose(sum(said), 1, abs_tol=1e-12)


def test_it_is_the_softmax_of_the_linear_scores() -> None:
    probe = sample(hidden=40)
    vector = np.random.default_rng(5).standard_normal(40).astype(np.float32)
    wide = [x.astype(np.float64) for x in (vector, probe.mean, probe.scale, probe.coef)]
    scores = wide[3] @ ((wide[0] - wide[1]) / wide[2]) + probe.intercept
    odds = np.exp(scores - scores.max())
    np.testing.assert_allclose(probe.classify(vector), odds / odds.sum(), rtol=1e-12)


def test_no_order_of_adding_shows() -> None:
    probe = sample(hidden=64)
    vector = np.random.default_rng(5).standard_normal(64).astype(np.float32)
    turned = np.random.default_rng(6).permutation(64)
    other = replace(
        probe,
        mean=probe.mean[turned],
        scale=probe.scale[turned],
        coef=np.ascontiguousarray(probe.coef[:, turned]),
    )
    assert other.classify(vector[turned]) == probe.classify(vector)


@pytest.mark.parametrize(("low", "beats"), [(-0.1, False), (0.0, False), (1e-9, True)])
def test_it_beats_the_constant_when_the_whole_interval_is_above_zero(
    low: float, beats: bool
) -> None:
    assert sample(metrics=replace(METRICS, low=low)).beats is beats


def test_safetensors_reads_the_file() -> None:
    probe = sample()
    found = safetensors.numpy.load(packed(probe))
    assert sorted(found) == ["coef", "intercept", "mean", "scale"]
    assert found["coef"].tobytes() == probe.coef.tobytes()


def test_every_flipped_bit_is_refused() -> None:
    raw = packed(sample(hidden=3, classes=("a", "b")))
    for at in range(len(raw)):
        for bit in range(8):
            damaged = raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
            with pytest.raises(ProbeError):
                unpacked(damaged)


def test_every_other_length_is_refused() -> None:
    raw = packed(sample())
    for length in range(len(raw)):
        with pytest.raises(ProbeError):
            unpacked(raw[:length])
    for more in (b"\0", b"\0" * 8, raw):
        with pytest.raises(ProbeError):
            unpacked(raw + more)


@settings(max_examples=100 * EFFORT, deadline=None)
@given(raw=st.binary(max_size=200))
def test_anything_else_is_refused(raw: bytes) -> None:
    with pytest.raises(ProbeError):
        unpacked(raw)
    whole = len(raw).to_bytes(8, "little") + raw
    with pytest.raises(ProbeError):
        unpacked(whole)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def rewritten(raw: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with its header's JSON changed."""
    length = int.from_bytes(raw[:8], "little")
    table = orjson.loads(raw[8 : 8 + length])
    change(table)
    text = orjson.dumps(table, option=orjson.OPT_NON_STR_KEYS)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + raw[8 + length :]


@settings(max_examples=150 * EFFORT, deadline=None)
@given(
    field=st.sampled_from([*probe_file._About.model_fields, "more"]),
    value=JSON,
    whole=st.booleans(),
)
def test_other_values_in_the_text_are_refused(field: str, value: object, whole: bool) -> None:
    def change(table: dict[str, Any]) -> None:
        if whole:
            table["__metadata__"] = value
            return
        about = orjson.loads(table["__metadata__"]["about"])
        assume(about.get(field) != value)
        about[field] = value
        table["__metadata__"]["about"] = orjson.dumps(about).decode()

    with pytest.raises(ProbeError):
        unpacked(rewritten(packed(sample()), change))


def test_another_layout_is_named() -> None:
    raw = rewritten(packed(sample()), lambda table: table["__metadata__"].update(layout="2"))
    with pytest.raises(ProbeError, match="layout version: expected 1, found 2") as caught:
        unpacked(raw)
    assert caught.value.details["field"] == "layout version"


def test_damaged_numbers_are_named_with_the_probe() -> None:
    raw = packed(sample())
    with pytest.raises(ProbeError, match="'mood' is damaged") as caught:
        unpacked(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert caught.value.details == {"probe": "mood", "reason": "damaged"}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"mean": np.zeros(7, np.float32)}, "scale"),
        ({"scale": np.ones((8, 1), np.float32)}, "scale"),
        ({"scale": np.zeros(8, np.float32)}, "scale"),
        ({"scale": -np.ones(8, np.float32)}, "scale"),
        ({"coef": np.zeros((2, 8), np.float32)}, "coef"),
        ({"coef": np.zeros((3, 8), np.float64)}, "coef"),
        ({"coef": np.full((3, 8), np.nan, np.float32)}, "coef"),
        ({"intercept": np.full(3, np.inf, np.float32)}, "intercept"),
        ({"intercept": np.zeros(4, np.float32)}, "intercept"),
        ({"mean": np.zeros(0, np.float32)}, "hidden"),
        ({"mean": np.zeros(probe_file.MAX_HIDDEN + 1, np.float32)}, "hidden"),
        ({"classes": ("one",)}, "classes"),
        ({"classes": tuple(map(str, range(probe_file.MAX_CLASSES + 1)))}, "classes"),
        ({"classes": ("a", "a", "b")}, "about"),
        ({"classes": ("a", "", "b")}, "classes.1"),
        ({"classes": ("a", "b\n", "c")}, "about"),
        ({"name": ""}, "name"),
        ({"name": "n" * 201}, "name"),
        ({"name": "\ud800"}, "name"),
        ({"source": "s" * 500}, "source"),
        ({"weights": ""}, "weights"),
        ({"grid": 0}, "grid"),
        ({"grid": 8192}, "grid"),
        ({"layer": -1}, "layer"),
        ({"layer": probe_file.MAX_LAYER + 1}, "layer"),
        ({"last": 0}, "last"),
        ({"last": True}, "last"),
        ({"suffix": Ids.of([])}, "suffix"),
        ({"suffix": Ids.of([1] * (probe_file.MAX_SUFFIX_IDS + 1))}, "suffix"),
        ({"strength": 0.0}, "strength"),
        ({"strength": math.inf}, "strength"),
        ({"first_seq": 901}, "about"),
        ({"first_seq": -1}, "first_seq"),
        ({"labels": 0}, "labels"),
        ({"sessions": 0}, "sessions"),
        ({"metrics": replace(METRICS, n=0)}, "metrics.n"),
        ({"metrics": replace(METRICS, accuracy=1.5)}, "metrics.accuracy"),
        ({"metrics": replace(METRICS, macro_f1=math.nan)}, "metrics.macro_f1"),
        ({"metrics": replace(METRICS, low=0.5)}, "metrics"),
        ({"metrics": replace(METRICS, high=2.0)}, "metrics.high"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ProbeError) as caught:
        packed(sample(**wrong))
    assert caught.value.details["field"] == field


def test_the_largest_probe_fits_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = sample(
        hidden=probe_file.MAX_HIDDEN,
        classes=tuple(f"{n:03}" + "ü" * 197 for n in range(probe_file.MAX_CLASSES)),
        suffix=Ids.of([2**32 - 1] * probe_file.MAX_SUFFIX_IDS),
    )
    raw = packed(largest)
    assert packed(unpacked(raw)) == raw
    monkeypatch.setattr(probe_file, "MAX_FILE_BYTES", len(raw) - 1)
    with pytest.raises(ProbeError, match=f"at most {len(raw) - 1}, found {len(raw)}"):
        unpacked(raw)
