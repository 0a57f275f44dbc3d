"""Replies of the API, read back into the library's own values.

Law: a reply that is not what this version of a shadow reader says is ``UnreachableError``: whoever
answered there, it is not the service that the client was written for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import aiohttp
import orjson
from pydantic import TypeAdapter, ValidationError

from shadow_reader.errors import InvalidInputError, ShadowError, UnreachableError
from shadow_reader.http.client_feed import FeedReply
from shadow_reader.shadow.sessions import Accepted

Body: TypeAlias = dict[str, Any]
T = TypeVar("T")

LINE_BYTES: Final = 64 * 1024**2
BLOCK_BYTES: Final = 1024**2
_ADAPTERS: Final[dict[Any, TypeAdapter[Any]]] = {}


def feed_reply(raw: bytes) -> FeedReply:
    """One line of a feed's replies."""
    body = read_object(raw)
    line = body.pop("line", 0)
    if body.pop("ok", None) is not True:
        return FeedReply(line, None, error_of(body))
    try:
        return FeedReply(line, Accepted(**body), None)
    except TypeError as error:
        raise _foreign(raw, str(error)) from error


def read_reply(kind: type[T], raw: bytes) -> T:
    """A reply as the library's own value."""
    body = load_json(raw)
    if body is None:
        raise _foreign(raw, "it is not JSON")
    return read_value(kind, body)


def read_value(kind: type[T], body: object) -> T:
    """A part of a reply as the library's own value."""
    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        adapter = _ADAPTERS[kind] = TypeAdapter(kind)
    try:
        found: T = adapter.validate_python(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise _foreign(body, f"{where}: {first['msg']}") from error
    return found


def error_of(body: object, status: int = 0) -> ShadowError:
    """The error that a reply's ``{"error": ...}`` stands for."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        return UnreachableError(f"answered with status {status}, not as a shadow reader does")
    code, message, details = error["code"], str(error.get("message", "")), error.get("details")
    details = details if isinstance(details, dict) else {}
    cls = _classes().get(code)
    if cls is None:
        return ShadowError(f"{message} ({code})", **{**details, "remote": code})
    return cls(message, **{key: value for key, value in details.items() if key != "message"})


def _classes() -> dict[str, type[ShadowError]]:
    """The error tree by code; of two classes with one code the one nearer the root, or older."""
    found: dict[str, type[ShadowError]] = {}
    level: list[type[ShadowError]] = [ShadowError]
    while level:
        for cls in level:
            found.setdefault(cls.code, cls)
        level = [below for cls in level for below in cls.__subclasses__()]
    return found


async def lines_of(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body's lines; a line may be longer than the stream's buffer, up to ``LINE_BYTES``."""
    rest = b""
    async for block in reply.content.iter_any():
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            if line:
                yield line
        if len(rest) > LINE_BYTES:
            raise UnreachableError(f"a reply's line passes {LINE_BYTES} bytes", limit=LINE_BYTES)
    if rest:
        yield rest


async def save(reply: aiohttp.ClientResponse, file: Path) -> int:
    """Stream the body into ``file``; its bytes.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    size = 0
    try:
        handle = await asyncio.to_thread(file.open, "wb")
    except OSError as error:
        raise _unwritable(file, error) from error
    with handle:
        async for block in reply.content.iter_chunked(BLOCK_BYTES):
            size += len(block)
            try:
                handle.write(block)
            except OSError as error:
                raise _unwritable(file, error) from error
    return size


def load_json(raw: bytes) -> object:
    """JSON, or None where it is none."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


def read_object(raw: bytes) -> Body:
    """A JSON object."""
    body = load_json(raw)
    if not isinstance(body, dict):
        raise _foreign(raw, "it is no JSON object")
    return body


def _foreign(found: object, why: str) -> UnreachableError:
    return UnreachableError(
        f"the reply {str(found)[:60]!r} is not one of this version of a shadow reader: {why}"
    )


def _unwritable(file: Path, error: OSError) -> InvalidInputError:
    return InvalidInputError(
        f"cannot write {file}: {error.strerror}", field="file", found=str(file)
    )
