"""Everything that can happen, as frozen values. The journal stores these and nothing else.

Law: a fact that was journaled keeps its meaning for ever. To change one, add a version and an
upcaster (``codec.py``); never edit what an old version says. Where and when it happened (journal
order, time, session, turn) is the envelope's, not the event's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from shadow_reader.events.ids import Ids

EndReason: TypeAlias = Literal["stop", "length", "abort", "error", "superseded", "timeout"]
QuestionEnd: TypeAlias = Literal["cancelled", "timeout", "failed", "restart"]
WindowName: TypeAlias = Literal["idle", "ration", "question"]
DropReason: TypeAlias = Literal["cap", "failed"]
SummaryEnd: TypeAlias = Literal[
    "stop", "length", "cancelled", "turn ended", "replaced", "timeout", "failed"
]
HoldEnd: TypeAlias = Literal["released", "expired", "closed"]
ReleaseReason: TypeAlias = Literal["asked", "failed"]


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The first thing known of a session."""


@dataclass(frozen=True, slots=True)
class SessionErased:
    """All earlier events of the session are gone from the journal; only these counts stay."""

    event_count: int
    id_count: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A turn begins. The known ids become the first ``keep`` of them, then ``ids``.

    ``router`` is the class that the server's own router gave the turn, if it has one; ``decided``
    whether it decided that on this turn, or else took over an earlier turn's (None: not said);
    ``profile`` the turn's profile of the settings, which says whether the session is read.
    """

    keep: int
    ids: Ids
    router: str | None = None
    profile: str | None = None
    decided: bool | None = None


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Prefill is over: the big model decodes from here on."""


@dataclass(frozen=True, slots=True)
class Output:
    """Ids the big model produced; ``offset`` counts from the turn's first output id."""

    offset: int
    ids: Ids


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """No more output comes. ``unsure``: the client's own count disagrees with the ids it sent."""

    reason: EndReason
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class Rewind:
    """The state went back: ids differ from ``cut`` on, reading goes on at grid line ``to``.

    ``reread`` ids (from ``to`` to ``cut``) agree but must be read again.
    """

    cut: int
    to: int
    reread: int


@dataclass(frozen=True, slots=True)
class Read:
    """The state advanced from grid line ``start`` to ``stop`` in one burst of ``ms``."""

    start: int
    stop: int
    window: WindowName
    ms: float


@dataclass(frozen=True, slots=True)
class RationUsed:
    """What the reader used of the turn, which is over: ``used_ms`` of the ``decode_ms`` since its
    first token, in so many slices; for whatever session they were used."""

    used_ms: float
    decode_ms: float
    slices: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The recurrent state at grid line ``position`` was copied aside.

    ``digest`` is the state digest there; digests compare only under the same ``engine``.
    """

    position: int
    digest: str
    engine: str


@dataclass(frozen=True, slots=True)
class Shared:
    """The state began at grid line ``position``, with pages and a state that another session had
    read of the same ids."""

    position: int


@dataclass(frozen=True, slots=True)
class Spill:
    """The state at ``position`` is in a snapshot, of which ``written`` bytes were new.

    ``kept``: whether the state stayed resident too.
    """

    position: int
    written: int
    ms: float
    kept: bool


@dataclass(frozen=True, slots=True)
class Restore:
    """The state came back from a snapshot and stands at ``position``; ``read`` bytes were read.

    ``refused`` says why the snapshot was not used, and then ``position`` is 0; None: it was.
    """

    position: int
    read: int
    ms: float
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """The resident state at ``committed`` was let go; it will be read again from the journal."""

    reason: DropReason
    committed: int


@dataclass(frozen=True, slots=True)
class Question:
    """A typed question was asked when ``position`` ids were known; ``ids`` are its own tokens.

    ``about``: it is about exactly the first so many ids; None: about as many as are read by then.
    ``probe``: the probe that is asked, in its version ``probe_version``; its classes are the
    choices, its suffix the ids. None: the model itself.
    """

    question: str
    kind: str
    position: int
    ids: Ids
    choices: tuple[str, ...]
    about: int | None = None
    probe: str | None = None
    probe_version: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to ``question``, given on top of the first ``position`` ids.

    ``probabilities`` stand in the order of the question's choices. ``behind`` ids were known but
    not seen by the answer; ``lag_ms`` is from asking to answering, ``forward_ms`` the forward.
    ``prior``: what the model says of the question alone, by which the probabilities were divided;
    None: they are as the model gave them.
    """

    question: str
    label: str
    probabilities: tuple[float, ...]
    position: int
    behind: int
    lag_ms: float
    forward_ms: float
    prior: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Label:
    """Somebody says what is right: of the first ``position`` ids, ``name`` is ``value``.

    ``source`` says who said so. Said again of the same name and position, the newest counts.
    """

    name: str
    position: int
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class RouterAnswer:
    """What the shadow says of a turn, beside what the server's own router made of it.

    ``question`` is the router's question, whose answer is journaled with this. ``label`` is the
    likeliest class, of ``probability``; ``router`` the router's class and ``decided`` as in the
    prompt; ``agree`` whether the two are the same (None: there is no router's class). ``position``
    ids were read for it: up to the end of the prompt's last message. ``behind`` ids were known and
    not read when the turn began; ``lag_ms`` is from then to the answer.
    """

    question: str
    label: str
    probability: float
    router: str | None
    decided: bool | None
    agree: bool | None
    position: int
    behind: int
    lag_ms: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The narrator wrote ``ids`` about the turn's thought, which ends at id ``about``, and why that
    was all.

    It wrote on top of the first ``position`` ids; ``behind`` more were known by then. ``lag_ms`` is
    from its beginning to the first id, ``used_ms`` the device's time.
    """

    about: int
    position: int
    ids: Ids
    reason: SummaryEnd
    behind: int
    lag_ms: float
    used_ms: float


@dataclass(frozen=True, slots=True)
class QuestionEnded:
    """The question will get no answer."""

    question: str
    reason: QuestionEnd


@dataclass(frozen=True, slots=True)
class EngineLoaded:
    """A model stands ready. ``engine`` names the combination; equal names give equal bits."""

    engine: str
    model: str
    weights: str
    grid: int
    dtype: str
    device: str
    build: str
    layout: int


@dataclass(frozen=True, slots=True)
class EngineReleased:
    """The model was let go of, and its memory given back; the service goes on journaling."""

    engine: str
    reason: ReleaseReason


@dataclass(frozen=True, slots=True)
class HoldBegun:
    """Somebody wants the box quiet, for ``seconds`` at most."""

    hold: str
    owner: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HoldEnded:
    """The hold is over."""

    hold: str
    reason: HoldEnd


@dataclass(frozen=True, slots=True)
class ProbeTrained:
    """A version of a probe is there: questions that name it are answered by it from here on.

    ``digest`` is the stored file's, ``weights`` and ``grid`` are of the engine whose vectors it
    reads, ``source`` says whose labels it learned. The figures are of sessions that it had not
    seen: right answers of ``labels`` in ``sessions``, beside the answer that is always the most
    frequent class; ``low`` to ``high`` is the 95 % interval of what it is better by, by session.
    ``forced``: to be asked although that interval reaches 0.
    """

    name: str
    version: int
    digest: str
    weights: str
    grid: int
    layer: int
    classes: tuple[str, ...]
    source: str
    labels: int
    sessions: int
    accuracy: float
    macro_f1: float
    calibration_error: float
    constant: float
    low: float
    high: float
    forced: bool


@dataclass(frozen=True, slots=True)
class ProbeRetired:
    """The probe is not to be asked any more, in this version or an earlier one."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """The service closed in order. Without one, the process was killed."""

    reason: str


SessionEvent: TypeAlias = (
    SessionOpened
    | SessionErased
    | Prompt
    | FirstToken
    | Output
    | TurnEnded
    | Rewind
    | Read
    | RationUsed
    | Checkpoint
    | Shared
    | Spill
    | Restore
    | Dropped
    | Question
    | Answer
    | Label
    | RouterAnswer
    | Summary
    | QuestionEnded
)
EngineEvent: TypeAlias = (
    EngineLoaded
    | EngineReleased
    | HoldBegun
    | HoldEnded
    | ProbeTrained
    | ProbeRetired
    | EngineStopped
)
Event: TypeAlias = SessionEvent | EngineEvent


class Draft(NamedTuple):
    """An event on its way into the journal.

    Attributes:
        at: unix seconds.
        session: the session's id; empty for engine events.
        turn: the turn's id; empty where the event belongs to no turn.
    """

    at: float
    session: str
    turn: str
    event: Event


class Entry(NamedTuple):
    """A committed event: its draft, and ``seq``, its place in the journal, counted from 1."""

    at: float
    session: str
    turn: str
    event: Event
    seq: int


Happened: TypeAlias = Draft | Entry
"""An event with its envelope, committed or not."""
