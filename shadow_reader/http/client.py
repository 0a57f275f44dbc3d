"""A client of the JSON API: the library's calls, spoken over HTTP.

Law: what the server refuses raises the same ``ShadowError`` here as it would in the server's own
process; what keeps the server from answering at all raises ``UnreachableError``. No call is sent
twice by itself: every message may be repeated, but whether to do so is the caller's decision.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import orjson
from yarl import URL

from shadow_reader.errors import SettingsError, UnreachableError
from shadow_reader.events.journal import SessionRow
from shadow_reader.events.types import Label
from shadow_reader.http.client_feed import FeedBody, FeedReply
from shadow_reader.http.client_replies import (
    Body,
    T,
    error_of,
    feed_reply,
    lines_of,
    load_json,
    read_object,
    read_reply,
    read_value,
    save,
)
from shadow_reader.http.replies import Replies, SummaryLine
from shadow_reader.shadow.holds import Hold
from shadow_reader.shadow.jobs import StateDigest
from shadow_reader.shadow.questions import Ask, Reply, check_probe_alone
from shadow_reader.shadow.sessions import Accepted, Erased
from shadow_reader.shadow.status import RoundReply, SessionStatus, SlotStatus, Status

CONNECT_S: Final = 5.0
REPLY_S: Final = 60.0
FEED_WINDOW: Final = 1024

_JSON: Final = {"Content-Type": "application/json"}
_ASK: Final = "/v1/conductor/shadow/ask"
_BROKEN: Final = (aiohttp.ClientError, OSError)


class ShadowClient:
    """One server. Use as ``async with ShadowClient("http://127.0.0.1:8765") as shadow:``.

    Args:
        base_url: scheme, host and port.
        token: the server's bearer token, if it has one.
        reply_s: longest wait for a reply of a call that has nothing to wait for.
    """

    def __init__(
        self, base_url: str, token: str | None = None, *, reply_s: float = REPLY_S
    ) -> None:
        try:
            url = URL(base_url)
        except ValueError as error:
            raise SettingsError(f"url {base_url!r} cannot be read: {error}", key="url") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise SettingsError(f"url must be http://host:port, not {base_url!r}", key="url")
        self.base_url = str(url).rstrip("/")
        self._reply_s = reply_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ShadowClient:
        await self.open()
        return self

    async def open(self) -> None:
        """Make it ready for calls; ``close`` must follow. Nothing is sent yet."""
        self._http = aiohttp.ClientSession(
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the connections; may be called again."""
        if self._http is not None:
            await self._http.close()

    async def prompt(
        self,
        session: str,
        ids: Sequence[int],
        *,
        turn: str | None = None,
        keep: int | None = None,
        keep_of: str | None = None,
        router: str | None = None,
        profile: str | None = None,
        decided: bool | None = None,
    ) -> Accepted:
        """A turn begins. The server names the turn when ``turn`` is None."""
        body = _given(
            ids=list(ids),
            turn=turn,
            keep=keep,
            keep_of=keep_of,
            router=router,
            profile=profile,
            decided=decided,
        )
        return await self._call(Accepted, "POST", _session(session, "turns"), body)

    async def first_token(self, session: str, turn: str) -> Accepted:
        """Prefill is over."""
        return await self._call(Accepted, "POST", _turn(session, turn, "first_token"), {})

    async def output(self, session: str, turn: str, *, offset: int, ids: Sequence[int]) -> Accepted:
        """Output ids at ``offset`` of the turn."""
        body = {"offset": offset, "ids": list(ids)}
        return await self._call(Accepted, "POST", _turn(session, turn, "output"), body)

    async def end(
        self, session: str, turn: str, *, reason: str = "stop", produced: int | None = None
    ) -> Accepted:
        """No more output comes."""
        body = _given(reason=reason, produced=produced)
        return await self._call(Accepted, "POST", _turn(session, turn, "end"), body)

    async def feed(
        self, messages: AsyncIterable[Mapping[str, Any]], *, window: int = FEED_WINDOW
    ) -> AsyncGenerator[FeedReply, None]:
        """Send many messages on one connection; their replies, in order.

        Messages go out while replies come in, at most ``window`` of them unanswered. A refused
        message is a reply like any other. Close the iterator (``contextlib.aclosing``) when
        leaving it early.

        Raises:
            UnreachableError: the feed broke before every message was answered.
            Whatever ``messages`` raises.
        """
        body = FeedBody(messages, window=window)
        headers = {"Content-Type": "application/x-ndjson"}
        try:
            async with self._open("POST", "/v1/feed", data=body.stream(), headers=headers) as reply:
                async for line in lines_of(reply):
                    yield body.answered(feed_reply(line))
        except UnreachableError:
            if body.failure is not None:
                raise body.failure from None
            raise
        finally:
            await body.close()
        body.check_complete(self.base_url)

    async def ask(
        self,
        session: str,
        question: str | Sequence[int] = "",
        choices: Sequence[str] = (),
        *,
        wait: str = "fresh",
        position: int | None = None,
        calibrate: bool = False,
        timeout_s: float | None = None,
        probe: str | None = None,
    ) -> Reply:
        """A typed question, or ``probe`` alone, by name.

        The server bounds the wait, by its own time without one.
        """
        about = _given(session=session, wait=wait, position=position, timeout_s=timeout_s)
        body = {**about, **_question(Ask(question, choices, calibrate, probe=probe))}
        return await self._call(Reply, "POST", _ASK, body, bounded=False)

    async def ask_many(
        self,
        session: str,
        questions: Sequence[Ask],
        *,
        wait: str = "fresh",
        position: int | None = None,
        timeout_s: float | None = None,
    ) -> tuple[Reply, ...]:
        """Typed questions, all of which are asked or none; the answers in their order."""
        about = _given(session=session, wait=wait, position=position, timeout_s=timeout_s)
        body = {**about, "questions": [_question(asked) for asked in questions]}
        found = await self._call(Replies, "POST", f"{_ASK}/many", body, bounded=False)
        return found.replies

    async def summary(
        self, session: str, *, prompt: str | None = None, timeout_s: float | None = None
    ) -> AsyncGenerator[SummaryLine, None]:
        """A summary of the session's last thought as it is written; the last line has the reply.

        Whoever stops reading ends it.
        """
        data = orjson.dumps(_given(session=session, prompt=prompt, timeout_s=timeout_s))
        path = "/v1/conductor/shadow/summary"
        async with self._open("POST", path, data=data, headers=_JSON) as reply:
            async for line in lines_of(reply):
                yield read_reply(SummaryLine, line)

    async def label(self, session: str, labels: Sequence[Label]) -> Accepted:
        """What is right of a session: all labels are taken or none."""
        body = {"session": session, "labels": list(labels)}
        return await self._call(Accepted, "POST", "/v1/labels", body)

    async def status(self) -> Status:
        """How the whole service stands."""
        return await self._call(Status, "GET", "/v1/conductor/shadow/status")

    async def session(self, session: str) -> SessionStatus:
        """How one session stands."""
        return await self._call(SessionStatus, "GET", _session(session))

    async def wait_fresh(self, session: str, *, timeout_s: float | None = None) -> SessionStatus:
        """How the session stands once less than one chunk of it is unread.

        Args:
            timeout_s: longest wait; the server's own ``ask_timeout_s`` when None.

        Raises:
            AskTimeoutError: it was not fresh in time. ShutDownError: the server's reader stopped.
        """
        query = _query(wait="fresh", timeout_s=timeout_s)
        return await self._call(SessionStatus, "GET", _session(session), query=query, bounded=False)

    async def digest(self, session: str) -> StateDigest:
        """The state digest at the committed grid line."""
        return await self._call(StateDigest, "GET", _session(session, "digest"), bounded=False)

    async def state(self, session: str, file: Path) -> int:
        """Stream the session's state into ``file``, which appears whole or not at all; its bytes.

        Raises:
            InvalidInputError: ``file`` cannot be written.
        """
        part = file.with_name(file.name + ".part")
        try:
            async with self._open("GET", _session(session, "state")) as reply:
                size = await save(reply, part)
            await asyncio.to_thread(part.replace, file)
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)
        return size

    async def journal(self, **filters: object) -> AsyncGenerator[Body, None]:
        """Committed entries as rows; ``filters`` are the query's, None counts as not given."""
        async with self._open("GET", "/v1/journal", params=_query(**filters)) as reply:
            async for line in lines_of(reply):
                yield read_object(line)

    async def query(
        self, *, where: Sequence[str] = (), **asked: object
    ) -> AsyncGenerator[Body, None]:
        """Flat rows that meet conditions, or groups of them; see ``events.queries.RowQuery``."""
        params = [*_query(**asked).items(), *(("where", one) for one in where)]
        async with self._open("GET", "/v1/journal/query", params=params) as reply:
            async for line in lines_of(reply):
                yield read_object(line)

    async def sessions(self, *, page: int = 1000) -> AsyncGenerator[SessionRow, None]:
        """The journal's sessions by name, fetched a page at a time."""
        after: str | None = ""
        while after is not None:
            query = {"after": after, "limit": str(page)}
            async with self._open("GET", "/v1/sessions", params=query) as reply:
                body = read_object(await reply.read())
            for row in read_value(tuple[SessionRow, ...], body.get("sessions")):
                yield row
            after = body.get("next")

    async def erase(self, session: str) -> Erased:
        """Remove everything the journal and the reader hold of the session."""
        return await self._call(Erased, "DELETE", _session(session), bounded=False)

    async def round(self, session: str, turn: str) -> RoundReply:
        """The engine has paused between two of its rounds; returns when it may go on."""
        body = {"session": session, "turn": turn}
        return await self._call(RoundReply, "POST", "/v1/conductor/shadow/round", body)

    async def hold(self, owner: str, seconds: float) -> Hold:
        """Keep the shadow quiet for so long at most."""
        body = {"owner": owner, "seconds": seconds}
        return await self._call(Hold, "POST", "/v1/conductor/shadow/hold", body)

    async def extend_hold(self, hold: str, seconds: float) -> Hold:
        """Let a hold last for so long from now on."""
        body = {"hold": hold, "seconds": seconds}
        return await self._call(Hold, "POST", "/v1/conductor/shadow/hold", body)

    async def end_hold(self, hold: str) -> Hold:
        """End a hold before its time."""
        return await self._call(Hold, "POST", "/v1/conductor/shadow/hold/end", {"hold": hold})

    async def load(self, *, timeout_s: float | None = None) -> SlotStatus:
        """Load the model in the server's next idle window."""
        body = _given(timeout_s=timeout_s)
        path = "/v1/conductor/shadow/load"
        return await self._call(SlotStatus, "POST", path, body, bounded=False)

    async def release(self) -> SlotStatus:
        """Spill every state and let the model go."""
        path = "/v1/conductor/shadow/release"
        return await self._call(SlotStatus, "POST", path, {}, bounded=False)

    async def health(self) -> Body:
        """Whether the process lives."""
        return await self._call(Body, "GET", "/healthz")

    async def metrics(self) -> str:
        """Counters and gauges in Prometheus' text format."""
        async with self._open("GET", "/metrics") as reply:
            return await reply.text()

    async def ready(self) -> Body:
        """``state`` and ``reason``; also of a server that is not ready."""
        async with self._send("GET", "/readyz") as reply:
            body = load_json(await reply.read())
            if reply.status not in (200, 503) or not isinstance(body, dict):
                raise error_of(body, reply.status)
            return body

    async def _call(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: Body | None = None,
        *,
        query: Mapping[str, str] | None = None,
        bounded: bool = True,
    ) -> T:
        data = None if body is None else orjson.dumps(body)
        headers = {} if data is None else _JSON
        limit_s = self._reply_s if bounded else None
        try:
            async with (
                asyncio.timeout(limit_s),
                self._open(method, path, params=query, data=data, headers=headers) as reply,
            ):
                return read_reply(kind, await reply.read())
        except TimeoutError as error:
            raise UnreachableError(
                f"{self.base_url} did not answer {method} {path} within {limit_s} s",
                url=self.base_url,
                limit=limit_s,
            ) from error

    @contextlib.asynccontextmanager
    async def _open(
        self, method: str, path: str, **request: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._send(method, path, **request) as reply:
            if reply.status != 200:
                raise error_of(load_json(await reply.read()), reply.status)
            yield reply

    @contextlib.asynccontextmanager
    async def _send(
        self, method: str, path: str, **request: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._http is not None, "use the client as an async context manager"
        url = URL(self.base_url + path, encoded=True)
        try:
            async with self._http.request(method, url, **request) as reply:
                yield reply
        except _BROKEN as error:
            raise UnreachableError(
                f"{self.base_url} does not answer: {_reason(error)}", url=self.base_url
            ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno or 0
        return os.strerror(number) if number > 0 else str(error.os_error.strerror)
    return str(error) or type(error).__name__


def _given(**fields: object) -> Body:
    return {key: value for key, value in fields.items() if value is not None}


def _question(asked: Ask) -> Body:
    if asked.probe is not None:
        check_probe_alone(asked)
        return {"probe": asked.probe}
    key = "question" if isinstance(asked.question, str) else "question_ids"
    found = asked.question if isinstance(asked.question, str) else list(asked.question)
    return {key: found, "choices": list(asked.choices), "calibrate": asked.calibrate}


def _session(session: str, *more: str) -> str:
    return "/".join(("/v1/sessions", quote(session, safe=""), *more))


def _turn(session: str, turn: str, what: str) -> str:
    return _session(session, "turns", quote(turn, safe=""), what)


def _query(**fields: object) -> dict[str, str]:
    return {key: _query_value(value) for key, value in fields.items() if value is not None}


def _query_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
