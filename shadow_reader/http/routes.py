"""The handlers of every route but the feed and the journal.

Law: a handler reads its input, makes one call of the runtime and writes what it gave. Decisions
belong to the runtime, so the library and the API cannot differ.
"""

from __future__ import annotations

from aiohttp import web

from shadow_reader.events import types as t
from shadow_reader.http.api import BINARY, JSON, Api, body_of, json_response, name_in_path, query_of
from shadow_reader.http.bodies import (
    AskBody,
    AskManyBody,
    EndBody,
    EndHoldBody,
    FirstTokenBody,
    HoldBody,
    LabelsBody,
    LoadBody,
    OutputBody,
    PromptBody,
    ReleaseBody,
    RoundBody,
    SessionQuery,
    SessionsQuery,
)
from shadow_reader.http.replies import Health, Readiness, Replies, SessionPage


async def post_turn(api: Api, request: web.Request) -> web.StreamResponse:
    """A turn begins."""
    async with body_of(api, request, PromptBody) as body:
        session = name_in_path(request, "session")
        accepted = await api.runtime.prompt(
            session,
            body.ids,
            turn=body.turn,
            keep=body.keep,
            keep_of=body.keep_of,
            router=body.router,
            decided=body.decided,
            profile=body.profile,
        )
    return json_response(accepted)


async def post_first_token(api: Api, request: web.Request) -> web.StreamResponse:
    """Prefill is over."""
    async with body_of(api, request, FirstTokenBody):
        session, turn = name_in_path(request, "session"), name_in_path(request, "turn")
        return json_response(await api.runtime.first_token(session, turn))


async def post_output(api: Api, request: web.Request) -> web.StreamResponse:
    """Output ids."""
    async with body_of(api, request, OutputBody) as body:
        session, turn = name_in_path(request, "session"), name_in_path(request, "turn")
        accepted = await api.runtime.output(session, turn, offset=body.offset, ids=body.ids)
    return json_response(accepted)


async def post_end(api: Api, request: web.Request) -> web.StreamResponse:
    """No more output comes."""
    async with body_of(api, request, EndBody) as body:
        session, turn = name_in_path(request, "session"), name_in_path(request, "turn")
        accepted = await api.runtime.end(session, turn, reason=body.reason, produced=body.produced)
    return json_response(accepted)


async def get_sessions(api: Api, request: web.Request) -> web.StreamResponse:
    """The journal's sessions, a page of them."""
    query = query_of(request, SessionsQuery)
    rows = await api.runtime.journal.sessions(after=query.after, limit=query.limit)
    full = len(rows) == query.limit
    return json_response(SessionPage(rows, rows[-1].session if full else None))


async def get_session(api: Api, request: web.Request) -> web.StreamResponse:
    """How one session stands, now or once it is fresh."""
    query = query_of(request, SessionQuery)
    session = name_in_path(request, "session")
    if query.wait is None:
        return json_response(await api.runtime.session_status(session))
    async with api.closing.interruptible():
        return json_response(await api.runtime.wait_fresh(session, timeout_s=query.timeout_s))


async def delete_session(api: Api, request: web.Request) -> web.StreamResponse:
    """Erase a session; goes on to its end even if the client does not wait for it."""
    return json_response(await api.runtime.erase(name_in_path(request, "session")))


async def get_digest(api: Api, request: web.Request) -> web.StreamResponse:
    """The state digest."""
    async with api.closing.interruptible():
        return json_response(await api.runtime.digest(name_in_path(request, "session")))


async def get_state(api: Api, request: web.Request) -> web.StreamResponse:
    """The whole state as one safetensors file; few at a time, since each is held in memory."""
    with api.exports.one():
        async with api.closing.interruptible():
            state = await api.runtime.export(name_in_path(request, "session"))
        response = web.Response(body=state, content_type=BINARY)
        await response.prepare(request)
        await response.write_eof()
        return response


async def post_ask(api: Api, request: web.Request) -> web.StreamResponse:
    """A typed question; a client that goes away takes it back."""
    async with body_of(api, request, AskBody) as body, api.closing.interruptible():
        (reply,) = await api.runtime.ask_many(
            body.session,
            [body.ask],
            wait=body.wait,
            position=body.position,
            timeout_s=body.timeout_s,
        )
    return json_response(reply)


async def post_ask_many(api: Api, request: web.Request) -> web.StreamResponse:
    """Typed questions, all or none; a client that goes away takes them back."""
    async with body_of(api, request, AskManyBody) as body, api.closing.interruptible():
        questions = [question.ask for question in body.questions]
        replies = await api.runtime.ask_many(
            body.session,
            questions,
            wait=body.wait,
            position=body.position,
            timeout_s=body.timeout_s,
        )
    return json_response(Replies(replies))


async def post_labels(api: Api, request: web.Request) -> web.StreamResponse:
    """What is right of a session."""
    async with body_of(api, request, LabelsBody) as body:
        labels = [t.Label(one.name, one.position, one.value, one.source) for one in body.labels]
        return json_response(await api.runtime.label(body.session, labels))


async def post_round(api: Api, request: web.Request) -> web.StreamResponse:
    """An engine has paused: the reader uses its ration, then the engine goes on."""
    async with body_of(api, request, RoundBody) as body:
        return json_response(await api.runtime.round(body.session, body.turn))


async def post_hold(api: Api, request: web.Request) -> web.StreamResponse:
    """Begin a hold, or let one last longer."""
    async with body_of(api, request, HoldBody) as body:
        if body.hold is not None:
            return json_response(api.runtime.extend_hold(body.hold, body.seconds))
        assert body.owner is not None, "the model holds one of the two"
        return json_response(api.runtime.hold(body.owner, body.seconds))


async def post_hold_end(api: Api, request: web.Request) -> web.StreamResponse:
    """End a hold."""
    async with body_of(api, request, EndHoldBody) as body:
        return json_response(api.runtime.end_hold(body.hold))


async def post_load(api: Api, request: web.Request) -> web.StreamResponse:
    """Load the model; goes on if the client does not wait for it."""
    async with body_of(api, request, LoadBody) as body, api.closing.interruptible():
        return json_response(await api.runtime.load(timeout_s=body.timeout_s))


async def post_release(api: Api, request: web.Request) -> web.StreamResponse:
    """Let the model go; goes on if the client does not wait for it."""
    async with body_of(api, request, ReleaseBody), api.closing.interruptible():
        return json_response(await api.runtime.release())


async def get_status(api: Api, _request: web.Request) -> web.StreamResponse:
    """How everything stands."""
    return json_response(await api.runtime.status())


async def get_health(_api: Api, _request: web.Request) -> web.StreamResponse:
    """The process lives."""
    return json_response(Health())


async def get_ready(api: Api, _request: web.Request) -> web.StreamResponse:
    """200 where sessions are taken in and read, or only taken in because no model is wanted."""
    state = "closing" if api.closing.closed else api.runtime.state
    reason = api.runtime.reason if not api.closing.closed else "the service is closing"
    ready = state in ("ready", "off")
    return json_response(Readiness(state, reason), status=200 if ready else 503)


async def get_openapi(api: Api, _request: web.Request) -> web.StreamResponse:
    """The OpenAPI document."""
    return web.Response(body=api.document, content_type=JSON)
