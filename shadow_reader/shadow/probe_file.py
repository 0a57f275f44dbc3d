"""A trained probe, and the file that it is: a linear model over one hidden vector of a fork.

Laws: a file is accepted only if it is, byte for byte, what this build writes for what it says; a
seal (blake2b) over text and numbers finds damage, not malice. What could not be read back is not
written. The same vector gives the same probabilities: each score is summed exactly, then rounded
once, so no order of adding and no number of threads can show in it.

The file is what safetensors reads: four float32 tensors, and beside them, as text, everything else.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import Annotated, Any, Final, NoReturn, Self, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shadow_reader.errors import ProbeError
from shadow_reader.events.decide import MAX_NAME_LENGTH
from shadow_reader.events.ids import Ids

LAYOUT: Final = "1"
MAX_CLASSES: Final = 64
MAX_HIDDEN: Final = 32_768
MAX_LAYER: Final = 1024
MAX_LAST: Final = 4096
MAX_SUFFIX_IDS: Final = 4096
MAX_GRID: Final = 4096
MAX_SOURCE_LENGTH: Final = len("labels:@") + 2 * MAX_NAME_LENGTH
MAX_FILE_BYTES: Final = 16 << 20
"""What the largest probe that the limits allow takes, and room to spare."""

_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_F32: Final = np.dtype("<f4")

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ProbeMetrics:
    """How right a probe was on sessions that it had not seen.

    Attributes:
        n: answers that were counted. accuracy: the part of them that was right.
        macro_f1: mean of the classes' F1. calibration_error: expected, 0 is best.
        constant: what always saying the most frequent class would have reached.
        low, high: 95 % interval of accuracy - constant, by session.
    """

    n: int
    accuracy: float
    macro_f1: float
    calibration_error: float
    constant: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class TrainedProbe:
    """Everything that a probe is. Compare two by their packed bytes.

    Attributes:
        source: whose labels it learned: ``router``, or ``labels:NAME`` or ``labels:NAME@SOURCE``.
        weights, grid: of the engine whose vectors it reads.
        layer, last: which vector, as in ``Engine.vectors``; hidden is its length, H.
        suffix: ids put behind those that the question is about.
        classes: what it may answer, C of them.
        mean, scale: [H] float32, by which a vector is made to vary alike in each number.
        coef, intercept: [C, H] and [C] float32.
        strength: of the regularisation.
        first_seq, last_seq: of the journal's entries that it learned from.
        labels, sessions: how many of each it learned from.
    """

    name: str
    source: str
    weights: str
    grid: int
    layer: int
    last: int
    suffix: Ids
    classes: tuple[str, ...]
    mean: Floats
    scale: Floats
    coef: Floats
    intercept: Floats
    strength: float
    first_seq: int
    last_seq: int
    labels: int
    sessions: int
    metrics: ProbeMetrics

    @property
    def hidden(self) -> int:
        """H: numbers in a vector."""
        return self.mean.size

    @property
    def beats(self) -> bool:
        """Whether it was shown to be better than always saying the most frequent class."""
        return self.metrics.low > 0

    def classify(self, vector: Floats) -> tuple[float, ...]:
        """A probability for each class, of a vector [H] float32; they sum to one."""
        assert vector.shape == self.mean.shape, f"{vector.shape} of {self.mean.shape}"
        shown = (vector.astype(np.float64) - self.mean) / self.scale
        scores = [
            math.fsum((row * shown).tolist()) + float(constant)
            for row, constant in zip(self.coef, self.intercept, strict=True)
        ]
        odds = [math.exp(score - max(scores)) for score in scores]
        whole = math.fsum(odds)
        return tuple(part / whole for part in odds)


def packed(probe: TrainedProbe) -> bytes:
    """The probe's file.

    Raises:
        ProbeError: it is none: names the field that is wrong, and the limit.
    """
    about = _about(probe)
    _check_numbers(probe)
    tensors = _tensors(probe)
    table: dict[str, object] = {}
    at = 0
    for name, array in tensors.items():
        stop = at + array.nbytes
        table[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, stop]}
        at = stop
    data = b"".join(array.tobytes() for array in tensors.values())
    seal = blake2b(orjson.dumps([LAYOUT, about, table]) + data, digest_size=32).hexdigest()
    metadata = {"layout": LAYOUT, "about": about, "blake2b": seal}
    text = orjson.dumps({_METADATA: metadata, **table})
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text + data


def unpacked(raw: bytes) -> TrainedProbe:
    """The probe that a file is.

    Raises:
        ProbeError: damaged, of another layout, or beyond a limit; says which.
    """
    if len(raw) > MAX_FILE_BYTES:
        _refuse("bytes", f"at most {MAX_FILE_BYTES}", len(raw))
    length = int.from_bytes(raw[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if start > len(raw):
        _refuse("header length", f"at most {len(raw) - _LENGTH_BYTES}", length)
    about = _read_about(raw[_LENGTH_BYTES:start])
    shapes = _shapes(len(about.classes), about.hidden)
    numbers = sum(math.prod(shape) for shape in shapes.values())
    if len(raw) - start != numbers * _F32.itemsize:
        _refuse("bytes of numbers", str(numbers * _F32.itemsize), len(raw) - start)
    arrays: dict[str, Any] = {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        arrays[name] = np.frombuffer(raw, _F32, size, start).reshape(shape)
        start += size * _F32.itemsize
    probe = about.probe(arrays)
    if packed(probe) != raw:
        raise ProbeError(
            f"the file of probe {probe.name!r} is damaged: its numbers or its text are not those "
            "that were sealed",
            probe=probe.name,
            reason="damaged",
        )
    return probe


def probe_digest(raw: bytes) -> str:
    """The name of a file's content: blake2b, 64 hex digits."""
    return blake2b(raw, digest_size=32).hexdigest()


Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=2**63 - 1)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Margin: TypeAlias = Annotated[float, Field(ge=-1, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class _Metrics(_Strict):
    n: Annotated[Count, Field(ge=1)]
    accuracy: Share
    macro_f1: Share
    calibration_error: Share
    constant: Share
    low: Margin
    high: Margin

    @model_validator(mode="after")
    def _an_interval(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class _About(_Strict):
    """The fields of a probe that are no arrays, and how long its vectors are."""

    name: Text
    source: Annotated[str, Field(min_length=1, max_length=MAX_SOURCE_LENGTH)]
    weights: Text
    grid: Annotated[int, Field(ge=1, le=MAX_GRID)]
    layer: Annotated[int, Field(ge=0, le=MAX_LAYER)]
    last: Annotated[int, Field(ge=1, le=MAX_LAST)]
    hidden: Annotated[int, Field(ge=1, le=MAX_HIDDEN)]
    suffix: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=2**32)], ...],
        Field(min_length=1, max_length=MAX_SUFFIX_IDS),
    ]
    classes: Annotated[tuple[Text, ...], Field(min_length=2, max_length=MAX_CLASSES)]
    strength: Annotated[float, Field(gt=0)]
    first_seq: Count
    last_seq: Count
    labels: Annotated[Count, Field(ge=1)]
    sessions: Annotated[Count, Field(ge=1)]
    metrics: _Metrics

    @model_validator(mode="after")
    def _names_and_order(self) -> Self:
        for text in (self.name, self.source, self.weights, *self.classes):
            if not text.isprintable():
                raise ValueError(f"{text!r:.60} is not printable")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("a class is there twice")
        if self.first_seq > self.last_seq:
            raise ValueError(f"first_seq {self.first_seq} is above last_seq {self.last_seq}")
        return self

    def probe(self, arrays: dict[str, Any]) -> TrainedProbe:
        """With its numbers."""
        rest: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        metrics = ProbeMetrics(**self.metrics.model_dump())
        return TrainedProbe(suffix=Ids.of(self.suffix), metrics=metrics, **rest, **arrays)


_ARRAYS: Final = ("mean", "scale", "coef", "intercept")
_PLAIN: Final = tuple(
    field.name
    for field in fields(TrainedProbe)
    if field.name not in {"suffix", "metrics", *_ARRAYS}
)


def _shapes(count: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Of ``count`` classes over vectors of ``hidden`` numbers."""
    return {"mean": (hidden,), "scale": (hidden,), "coef": (count, hidden), "intercept": (count,)}


def _tensors(probe: TrainedProbe) -> dict[str, Floats]:
    return {name: getattr(probe, name) for name in _ARRAYS}


def _about(probe: TrainedProbe) -> str:
    values: dict[str, Any] = {name: getattr(probe, name) for name in _PLAIN}
    values |= {"suffix": tuple(probe.suffix), "metrics": asdict(probe.metrics)}
    try:
        return _About(**values, hidden=probe.hidden).model_dump_json()
    except ValidationError as error:
        _refuse_about(error)


def _read_about(header: bytes) -> _About:
    try:
        table = orjson.loads(header)
    except orjson.JSONDecodeError:
        _refuse("header", "JSON", header[:40])
    metadata = table.get(_METADATA) if isinstance(table, dict) else None
    if not isinstance(metadata, dict):
        _refuse("header", f"an object with {_METADATA}", header[:40])
    if (layout := metadata.get("layout")) != LAYOUT:
        _refuse("layout version", LAYOUT, layout)
    if not isinstance(text := metadata.get("about"), str):
        _refuse("about", "text", text)
    try:
        return _About.model_validate_json(text)
    except ValidationError as error:
        _refuse_about(error)


def _check_numbers(probe: TrainedProbe) -> None:
    shapes = _shapes(len(probe.classes), probe.hidden)
    for name, array in _tensors(probe).items():
        if array.dtype != _F32 or array.shape != shapes[name]:
            _refuse(name, f"float32 of {shapes[name]}", f"{array.dtype} of {array.shape}")
        if not np.isfinite(array).all():
            _refuse(name, "finite numbers", "one that is not")
    if not (probe.scale > 0).all():
        _refuse("scale", "numbers above 0", float(probe.scale.min()))


def _refuse_about(error: ValidationError) -> NoReturn:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"])) or "about"
    raise ProbeError(
        f"the probe is refused: {where}: {first['msg']}", field=where, reason="damaged"
    ) from error


def _refuse(field: str, expected: str, found: object) -> NoReturn:
    shown = found if isinstance(found, int | float | str) else f"{found!r:.80}"
    raise ProbeError(
        f"the probe is refused: {field}: expected {expected}, found {shown!s:.80}",
        field=field,
        expected=expected,
        found=shown if not isinstance(shown, str) else shown[:80],
        reason="damaged",
    )
