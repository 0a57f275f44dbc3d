"""The table of routes: what is served, and what the OpenAPI document says of it.

Law: the application serves exactly these, and the document describes exactly these.
"""

from __future__ import annotations

from typing import Final

from shadow_reader.errors import (
    AskTimeoutError,
    BadRequestError,
    BusyError,
    ConflictError,
    ForkError,
    InvalidInputError,
    JournalError,
    JournalFullError,
    ModelError,
    NotFoundError,
    OutOfRoomError,
    ShutDownError,
    TooLargeError,
    VocabularyError,
)
from shadow_reader.http import routes as r
from shadow_reader.http.api import BINARY, EVENT_STREAM, NDJSON, Route
from shadow_reader.http.bodies import (
    AskBody,
    AskManyBody,
    EndBody,
    EndHoldBody,
    FeedMessage,
    FirstTokenBody,
    HoldBody,
    JournalQuery,
    LabelsBody,
    LoadBody,
    OutputBody,
    PromptBody,
    ReleaseBody,
    RoundBody,
    RowsQuery,
    SessionQuery,
    SessionsQuery,
    StreamQuery,
    SummaryBody,
)
from shadow_reader.http.errors import SlowBodyError
from shadow_reader.http.feed import post_feed
from shadow_reader.http.journal_routes import get_journal, get_journal_stream, get_rows
from shadow_reader.http.metrics import MEDIA, get_metrics
from shadow_reader.http.replies import (
    EntryRow,
    FeedReply,
    Health,
    QueryRow,
    Readiness,
    Replies,
    SessionPage,
    SummaryLine,
)
from shadow_reader.http.summary_route import post_summary
from shadow_reader.shadow.holds import Hold
from shadow_reader.shadow.jobs import StateDigest
from shadow_reader.shadow.questions import Reply
from shadow_reader.shadow.sessions import Accepted, Erased
from shadow_reader.shadow.status import RoundReply, SessionStatus, SlotStatus, Status

_TAKES_BODY: Final = (BadRequestError, InvalidInputError, TooLargeError, SlowBodyError)
_JOURNALS: Final = (ShutDownError, JournalError, JournalFullError, BusyError)
_FEEDS: Final = (*_TAKES_BODY, NotFoundError, ConflictError, *_JOURNALS)
_ASKS: Final = (
    *_FEEDS,
    OutOfRoomError,
    ForkError,
    ModelError,
    VocabularyError,
    AskTimeoutError,
)
_SESSION: Final = "/v1/sessions/{session}"
_TURN: Final = "/v1/sessions/{session}/turns/{turn}"
_CONDUCTOR: Final = "/v1/conductor/shadow"

ROUTES: Final = (
    Route(
        "POST",
        f"{_SESSION}/turns",
        r.post_turn,
        "A turn begins with a prompt",
        answer=Accepted,
        body=PromptBody,
        errors=_FEEDS,
    ),
    Route(
        "POST",
        f"{_TURN}/first_token",
        r.post_first_token,
        "The turn's prefill is over",
        answer=Accepted,
        body=FirstTokenBody,
        errors=_FEEDS,
    ),
    Route(
        "POST",
        f"{_TURN}/output",
        r.post_output,
        "Output ids of the turn",
        answer=Accepted,
        body=OutputBody,
        errors=_FEEDS,
    ),
    Route(
        "POST",
        f"{_TURN}/end",
        r.post_end,
        "The turn ends",
        answer=Accepted,
        body=EndBody,
        errors=_FEEDS,
    ),
    Route(
        "POST",
        "/v1/feed",
        post_feed,
        "Many messages, one reply a line",
        answer=FeedReply,
        media=NDJSON,
        lines=FeedMessage,
        errors=(BusyError,),
    ),
    Route(
        "POST",
        "/v1/labels",
        r.post_labels,
        "What is right of a session: labels, all of which are taken or none",
        answer=Accepted,
        body=LabelsBody,
        errors=_FEEDS,
    ),
    Route(
        "GET",
        "/v1/sessions",
        r.get_sessions,
        "The journal's sessions by name",
        answer=SessionPage,
        query=SessionsQuery,
        errors=(InvalidInputError, JournalError),
    ),
    Route(
        "GET",
        _SESSION,
        r.get_session,
        "How one session stands; with wait=fresh, once less than a chunk of it is unread",
        answer=SessionStatus,
        query=SessionQuery,
        errors=(
            InvalidInputError,
            NotFoundError,
            JournalError,
            BusyError,
            ModelError,
            ShutDownError,
            AskTimeoutError,
        ),
    ),
    Route(
        "DELETE",
        _SESSION,
        r.delete_session,
        "Erase a session's ids, events and state",
        answer=Erased,
        errors=(InvalidInputError, NotFoundError, *_JOURNALS),
    ),
    Route(
        "GET",
        f"{_SESSION}/digest",
        r.get_digest,
        "The digest of the session's state",
        answer=StateDigest,
        errors=(InvalidInputError, NotFoundError, ModelError, ShutDownError),
    ),
    Route(
        "GET",
        f"{_SESSION}/state",
        r.get_state,
        "The session's state as a safetensors file",
        media=BINARY,
        errors=(InvalidInputError, NotFoundError, TooLargeError, ModelError, ShutDownError),
    ),
    Route(
        "POST",
        f"{_CONDUCTOR}/ask",
        r.post_ask,
        "A typed question about a session",
        answer=Reply,
        body=AskBody,
        errors=_ASKS,
    ),
    Route(
        "POST",
        f"{_CONDUCTOR}/ask/many",
        r.post_ask_many,
        "Typed questions about a session, all of which are asked or none",
        answer=Replies,
        body=AskManyBody,
        errors=_ASKS,
    ),
    Route(
        "POST",
        f"{_CONDUCTOR}/summary",
        post_summary,
        "A summary of the session's last thought, as it is written",
        answer=SummaryLine,
        media=NDJSON,
        body=SummaryBody,
        errors=_ASKS,
    ),
    Route(
        "POST",
        f"{_CONDUCTOR}/round",
        r.post_round,
        "The engine has paused between two rounds of a turn: the reader uses its ration",
        answer=RoundReply,
        body=RoundBody,
        errors=(*_TAKES_BODY, NotFoundError, ConflictError, *_JOURNALS),
    ),
    Route(
        "POST",
        f"{_CONDUCTOR}/hold",
        r.post_hold,
        "Keep the shadow quiet for a while, or let a hold last longer",
        answer=Hold,
        body=HoldBody,
        errors=(*_TAKES_BODY, NotFoundError, BusyError, ShutDownError),
    ),
    Route(
        "POST",
        f"{_CONDUCTOR}/hold/end",
        r.post_hold_end,
        "End a hold before its time",
        answer=Hold,
        body=EndHoldBody,
        errors=(*_TAKES_BODY, NotFoundError, ShutDownError),
    ),
    Route(
        "POST",
        f"{_CONDUCTOR}/load",
        r.post_load,
        "Load the model in the next idle window",
        answer=SlotStatus,
        body=LoadBody,
        errors=(
            *_TAKES_BODY,
            ModelError,
            OutOfRoomError,
            ConflictError,
            AskTimeoutError,
            ShutDownError,
        ),
    ),
    Route(
        "POST",
        f"{_CONDUCTOR}/release",
        r.post_release,
        "Spill every state and let the model go",
        answer=SlotStatus,
        body=ReleaseBody,
        errors=(*_TAKES_BODY, ModelError, ConflictError, ShutDownError),
    ),
    Route(
        "GET",
        f"{_CONDUCTOR}/status",
        r.get_status,
        "How the whole service stands",
        answer=Status,
        errors=(InvalidInputError,),
    ),
    Route(
        "GET",
        "/v1/journal",
        get_journal,
        "Entries of the journal, a line each",
        answer=EntryRow,
        media=NDJSON,
        query=JournalQuery,
        errors=(InvalidInputError, JournalError, ShutDownError),
    ),
    Route(
        "GET",
        "/v1/journal/query",
        get_rows,
        "Flat rows of the journal that meet conditions, or groups of them, a line each",
        answer=QueryRow,
        media=NDJSON,
        query=RowsQuery,
        errors=(InvalidInputError, JournalError, ShutDownError),
    ),
    Route(
        "GET",
        "/v1/journal/stream",
        get_journal_stream,
        "Entries as they are committed, as server-sent events",
        answer=EntryRow,
        media=EVENT_STREAM,
        query=StreamQuery,
        errors=(InvalidInputError, JournalError, BusyError),
    ),
    Route("GET", "/healthz", r.get_health, "The process lives", answer=Health),
    Route(
        "GET", "/readyz", r.get_ready, "Whether sessions are taken in and read", answer=Readiness
    ),
    Route(
        "GET",
        "/metrics",
        get_metrics,
        "Counters and gauges in Prometheus' text format",
        answer=str,
        media=MEDIA,
    ),
    Route("GET", "/openapi.json", r.get_openapi, "This document"),
)
"""Everything that is served."""
