"""The client: the same calls as the library's, the same errors, and trouble on the line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from shadow_reader.errors import (
    AskTimeoutError,
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    OutOfRoomError,
    SettingsError,
    ShadowError,
    TooLargeError,
    UnreachableError,
    VocabularyError,
)
from shadow_reader.http.client import ShadowClient
from shadow_reader.http.client_replies import error_of
from shadow_reader.http.errors import InternalError
from shadow_reader.shadow.jobs import StateDigest
from shadow_reader.shadow.questions import Ask
from shadow_reader.shadow.sessions import Accepted, Erased
from tests.http_api.clients import answering, prompt, stream
from tests.http_api.fake_engine import GRID, FakeEngine
from tests.http_api.serving import BODY_BYTES, serving


def names_in(folder: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


# -- the same calls as the library's -----------------------------------------------------------


async def test_a_turn_from_prompt_to_end(client: ShadowClient) -> None:
    assert await client.prompt("s", [1, 2, 3], turn="t1") == Accepted("s", "t1", 3, 0, 2)
    assert await client.first_token("s", "t1") == Accepted("s", "t1", 3, 0, 3)
    assert await client.output("s", "t1", offset=0, ids=[4, 5]) == Accepted("s", "t1", 5, 2, 4)
    assert await client.output("s", "t1", offset=0, ids=[4, 5]) == Accepted("s", "t1", 5, 2, None)
    assert await client.end("s", "t1", produced=2) == Accepted("s", "t1", 5, 2, 5)
    again = await client.prompt("s", [6], keep=5, router="code")
    assert (again.known, len(again.turn)) == (6, 32)
    status = await client.session("s")
    assert (status.known, status.turns, status.running, status.checkpoints) == (6, 2, True, ())
    assert status.note.startswith("no model")


async def test_a_session_that_becomes_fresh(asker: ShadowClient, engine: FakeEngine) -> None:
    await asker.prompt("s", [1] * (GRID + 1), turn="t1")
    with pytest.raises(AskTimeoutError):
        await asker.wait_fresh("s", timeout_s=0.05)
    await asker.end("s", "t1")
    status = await asker.wait_fresh("s")
    assert (status.fresh, status.committed) == (True, GRID)
    assert status == await asker.session("s")


async def test_names_with_slashes_and_spaces_reach_the_server_as_they_are(
    client: ShadowClient,
) -> None:
    name, turn = "a/b c?d=%2F#é", "t/1 %"
    assert (await client.prompt(name, [1], turn=turn)).session == name
    assert (await client.output(name, turn, offset=0, ids=[2])).known == 2
    assert (await client.session(name)).turn == turn
    assert [row.session async for row in client.sessions()] == [name]
    assert await client.erase(name) == Erased(name, 3, 2)


async def test_the_status_of_the_service(asker: ShadowClient) -> None:
    status = await asker.status()
    assert (status.state, status.totals.sessions, status.sessions) == ("ready", 0, ())
    assert status.model is not None
    assert (status.model.identity.model, status.model.identity.grid) == ("fake", GRID)
    assert await asker.health() == {"ok": True}
    assert "shadow_reader_sessions 0.0\n" in await asker.metrics()
    assert await asker.ready() == {"state": "ready", "reason": ""}


async def test_questions_digests_and_states(asker: ShadowClient, tmp_path: Path) -> None:
    await asker.prompt("s", [7] * (GRID + 3), turn="t1")
    await asker.end("s", "t1")
    reply = await asker.ask("s", "Well?", ["yes", "no"], timeout_s=20)
    assert (reply.label, reply.letter, reply.behind) == ("yes", "A", 0)
    assert reply.probabilities == {"yes": 0.5, "no": 0.5}
    assert (await asker.ask("s", [1, 2], ["a", "b"], wait="now")).position == GRID + 3
    many = await asker.ask_many(
        "s", [Ask("Well?", ["yes", "no"], calibrate=True), Ask([1, 2], ["a", "b"])], wait="now"
    )
    assert [list(found.probabilities) for found in many] == [["yes", "no"], ["a", "b"]]
    assert many[0].prior == {"yes": 0.5, "no": 0.5}
    assert many[1].prior is None
    at = await asker.ask("s", "Well?", ["yes", "no"], wait="position", position=3)
    assert (at.position, at.behind) == (3, GRID)
    digest = await asker.digest("s")
    assert isinstance(digest, StateDigest)
    assert (digest.session, digest.position) == ("s", GRID)
    file = tmp_path / "state.bin"
    assert await asker.state("s", file) == len(b"state of s")
    assert file.read_bytes() == b"state of s"
    assert names_in(tmp_path, "state*") == ["state.bin"]


async def test_the_journal_in_rows(client: ShadowClient) -> None:
    await client.prompt("s", [1, 2, 3], turn="t1")
    await client.output("s", "t1", offset=0, ids=[4])
    rows = [row async for row in client.journal()]
    assert [row["kind"] for row in rows] == ["session.opened", "prompt", "output"]
    assert rows[1]["ids"] == {"count": 3}
    rows = [row async for row in client.journal(kind=["prompt", "output"], ids=True, order="desc")]
    assert [row["ids"] for row in rows] == [[4], [1, 2, 3]]
    assert [row async for row in client.journal(session="other")] == []
    assert [row["seq"] async for row in client.journal(after=1, limit=1)] == [2]


async def test_a_row_longer_than_any_buffer_is_read_whole(tmp_path: Path) -> None:
    ids = list(range(100_000))
    async with (
        serving(tmp_path, body_bytes=1 << 20) as served,
        ShadowClient(served.address.url) as client,
    ):
        await client.prompt("s", ids)
        rows = [row async for row in client.journal(kind="prompt", ids=True)]
    assert rows[0]["ids"] == ids


async def test_sessions_come_page_by_page(client: ShadowClient) -> None:
    names = [f"s{number}" for number in range(7)]
    for name in names:
        await client.prompt(name, [1])
    for page in (1, 3, 7, 1000):
        assert [row.session async for row in client.sessions(page=page)] == names


# -- the same errors as the library's ----------------------------------------------------------


async def test_refusals_raise_what_they_would_raise_in_the_server(client: ShadowClient) -> None:
    with pytest.raises(NotFoundError, match="no session 'x'"):
        await client.session("x")
    with pytest.raises(InvalidInputError) as invalid:
        await client.prompt("s", [1, -1])
    assert (invalid.value.details["index"], invalid.value.details["found"]) == (1, "-1")
    await client.prompt("s", [1], turn="t1")
    with pytest.raises(ConflictError) as conflict:
        await client.output("s", "t1", offset=4, ids=[1])
    assert conflict.value.details == {"field": "offset", "found": 4, "expected": 0}
    with pytest.raises(TooLargeError):
        await client.prompt("s", [1] * BODY_BYTES)
    with pytest.raises(InvalidInputError, match="no kind"):
        _ = [row async for row in client.journal(kind="nothing")]


async def test_a_question_that_takes_too_long(asker: ShadowClient, engine: FakeEngine) -> None:
    await asker.prompt("s", [7] * GRID, turn="t1")
    with pytest.raises(AskTimeoutError):
        await asker.ask("s", "Well?", ["yes", "no"], timeout_s=0.05)
    with pytest.raises(InvalidInputError, match="choices must be 2 to 26"):
        await asker.ask("s", "Well?", ["yes"])
    with pytest.raises(NotFoundError):
        await asker.digest("x")


async def test_the_token_is_sent_and_a_wrong_one_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, token="secret") as served:
        async with ShadowClient(served.address.url, "secret") as client:
            assert (await client.status()).state == "off"
        for token in (None, "wrong"):
            async with ShadowClient(served.address.url, token) as client:
                with pytest.raises(ForbiddenError, match="token is"):
                    await client.status()


def every_class(cls: type[ShadowError]) -> set[type[ShadowError]]:
    return {cls}.union(*(every_class(below) for below in cls.__subclasses__()))


def test_every_error_of_the_tree_comes_back_as_itself() -> None:
    ours = [cls for cls in every_class(ShadowError) if cls.__module__.startswith("shadow_reader")]
    assert {VocabularyError, OutOfRoomError, InternalError} < set(ours)
    for cls in ours:
        found = error_of({"error": {"code": cls.code, "message": "why", "details": {"limit": 1}}})
        assert found.code == cls.code
        assert (found.message, found.details) == ("why", {"limit": 1})
        assert isinstance(found, cls) or found.code == "not_found"


def test_an_error_of_a_newer_server_keeps_its_words() -> None:
    found = error_of({"error": {"code": "new_one", "message": "why", "details": None}})
    assert type(found) is ShadowError
    assert found.message == "why (new_one)"
    assert found.details == {"remote": "new_one"}


def test_details_that_are_called_like_an_argument_do_no_harm() -> None:
    found = error_of({"error": {"code": "conflict", "message": "a", "details": {"message": "b"}}})
    assert (found.message, found.details) == ("a", {})


# -- trouble on the line -----------------------------------------------------------------------


async def test_nobody_listens() -> None:
    async with ShadowClient("http://127.0.0.1:1") as client:
        with pytest.raises(
            UnreachableError, match=r"127\.0\.0\.1:1 does not answer: Conn"
        ) as caught:
            await client.status()
        assert caught.value.details == {"url": "http://127.0.0.1:1"}
        with pytest.raises(UnreachableError):
            _ = [reply async for reply in client.feed(stream(prompt([1])))]
        with pytest.raises(UnreachableError):
            _ = [row async for row in client.journal()]


@pytest.mark.parametrize("url", ["127.0.0.1:8765", "ftp://x", "http://", "http://[::1", ""])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(SettingsError, match="url"):
        ShadowClient(url)


@pytest.mark.parametrize(
    ("status", "text"),
    [(200, "hello"), (200, "[1]"), (200, '{"known": "many"}'), (502, "<html>"), (404, "{}")],
)
async def test_another_service_answers(status: int, text: str) -> None:
    async def other(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, text=text)

    async with answering(other) as client:
        with pytest.raises(UnreachableError):
            await client.session("s")
        with pytest.raises(UnreachableError):
            await client.status()


async def test_a_server_that_never_replies() -> None:
    given_up = asyncio.Event()

    async def silent(_request: web.BaseRequest) -> web.StreamResponse:
        await given_up.wait()
        return web.Response()

    async with answering(silent) as other, ShadowClient(other.base_url, reply_s=0.05) as client:
        with pytest.raises(UnreachableError, match=r"within 0\.05 s"):
            await client.status()
        given_up.set()


async def test_a_state_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    async def half(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"x" * 50)
        assert request.transport is not None
        request.transport.close()
        return response

    async with answering(half) as client:
        with pytest.raises(UnreachableError):
            await client.state("s", tmp_path / "state")
    assert names_in(tmp_path) == []


async def test_a_state_that_cannot_be_written(asker: ShadowClient, tmp_path: Path) -> None:
    await asker.prompt("s", [7] * GRID, turn="t1")
    await asker.end("s", "t1")
    await asker.ask("s", "Well?", ["yes", "no"])
    with pytest.raises(InvalidInputError, match="cannot write"):
        await asker.state("s", tmp_path / "missing" / "state")
