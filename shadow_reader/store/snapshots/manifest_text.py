"""Manifests and pieces as the text that a file's header carries, and back.

Law: every field is there, with its type, and no other; what could not be read back is not written.
The text of a head also says when it was written, the text of a piece whose it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson

from shadow_reader.events.snapshots import Manifest, Piece
from shadow_reader.store.snapshots.faults import refused

PIECE_NAME: Final = re.compile(r"(?!head\Z)[a-z0-9-]{1,128}")
"""What may be the stem of a piece's file; "head" is the head's."""

Check: TypeAlias = Callable[[object], bool]


def write_head_text(path: Path, manifest: Manifest, written_at: float) -> str:
    """The text of a head written at that unix second.

    Raises:
        SnapshotError: a field that could not be read back.
    """
    text = _dump(path, {"written_at": written_at, "manifest": _manifest_fields(manifest)})
    read_head_text(path, text)
    return text


def read_head_text(path: Path, text: str) -> tuple[Manifest, float]:
    """The manifest, and when its head was written.

    Raises:
        SnapshotError: names the field, what was expected and what was found.
    """
    head = _Fields(path, "head", _load(path, text))
    written_at = head.take("written_at", _is_time)
    manifest = _read_manifest(path, head.take("manifest", _is_object))
    head.end()
    return manifest, written_at


def write_piece_text(path: Path, session: str, piece: Piece) -> str:
    """The text of a piece of the session.

    Raises:
        SnapshotError: a field that could not be read back.
    """
    text = _dump(path, {"session": session, "piece": _piece_fields(piece)})
    read_piece_text(path, text)
    return text


def read_piece_text(path: Path, text: str) -> tuple[str, Piece]:
    """Whose piece it is, and what it says of itself.

    Raises:
        SnapshotError: names the field, what was expected and what was found.
    """
    fields = _Fields(path, "piece file", _load(path, text))
    session = fields.take("session", _is_name)
    piece = _read_piece(path, fields.take("piece", _is_object))
    fields.end()
    return session, piece


class _Fields:
    """The fields of a JSON object, taken one by one."""

    def __init__(self, path: Path, what: str, values: object) -> None:
        self._path = path
        self._what = what
        if not isinstance(values, dict):
            raise refused(path, what, expected="an object", found=values)
        self._left: dict[str, Any] = dict(values)

    def take(self, name: str, check: Check) -> Any:
        if name not in self._left:
            raise refused(self._path, self._what, expected=f"a field {name}", found="none")
        value = self._left.pop(name)
        if not check(value):
            kind = check.__name__.removeprefix("_is_")
            raise refused(self._path, f"{self._what}, {name}", expected=kind, found=value)
        return value

    def end(self) -> None:
        if self._left:
            raise refused(self._path, self._what, expected="no more", found=list(self._left))


def _manifest_fields(manifest: Manifest) -> dict[str, object]:
    return {
        "session": manifest.session,
        "opened_at": manifest.opened_at,
        "engine": dict(manifest.engine),
        "position": manifest.position,
        "seq": manifest.seq,
        "ids_hash": manifest.ids_hash,
        "digest": manifest.digest,
        "checkpoints": [list(checkpoint) for checkpoint in manifest.checkpoints],
        "pieces": [_piece_fields(piece) for piece in manifest.pieces],
        "head_digests": dict(manifest.head_digests),
    }


def _read_manifest(path: Path, values: object) -> Manifest:
    fields = _Fields(path, "manifest", values)
    manifest = Manifest(
        session=fields.take("session", _is_name),
        opened_at=fields.take("opened_at", _is_time),
        engine=fields.take("engine", _is_facts),
        position=fields.take("position", _is_count),
        seq=fields.take("seq", _is_count),
        ids_hash=fields.take("ids_hash", _is_text),
        digest=fields.take("digest", _is_text),
        checkpoints=tuple(map(tuple, fields.take("checkpoints", _is_checkpoints))),
        pieces=tuple(_read_piece(path, piece) for piece in fields.take("pieces", _is_list)),
        head_digests=fields.take("head_digests", _is_digests),
    )
    fields.end()
    names = [piece.name for piece in manifest.pieces]
    if len(set(names)) < len(names):
        raise refused(path, "pieces", expected="each name once", found=names)
    return manifest


def _piece_fields(piece: Piece) -> dict[str, object]:
    return {
        "name": piece.name,
        "start": piece.start,
        "stop": piece.stop,
        "digests": dict(piece.digests),
        "bytes": piece.bytes,
    }


def _read_piece(path: Path, values: object) -> Piece:
    fields = _Fields(path, "piece", values)
    piece = Piece(
        name=fields.take("name", _is_piece_name),
        start=fields.take("start", _is_count),
        stop=fields.take("stop", _is_count),
        digests=fields.take("digests", _is_digests),
        bytes=fields.take("bytes", _is_count),
    )
    fields.end()
    if piece.stop < piece.start:
        raise refused(path, f"piece {piece.name}, stop", expected=piece.start, found=piece.stop)
    return piece


def _dump(path: Path, value: Mapping[str, object]) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise refused(path, "manifest", expected="JSON values", found=str(error)) from error


def _load(path: Path, text: str) -> object:
    try:
        value: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise refused(path, "manifest", expected="JSON", found=str(error)) from error
    return value


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_name(value: object) -> bool:
    return type(value) is str and value != ""


def _is_piece_name(value: object) -> bool:
    return type(value) is str and PIECE_NAME.fullmatch(value) is not None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]  # a number


def _is_list(value: object) -> bool:
    return type(value) is list


def _is_object(value: object) -> bool:
    return type(value) is dict


def _is_digests(value: object) -> bool:
    return isinstance(value, dict) and all(type(digest) is str for digest in value.values())


def _is_facts(value: object) -> bool:
    return isinstance(value, dict) and all(type(fact) in (str, int) for fact in value.values())


def _is_checkpoints(value: object) -> bool:
    return isinstance(value, list) and all(
        type(entry) is list and len(entry) == 2 and _is_count(entry[0]) and _is_text(entry[1])
        for entry in value
    )
