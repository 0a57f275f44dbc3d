"""The shapes of what comes in: bodies, feed messages, query strings.

Law: strict types, unknown fields refused, defaults the same as the library's. A list of ids is
checked here only for being a list; each id is checked once, where it becomes ``Ids``.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeGuard

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)

from shadow_reader.events.branches import MAX_LINE_NAME_LENGTH
from shadow_reader.events.codec import KINDS
from shadow_reader.events.decide import MAX_NAME_LENGTH
from shadow_reader.shadow.plan import When
from shadow_reader.shadow.question_line import MAX_TIMEOUT_S
from shadow_reader.shadow.questions import Ask

MAX_ROUTER_LENGTH: Final = 200
MAX_PAGE: Final = 1000
"""Sessions in one reply."""

MAX_SEQ: Final = 2**63 - 1
"""No journal gets this far: what its columns can hold."""

_ID_SCHEMA: Final = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}

Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
LineName: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_LINE_NAME_LENGTH)]
"""A session's name, or that of one of its lines of talk."""

Count: TypeAlias = Annotated[int, Field(ge=0)]
IdList: TypeAlias = Annotated[list[Any], WithJsonSchema({"type": "array", "items": _ID_SCHEMA})]
Seq: TypeAlias = Annotated[int, Field(ge=0, le=MAX_SEQ)]
EndedBecause: TypeAlias = Literal["stop", "length", "abort", "error"]
Router: TypeAlias = Annotated[str, Field(max_length=MAX_ROUTER_LENGTH)]


class Body(BaseModel):
    """Base of everything read from JSON."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class PromptBody(Body):
    """A turn begins: ids of the whole prompt, or of what follows the first ``keep`` known ids.

    Where a session has several lines of talk, ``keep_of`` names a turn of the one that ``keep``
    counts on; without it, it is that of the last prompt.
    """

    ids: IdList
    turn: Name | None = None
    keep: Count | None = None
    keep_of: Name | None = None
    router: Router | None = None
    decided: bool | None = None
    profile: Name | None = None


class FirstTokenBody(Body):
    """Prefill is over; there is nothing more to say."""


class OutputBody(Body):
    """Output ids; ``offset`` counts from the turn's first output id."""

    offset: Count
    ids: IdList


class EndBody(Body):
    """No more output comes; ``produced`` is the sender's own count of output ids."""

    reason: EndedBecause = "stop"
    produced: Count | None = None


class PromptMessage(PromptBody):
    """A prompt in a feed."""

    kind: Literal["prompt"]
    session: Name


class FirstTokenMessage(FirstTokenBody):
    """The end of a prefill in a feed."""

    kind: Literal["first_token"]
    session: Name
    turn: Name


class OutputMessage(OutputBody):
    """Output ids in a feed."""

    kind: Literal["output"]
    session: Name
    turn: Name


class EndMessage(EndBody):
    """The end of a turn in a feed."""

    kind: Literal["end"]
    session: Name
    turn: Name


FeedMessage: TypeAlias = Annotated[
    PromptMessage | FirstTokenMessage | OutputMessage | EndMessage, Field(discriminator="kind")
]
FEED_MESSAGE: Final[TypeAdapter[FeedMessage]] = TypeAdapter(FeedMessage)

_OUTPUT_FIELDS: Final = frozenset(OutputMessage.model_fields)


_OUTPUT_QUOTES: Final = 2 * (len(_OUTPUT_FIELDS) + 3)
"""Quotation marks of an output: two a key, two each around kind, session and turn. A key given
twice makes it more, since a parsed object holds it once."""


def is_plain_output(value: object, raw: bytes) -> TypeGuard[dict[str, Any]]:
    """Whether ``OutputMessage`` would take ``value``; many times as fast, for the hot lines.

    What is refused here (escaped quotation marks among it) goes to the model, which says why.
    """
    if type(value) is not dict or value.keys() != _OUTPUT_FIELDS or value["kind"] != "output":
        return False
    session, turn, offset = value["session"], value["turn"], value["offset"]
    return (
        raw.count(b'"') == _OUTPUT_QUOTES
        and type(session) is str
        and type(turn) is str
        and type(offset) is int
        and type(value["ids"]) is list
        and 0 < len(session) <= MAX_NAME_LENGTH
        and 0 < len(turn) <= MAX_NAME_LENGTH
        and offset >= 0
    )


class QuestionBody(Body):
    """One question: text or its ids, and 2 to 26 choices; or ``probe``, a probe's name, alone.

    With ``calibrate`` the probabilities are divided by what the model says of the question alone.
    """

    choices: list[str] = Field(default_factory=list)
    question: str | None = None
    question_ids: IdList | None = None
    calibrate: bool = False
    probe: Name | None = None

    @model_validator(mode="after")
    def _one_question(self) -> Self:
        if self.probe is not None:
            for name in ("choices", "question", "question_ids", "calibrate"):
                if name in self.model_fields_set:
                    raise ValueError(f"a probe is asked by its name alone, without {name}")
            return self
        if (self.question is None) == (self.question_ids is None):
            raise ValueError("give exactly one of question, question_ids and probe")
        if "choices" not in self.model_fields_set:
            raise ValueError("give choices: 2 to 26 different answers")
        return self

    @property
    def ask(self) -> Ask:
        """What is asked."""
        if self.probe is not None:
            return Ask(probe=self.probe)
        asked = self.question if self.question_ids is None else self.question_ids
        assert asked is not None, "the model holds exactly one"
        return Ask(asked, self.choices, self.calibrate)


class AboutBody(Body):
    """What questions are about, and how long they may wait.

    On top of all known ids once they are read (fresh), of what is read (now), or of the first
    ``position`` ids once they are read (position).
    """

    session: LineName
    wait: When = "fresh"
    position: Annotated[int, Field(ge=0)] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None

    @model_validator(mode="after")
    def _at_a_position(self) -> Self:
        if (self.position is not None) != (self.wait == "position"):
            raise ValueError("give position with wait=position, and only then")
        return self


class AskBody(QuestionBody, AboutBody):
    """A typed question about a session."""


class AskManyBody(AboutBody):
    """Typed questions about a session, all of which are asked or none; ``open_questions`` at
    most."""

    questions: Annotated[list[QuestionBody], Field(min_length=1)]


class LabelBody(Body):
    """Of the first ``position`` ids, ``name`` is ``value``; ``source`` says who said so."""

    name: Name
    position: Count
    value: Name
    source: Annotated[str, Field(max_length=MAX_NAME_LENGTH)] = ""


class LabelsBody(Body):
    """Labels of one session, all of which are taken or none."""

    session: LineName
    labels: list[LabelBody]


class SummaryBody(Body):
    """A summary of the last thought of a session's last turn; ``prompt`` is what is asked for."""

    session: LineName
    prompt: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None


class RoundBody(Body):
    """An engine has paused in this turn."""

    session: Name
    turn: Name


class HoldBody(Body):
    """Keep the shadow quiet for so many seconds; with ``hold``, that one for so long from now."""

    owner: Name | None = None
    seconds: Annotated[float, Field(gt=0)]
    hold: Name | None = None

    @model_validator(mode="after")
    def _new_or_known(self) -> HoldBody:
        if (self.owner is None) == (self.hold is None):
            raise ValueError("give owner for a new hold, or hold for one that is on")
        return self


class EndHoldBody(Body):
    """End a hold before its time."""

    hold: Name


class LoadBody(Body):
    """Load the model in the next idle window; ``timeout_s`` is how long that is waited for."""

    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] = 600.0


class ReleaseBody(Body):
    """Let the model go; there is nothing more to say."""


class Query(BaseModel):
    """Base of everything read from a query string; a tuple's name may be repeated."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoQuery(Query):
    """A route that takes no parameters."""


class SessionQuery(Query):
    """When to say how a session stands: now, or with ``wait=fresh`` once it is fresh."""

    wait: Literal["fresh"] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None

    @model_validator(mode="after")
    def _time_to_wait(self) -> SessionQuery:
        if self.timeout_s is not None and self.wait is None:
            raise ValueError("timeout_s is how long to wait: say wait=fresh too")
        return self


class SessionsQuery(Query):
    """Which sessions: by name behind ``after``."""

    after: str = ""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = MAX_PAGE


def _known_kinds(kinds: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f"{unknown[0][:80]!r} is no kind; known are {', '.join(KINDS)}")
    return kinds


Seconds: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Kinds: TypeAlias = Annotated[tuple[str, ...], AfterValidator(_known_kinds)]


class EntryFilter(Query):
    """Which entries: all that is given must match.

    Attributes:
        kind: one of these kinds; empty takes all.
        after: only entries with a greater ``seq``.
        since, until: unix seconds; the first is included, the second is not.
        ids: whether token ids are given, or only how many there are.
    """

    session: LineName | None = None
    turn: Name | None = None
    kind: Kinds = ()
    since: Seconds | None = None
    until: Seconds | None = None
    ids: bool = False


class JournalQuery(EntryFilter):
    """A query of the journal."""

    after: Seq = 0
    limit: Annotated[int, Field(ge=1, le=MAX_SEQ)] | None = None
    order: Literal["asc", "desc"] = "asc"


class RowsQuery(EntryFilter):
    """A query of the journal by conditions on its rows.

    Attributes:
        where: conditions, ``FIELD OP VALUE`` each, a parameter each; all must hold.
        by: group the rows by a field; of: and sum up another one's numbers.
    """

    WHOLE: ClassVar = frozenset({"where"})

    where: Annotated[tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=32)] = ()
    by: Annotated[str, Field(max_length=100)] | None = None
    of: Annotated[str, Field(max_length=100)] | None = None
    after: Seq = 0
    limit: Annotated[int, Field(ge=1, le=MAX_SEQ)] | None = None
    order: Literal["asc", "desc"] = "asc"


class StreamQuery(EntryFilter):
    """A stream of the journal; without ``after`` or Last-Event-ID it begins now."""

    after: Seq | None = None
