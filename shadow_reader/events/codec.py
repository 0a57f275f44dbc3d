"""Events to rows and back: stable tags with versions, orjson for the data, a blob for the ids.

Law: what this build does not know is an error, never skipped: an unknown kind, a newer version, a
missing or an extra field, a value of another type. What cannot be read back is not written.
Old versions are lifted one step at a time by ``UPCASTERS``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

import orjson

from shadow_reader.errors import (
    InvalidInputError,
    JournalFormatError,
    ShadowError,
    UnknownEventError,
)
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.events.shapes import checks_of

Data: TypeAlias = dict[str, Any]
Upcaster: TypeAlias = Callable[[Data], Data]


class Row(NamedTuple):
    """The columns that hold an event: tag, version, JSON object, ids (little-endian uint32)."""

    kind: str
    version: int
    data: bytes
    ids: bytes | None


KINDS: Final[Mapping[str, type[t.Event]]] = MappingProxyType(
    {
        "session.opened": t.SessionOpened,
        "session.erased": t.SessionErased,
        "prompt": t.Prompt,
        "first_token": t.FirstToken,
        "output": t.Output,
        "turn.ended": t.TurnEnded,
        "rewind": t.Rewind,
        "read": t.Read,
        "ration.used": t.RationUsed,
        "checkpoint": t.Checkpoint,
        "shared": t.Shared,
        "spill": t.Spill,
        "restore": t.Restore,
        "dropped": t.Dropped,
        "question": t.Question,
        "answer": t.Answer,
        "label": t.Label,
        "router.answer": t.RouterAnswer,
        "summary": t.Summary,
        "question.ended": t.QuestionEnded,
        "engine.loaded": t.EngineLoaded,
        "engine.released": t.EngineReleased,
        "hold": t.HoldBegun,
        "hold.ended": t.HoldEnded,
        "probe.trained": t.ProbeTrained,
        "probe.retired": t.ProbeRetired,
        "engine.stopped": t.EngineStopped,
    }
)
VERSIONS: Final[Mapping[str, int]] = MappingProxyType(
    {**dict.fromkeys(KINDS, 1), "prompt": 3, "question": 3, "answer": 2}
)
UPCASTERS: Final[Mapping[tuple[str, int], Upcaster]] = MappingProxyType(
    {
        ("prompt", 1): lambda data: {**data, "profile": None},
        ("prompt", 2): lambda data: {**data, "decided": None},
        ("question", 1): lambda data: {**data, "about": None},
        ("question", 2): lambda data: {**data, "probe": None, "probe_version": None},
        ("answer", 1): lambda data: {**data, "prior": None},
    }
)
"""(kind, version) -> the function that turns that version's data into the next version's."""

_OUTPUT_VERSION: Final = VERSIONS["output"]
_KIND_OF: Final = {cls: kind for kind, cls in KINDS.items()}
_CHECKS: Final = {cls: dict(checks_of(cls)) for cls in KINDS.values()}
_HAS_IDS: Final = frozenset(
    cls for cls in KINDS.values() if any(f.name == "ids" for f in dataclasses.fields(cls))
)


def kind_of(event: t.Event) -> str:
    """The event's tag in the journal."""
    return _KIND_OF[type(event)]


def encode(event: t.Event) -> Row:
    """The event's columns in the newest version.

    Raises:
        InvalidInputError: a value that could not be read back: of another type than the field's,
            not finite, or text that is not Unicode; names the field and what was found.
    """
    if type(event) is t.Output and type(event.offset) is int and 0 <= event.offset < 2**63:
        return Row("output", _OUTPUT_VERSION, b'{"offset":%d}' % event.offset, event.ids.to_bytes())
    return _encode(event)


def _encode(event: t.Event) -> Row:
    """``encode`` for every kind; the one that comes by the thousand has a shorter way."""
    cls = type(event)
    kind = _KIND_OF[cls]
    data = {}
    for name, check in _CHECKS[cls].items():
        data[name] = value = getattr(event, name)
        if not check(value):
            raise _wrong_value(kind, name, value, InvalidInputError)
    try:
        blob = orjson.dumps(data)
    except orjson.JSONEncodeError as error:
        raise InvalidInputError(f"{kind} event cannot be written: {error}", kind=kind) from error
    return Row(kind, VERSIONS[kind], blob, event.ids.to_bytes() if _holds_ids(event) else None)


def decode(
    row: Row,
    *,
    upcasters: Mapping[tuple[str, int], Upcaster] = UPCASTERS,
    versions: Mapping[str, int] = VERSIONS,
) -> t.Event:
    """Read an event of any version this build knows.

    Raises:
        UnknownEventError: a kind or version from a newer build.
        JournalFormatError: data that is not what the version says.
    """
    cls = KINDS.get(row.kind)
    if cls is None:
        raise UnknownEventError(f"unknown event kind {row.kind!r}", kind=row.kind)
    data = _load(row)
    data = _lift(row, data, upcasters, versions)
    return _build(cls, row, data)


def _load(row: Row) -> Data:
    try:
        data = orjson.loads(row.data)
    except orjson.JSONDecodeError as error:
        raise JournalFormatError(f"{row.kind} event holds broken JSON: {error}") from error
    if not isinstance(data, dict):
        raise JournalFormatError(f"{row.kind} event holds {type(data).__name__}, not an object")
    return data


def _lift(
    row: Row,
    data: Data,
    upcasters: Mapping[tuple[str, int], Upcaster],
    versions: Mapping[str, int],
) -> Data:
    newest = versions[row.kind]
    if not 1 <= row.version <= newest:
        raise UnknownEventError(
            f"{row.kind} event has version {row.version}; this build knows 1 to {newest}",
            kind=row.kind,
            version=row.version,
            limit=newest,
        )
    for version in range(row.version, newest):
        data = upcasters[row.kind, version](data)
    return data


def _build(cls: type[t.Event], row: Row, data: Data) -> t.Event:
    if data.keys() != _CHECKS[cls].keys():
        wrong = sorted(data.keys() ^ _CHECKS[cls].keys())
        raise JournalFormatError(
            f"{row.kind} event v{row.version} has missing or extra fields: {', '.join(wrong)}",
            kind=row.kind,
            fields=wrong,
        )
    for name, check in _CHECKS[cls].items():
        if type(data[name]) is list:
            data[name] = tuple(data[name])
        if not check(data[name]):
            raise _wrong_value(row.kind, name, data[name], JournalFormatError)
    if (cls in _HAS_IDS) != (row.ids is not None):
        raise JournalFormatError(f"{row.kind} event has ids where none belong, or lacks them")
    if row.ids is not None:
        try:
            data["ids"] = Ids.from_bytes(row.ids)
        except ValueError as error:
            raise JournalFormatError(f"{row.kind} event: {error}") from error
    return cls(**data)


def _wrong_value(kind: str, name: str, value: object, error: type[ShadowError]) -> ShadowError:
    found = repr(value)[:80]
    return error(f"{kind} event: {name} cannot be {found}", kind=kind, field=name, found=found)


def _holds_ids(event: t.Event) -> TypeGuard[t.Prompt | t.Output | t.Question | t.Summary]:
    return type(event) in _HAS_IDS
