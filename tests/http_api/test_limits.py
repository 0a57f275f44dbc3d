"""Every bound sends away what passes it, gives back what was taken, and stands in the status."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.config import Settings
from shadow_reader.shadow.vocabulary import load_vocabulary
from tests.fake_journal import FlakyJournal
from tests.http_api.bare import open_feed
from tests.http_api.fake_engine import GRID, FakeEngine
from tests.http_api.serving import BODY_BYTES, Served, lines, serving, until

STATUS = "/v1/conductor/shadow/status"
TURNS = "/v1/sessions/s/turns"
HEAD = b"POST /v1/sessions/s/turns HTTP/1.1\r\nHost: localhost\r\n"
BUDGET = 100_000


async def limits(served: Served) -> dict[str, tuple[int, int]]:
    """Bound -> used and limit, as the status shows them."""
    rows = (await served.ok("GET", STATUS))["limits"]
    assert len({row["name"] for row in rows}) == len(rows)
    return {row["name"]: (row["used"], row["limit"]) for row in rows}


async def refused(served: Served, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """The details of a request that a bound sends away."""
    url = served.address.url + path
    async with served.http.request(method, url, json=body) as reply:
        assert (reply.status, reply.headers.get("Retry-After")) == (503, "1"), await reply.text()
        error = (await reply.json())["error"]
        assert error["code"] == "busy"
        details: dict[str, Any] = error["details"]
        return details


async def test_the_status_shows_every_bound_by_its_setting(asking: Served) -> None:
    settings = asking.runtime.settings
    found = await limits(asking)
    memory = found.pop("memory_bytes")
    assert memory == (0, 1 << 30)
    _, disk = found.pop("disk_bytes")
    assert disk == settings.disk_gb * (1 << 30)
    assert {name: limit for name, (_, limit) in found.items()} == {
        name: getattr(settings, name)
        for name in (
            *("requests", "streams", "exports", "erasures", "bodies_bytes", "sessions"),
            *("pending_events", "pending_bytes", "open_questions"),
            "branches",
            *("holds", "summaries"),
        )
    }
    assert {name for name, (used, _) in found.items() if used} == {"requests"}
    assert found["requests"] == (1, settings.requests), "the look itself"
    assert set(found) <= Settings.model_fields.keys()


async def test_the_status_counts_what_is_in_use(asking: Served, engine: FakeEngine) -> None:
    await asking.ok("POST", TURNS, {"turn": "t", "ids": [1] * (GRID + 1)})
    await asking.ok("POST", f"{TURNS}/t/end", {})
    await asking.ok("GET", "/v1/sessions/s?wait=fresh")
    engine.gate.clear()
    body = {"session": "s", "question_ids": [1, 2], "choices": ["yes", "no"]}
    questions = [
        asyncio.create_task(asking.call("POST", "/v1/conductor/shadow/ask", body)) for _ in range(3)
    ]
    await until(lambda: asking.used("open_questions") == 3, "the questions")
    async with open_feed(asking):
        found = await limits(asking)
    assert found["requests"][0] == 3 + 1 + 1
    assert found["streams"][0] == found["sessions"][0] == 1
    assert found["memory_bytes"][0] == 4 * GRID
    assert found["bodies_bytes"][0] > 0
    engine.gate.set()
    await asyncio.gather(*questions)
    await until(lambda: asking.used("requests") == 0, "the requests to end")
    assert {name for name, (used, _) in (await limits(asking)).items() if used} == {
        *("requests", "sessions", "memory_bytes", "disk_bytes")
    }


async def test_requests(tmp_path: Path) -> None:
    async with serving(tmp_path, requests=1) as served:
        async with served.http.get(served.address.url + "/v1/journal/stream") as stream:
            assert stream.status == 200
            details = await refused(served, "GET", "/healthz")
            assert details == {"field": "requests", "found": 1, "limit": 1}
        await until(lambda: served.used("requests") == 0, "the stream to end")
        assert (await served.call("GET", "/healthz"))[0] == 200


async def test_streams(tmp_path: Path) -> None:
    async with serving(tmp_path, streams=1) as served:
        async with open_feed(served) as duplex:
            for method, path in (("POST", "/v1/feed"), ("GET", "/v1/journal/stream")):
                details = await refused(served, method, path)
                assert details == {"field": "streams", "found": 1, "limit": 1}
            await duplex.finish()
            assert await duplex.ended()
        assert await served.feed(b"") == []


async def test_states_handed_out(tmp_path: Path, engine: FakeEngine) -> None:
    """Two are on their way; a third is sent away, and comes through once one of them is done."""
    more: dict[str, Any] = {"vocabulary": load_vocabulary("random:tiny"), "exports": 2}
    async with serving(tmp_path, engine=engine, **more) as served:
        await served.ok("POST", TURNS, {"turn": "t", "ids": [1] * GRID})
        await served.ok("POST", f"{TURNS}/t/end", {})
        await served.ok("GET", "/v1/sessions/s?wait=fresh")

        async def state() -> bytes:
            async with served.http.get(f"{served.address.url}/v1/sessions/s/state") as reply:
                assert reply.status == 200
                return await reply.read()

        engine.gate.clear()
        taking = [asyncio.create_task(state()) for _ in range(2)]
        await until(lambda: served.used("exports") == 2, "two exports")
        details = await refused(served, "GET", "/v1/sessions/s/state")
        assert details == {"field": "exports", "found": 2, "limit": 2}
        engine.gate.set()
        assert await asyncio.gather(*taking) == [b"state of s"] * 2
        await until(lambda: served.used("exports") == 0, "the exports to end")
        assert await state() == b"state of s"


async def test_erasures(tmp_path: Path) -> None:
    journal = FlakyJournal()
    async with serving(tmp_path, journal=journal, erasures=1) as served:
        for name in "ab":
            await served.ok("POST", f"/v1/sessions/{name}/turns", {"ids": [1]})
        journal.gate.clear()
        erasing = [asyncio.create_task(served.ok("DELETE", "/v1/sessions/a")) for _ in range(2)]
        await until(lambda: served.used("requests") == 2, "both to wait")
        details = await refused(served, "DELETE", "/v1/sessions/b")
        assert details == {"field": "erasures", "found": 1, "limit": 1}
        journal.gate.set()
        one, other = await asyncio.gather(*erasing)
        assert one == other
        assert (await served.ok("DELETE", "/v1/sessions/b"))["events"] == 2


# -- the bytes of all bodies -------------------------------------------------------------------


@pytest.fixture
def journal() -> FlakyJournal:
    """Its commits can be held back, and with them the handlers."""
    return FlakyJournal()


def prompt(session: str, count: int) -> bytes:
    """A whole request with ``count`` ids of two bytes each."""
    body = b'{"turn":"t","ids":[' + b",".join([b"1"] * count) + b"]}"
    return (
        b"POST /v1/sessions/%b/turns HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (session.encode(), len(body), body)
    )


async def test_bodies_count_until_their_handlers_are_done(
    tmp_path: Path, journal: FlakyJournal
) -> None:
    async with serving(tmp_path, journal=journal, bodies_bytes=BUDGET) as served:
        journal.gate.clear()
        ids = [1] * 20_000
        held = [
            asyncio.create_task(served.ok("POST", f"/v1/sessions/{n}/turns", {"ids": ids}))
            for n in range(2)
        ]
        await until(lambda: served.used("pending_events") == 4, "both to be submitted")
        used = served.used("bodies_bytes")
        assert 80_000 < used < BUDGET, "what was parsed lives on"
        details = await refused(served, "POST", TURNS, {"ids": ids})
        assert details == {"field": "bodies_bytes", "found": used, "limit": BUDGET}
        small = asyncio.create_task(served.ok("POST", TURNS, {"ids": [1]}))
        await until(lambda: served.used("pending_events") == 6, "a small one")
        journal.gate.set()
        await asyncio.gather(*held, small)
        assert served.used("bodies_bytes") == 0
        await served.ok("POST", TURNS, {"ids": ids})


async def test_what_is_announced_and_not_sent_takes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, bodies_bytes=BUDGET) as served:
        writers = []
        for _ in range(5):
            _, writer = await served.connect()
            writer.write(HEAD + b"Content-Length: %d\r\n\r\n{ " % BODY_BYTES)
            writers.append(writer)
        await until(lambda: served.used("bodies_bytes") == 5 * 2, "the bytes that came")
        await served.ok("POST", TURNS, {"ids": [1] * 20_000})
        for writer in writers:
            writer.transport.abort()
        await until(lambda: served.used("bodies_bytes") == 0, "the bodies to be given up")


async def test_a_body_that_no_longer_fits_as_it_comes_is_sent_away(tmp_path: Path) -> None:
    """Two announce what only one of them may have; the one that comes second is told."""
    async with serving(tmp_path, bodies_bytes=BUDGET) as served:
        size = BODY_BYTES - 10
        connections = [await served.connect() for _ in range(2)]
        for _, writer in connections:
            writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % size)
        await until(lambda: served.used("requests") == 2, "both to wait for their bodies")
        first, second = connections
        first[1].write(b" " * (size - 1))
        await until(lambda: served.used("bodies_bytes") == size - 1, "the first one's bytes")
        second[1].write(b" " * size)
        assert (await second[0].readline()).split()[1] == b"503"
        await until(lambda: served.used("bodies_bytes") == size - 1, "the second one's share")
        first[1].write(b" ")
        assert (await first[0].readline()).split()[1] == b"400"
        await until(lambda: served.used("bodies_bytes") == 0, "all to be given back")
        for _, writer in connections:
            writer.close()


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        (b"Content-Length: 9\r\n", b"{", b"408"),
        (b"Transfer-Encoding: chunked\r\n", b"1\r\n{\r\n", b"408"),
        (b"Content-Length: 1\r\n", b"{", b"400"),
        (b"Content-Length: 70000\r\n", b"{", b"413"),
    ],
)
async def test_whatever_becomes_of_a_body_its_share_is_given_back(
    tmp_path: Path, head: bytes, body: bytes, status: bytes
) -> None:
    async with serving(tmp_path, bodies_bytes=BUDGET, body_s=0.05) as served:
        reader, writer = await served.connect()
        writer.write(HEAD + head + b"\r\n" + body)
        assert (await reader.readline()).split()[1] == status
        await until(lambda: served.used("bodies_bytes") == 0, "the share")
        assert served.runtime.journal.stats().last_seq == 0
        writer.close()


async def test_a_client_that_goes_in_mid_body_gives_its_share_back(tmp_path: Path) -> None:
    async with serving(tmp_path, bodies_bytes=BUDGET) as served:
        for _ in range(5):
            _, writer = await served.connect()
            writer.write(prompt("s", 20_000)[:-10_000])
            await until(lambda: served.used("bodies_bytes") > 30_000, "most of it")
            writer.transport.abort()
            await until(lambda: served.used("bodies_bytes") == 0, "its share")
        assert (await served.feed(lines({"kind": "prompt", "session": "s", "ids": [1]})))[0]["ok"]
