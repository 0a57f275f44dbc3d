"""One streamed request to an OpenAI-compatible server, told to the shadow as it goes.

The prompt is a list of ids (``/completions`` takes one), so nothing is tokenized. The ids that come
are the server's own where it streams them (vLLM's ``token_ids`` with ``return_token_ids``,
llama.cpp's ``tokens``); of any other server the pieces of text are counted, and ids are made up.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from shadow_reader.errors import ShadowError
from shadow_reader.http.client import ShadowClient

MADE_UP: Final = 7
"""The id that stands for those a server does not stream."""
TIMEOUT_S: Final = 600.0
SESSION_HEADER: Final = "x-session-id"
TURN_HEADER: Final = "x-turn-id"


class UpstreamError(ShadowError):
    """The serving model did not answer as it should."""

    code = "upstream_failed"


@dataclass(slots=True)
class Answer:
    """What came.

    Attributes:
        first: how many came with the first piece. ttft_s: until that; last_s: until the last one.
        made_up: the server streams no ids; then a piece of text counts as one.
    """

    ids: list[int] = field(default_factory=list)
    first: int = 0
    ttft_s: float = 0.0
    last_s: float = 0.0
    made_up: bool = False

    @property
    def rate(self) -> float:
        """Ids a second after the first.

        Raises:
            UpstreamError: too few came to tell.
        """
        if len(self.ids) <= self.first or self.last_s <= self.ttft_s:
            raise UpstreamError(f"{len(self.ids)} ids came: too few for a rate", field="max_tokens")
        return (len(self.ids) - self.first) / (self.last_s - self.ttft_s)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A serving model.

    Attributes:
        url: up to ``/v1``. model: as it is called there.
    """

    url: str
    model: str
    key: str | None = None

    async def ask(
        self,
        prompt: Sequence[int],
        count: int,
        *,
        shadow: ShadowClient,
        session: str,
        turn: str,
    ) -> Answer:
        """Send a prompt, take ``count`` ids, and tell the shadow all of it.

        Raises:
            UpstreamError: it refused, broke off, or produced nothing.
        """
        await shadow.prompt(session, prompt, turn=turn)
        answer = Answer()
        began = time.perf_counter()
        telling: asyncio.Queue[tuple[int, list[int]] | None] = asyncio.Queue()
        teller = asyncio.create_task(_tell(shadow, session, turn, telling))
        try:
            async for ids, made_up in self._stream(prompt, count, session, turn):
                now_s = time.perf_counter() - began
                if not answer.ids:
                    answer.first, answer.ttft_s = len(ids), now_s
                telling.put_nowait((len(answer.ids), ids))
                answer.ids += ids
                answer.made_up |= made_up
                answer.last_s = now_s
        finally:
            telling.put_nowait(None)
            try:
                await teller
            finally:
                await shadow.end(session, turn)
        if (not answer.made_up and len(answer.ids) != count) or not answer.ids:
            raise UpstreamError(
                f"{self.url} streamed {len(answer.ids)} ids, not {count}: runs of different "
                f"lengths make no pair",
                field="max_tokens",
                found=len(answer.ids),
                expected=count,
            )
        return answer

    async def _stream(
        self, prompt: Sequence[int], count: int, session: str, turn: str
    ) -> AsyncIterator[tuple[list[int], bool]]:
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": count,
            "stream": True,
            "ignore_eos": True,
            "return_token_ids": True,
            "return_tokens": True,
        }
        headers = {SESSION_HEADER: session, TURN_HEADER: turn}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, read_bufsize=2**20) as http,
                http.post(f"{self.url}/completions", json=body, headers=headers) as reply,
            ):
                if reply.status != 200:
                    text = (await reply.text())[:300]
                    raise UpstreamError(f"{self.url} answered {reply.status}: {text}")
                async for line in reply.content:
                    found = ids_of_line(line)
                    if found is not None:
                        yield found
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamError(f"{self.url} broke off: {error!r}") from error


def ids_of_line(line: bytes) -> tuple[list[int], bool] | None:
    """The ids of one line of a stream, and whether they are made up; None: it has none.

    Raises:
        UpstreamError: an error of the server in the stream, or a line that is no JSON.
    """
    text = line.strip()
    if not text.startswith(b"data:"):
        return None
    data = text.removeprefix(b"data:").strip()
    if data in (b"[DONE]", b""):
        return None
    try:
        chunk: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise UpstreamError(f"the stream holds {data[:80]!r}, no JSON") from error
    if "error" in chunk:
        raise UpstreamError(f"the stream says: {chunk['error']}")
    for choice in chunk.get("choices") or [chunk]:
        for key in ("token_ids", "tokens"):
            if choice.get(key):
                return list(choice[key]), False
        delta = choice.get("delta") or {}
        if choice.get("text") or delta.get("content") or delta.get("reasoning"):
            return [MADE_UP], True
        if choice.get("content"):
            return [MADE_UP], True
    return None


async def _tell(
    shadow: ShadowClient,
    session: str,
    turn: str,
    telling: asyncio.Queue[tuple[int, list[int]] | None],
) -> None:
    """Tell the shadow what came, beside the stream: the stream does not wait for it."""
    while (piece := await telling.get()) is not None:
        offset, ids = piece
        await shadow.output(session, turn, offset=offset, ids=ids)
