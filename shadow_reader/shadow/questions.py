"""Typed questions: what one is, which may be asked, and what a reply says.

A choice is a letter: the model's next-id probabilities of the letters alone, made to sum to one,
are the answer. A journaled question holds its own ids only (``phrasing.py`` writes them): the
closing follows from the ids below it, and its kind says whether one belongs there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from shadow_reader.chat import CHAT
from shadow_reader.errors import InvalidInputError, TooLargeError, VocabularyError
from shadow_reader.events import types as t
from shadow_reader.events.decide import Limits
from shadow_reader.events.ids import EMPTY, Ids, checked_ids
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.phrasing import LETTERS, Closing, write_question
from shadow_reader.shadow.plan import Waiting
from shadow_reader.shadow.served_probe import PROBE_KIND, ProbeFacts, ServedProbe
from shadow_reader.shadow.vocabulary import Vocabulary

MAX_CHOICES: Final = 26
TEXT_KIND: Final = "text"
IDS_KIND: Final = "ids"
MAX_CHOICE_CHARS: Final = 1000
MAX_CHARS_AN_ID: Final = 8
"""Text longer than this many characters an allowed id is refused before it costs an encoding."""
LONG_CHARS: Final = 4096
"""From here on encoding takes a millisecond and more: too long for the event loop."""
TINY: Final = 1e-9
"""Least prior that is divided by."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How a question of text is put to the model.

    Attributes:
        kind: of the question, in the journal.
        shown: what stands beside each choice's letter; None: the choices themselves.
        chat: the messages around it, with the special tokens' texts, and ``{question}`` once.
    """

    kind: str = TEXT_KIND
    shown: Sequence[str] | None = None
    chat: str = CHAT


PLAIN: Final = Wording()


@dataclass(frozen=True, slots=True)
class Ask:
    """A typed question, or one that a probe answers.

    Attributes:
        question: text, or the question's own ids, which are then used as they are.
        choices: 2 to 26 different answers.
        calibrate: divide the probabilities by what the model says of the question alone.
        wording: how a question of text is put to the model; of ids nothing of it is used.
        probe: a probe's name, which stands instead of question and choices.
    """

    question: str | Sequence[int] = ""
    choices: Sequence[str] = ()
    calibrate: bool = False
    wording: Wording = PLAIN
    probe: str | None = None


@dataclass(frozen=True, slots=True)
class Beside:
    """What is journaled with an answer, and in which turn."""

    turn: str
    event_of: Callable[[t.Answer], t.SessionEvent]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a question.

    Attributes:
        question: the question's id in the journal.
        label: the likeliest choice; ``letter`` stands for it (empty where a probe answered).
        probabilities: choice -> probability, in the order of the choices; they sum to one.
        position: ids the answer is based on.
        behind: ids known at the time of answering that it is not based on.
        lag_ms: from asking to answering. forward_ms: the forward alone.
        prior: choice -> probability of the question alone, by which the probabilities were divided;
            None where that was not asked for.
        probe: which probe answered; None: the model itself.
    """

    session: str
    question: str
    label: str
    letter: str
    probabilities: dict[str, float]
    position: int
    behind: int
    lag_ms: float
    forward_ms: float
    prior: dict[str, float] | None = None
    probe: ProbeFacts | None = None


@dataclass(slots=True)
class OpenQuestion:
    """A journaled question that waits for its answer.

    ``closing`` goes before a question that was text, as far as the ids that the answer is based
    on leave a message open; a question of ids (None) stands as it was given.

    Attributes:
        base: the ids that it is about, where it waits for a position.
        turns: of its session, when ``base`` was last held against what is known.
        batch: names those that were asked together.
        beside: what is journaled with the answer, if anything is.
        probe: what answers it instead of letters.
    """

    waiting: Waiting
    event: t.Question
    letters: tuple[int, ...]
    closing: Closing | None
    reply: asyncio.Future[Reply]
    calibrate: bool = False
    base: Ids = EMPTY
    turns: int = 0
    batch: str = ""
    beside: Beside | None = None
    probe: ServedProbe | None = None


def check_probe_alone(asked: Ask) -> None:
    """A probe brings its own question and classes, and has no prior.

    Raises:
        InvalidInputError: something else is given with it.
    """
    given = {
        "question": asked.question != "",
        "choices": len(asked.choices) > 0,
        "calibrate": asked.calibrate,
        "wording": asked.wording is not PLAIN,
    }
    for field, there in given.items():
        if there:
            raise InvalidInputError(
                f"probe {asked.probe!r:.80} is asked by its name alone, without {field}",
                field="probe",
                found=field,
            )


def check_choices(choices: Sequence[str]) -> tuple[str, ...]:
    """Two to 26 different choices, none of them empty.

    Raises:
        InvalidInputError: names the first choice that is wrong.
    """
    if isinstance(choices, str):
        raise InvalidInputError(
            "choices must be a list of texts, not one text", field="choices", found="str"
        )
    found = tuple(choices)
    if not 2 <= len(found) <= MAX_CHOICES:
        raise InvalidInputError(
            f"choices must be 2 to {MAX_CHOICES}, not {len(found)}",
            field="choices",
            found=len(found),
            limit=MAX_CHOICES,
        )
    seen: set[str] = set()
    for index, choice in enumerate(found):
        bare = choice.strip()
        if not bare or len(bare) > MAX_CHOICE_CHARS:
            raise InvalidInputError(
                f"choices[{index}] must have 1 to {MAX_CHOICE_CHARS} characters, not {len(bare)}",
                field="choices",
                index=index,
                found=len(bare),
                limit=MAX_CHOICE_CHARS,
            )
        if bare in seen:
            raise InvalidInputError(
                f"choices[{index}] is given twice: {bare!r:.80}",
                field="choices",
                index=index,
                found=bare[:80],
            )
        seen.add(bare)
    return found


def is_long(question: object, choices: tuple[str, ...]) -> bool:
    """Whether a question takes so long to compose that it should not be done on the event loop."""
    return isinstance(question, str) and _chars(question, choices) > LONG_CHARS


def compose_question(
    question: object,
    choices: tuple[str, ...],
    *,
    view: SessionView,
    vocabulary: Vocabulary | None,
    limits: Limits,
    about: int | None = None,
    wording: Wording = PLAIN,
) -> tuple[t.Question, tuple[int, ...]]:
    """Make the question's event and its letters' ids. Safe on any thread.

    Args:
        question: text, or the question's own ids, which are then used as they are.
        about: ids that it is about; None: as many as are read by then.

    Raises:
        InvalidInputError: an empty question or bad ids. VocabularyError: there is no tokenizer.
        TooLargeError: text that could not fit ``limits``.
    """
    if vocabulary is None:
        raise VocabularyError("this service has no vocabulary: questions need its letters")
    letters = tuple(vocabulary.letter_ids(len(choices)))
    if isinstance(question, str):
        kind = wording.kind
        if not question.strip():
            raise InvalidInputError("question must not be empty", field="question", limit=1)
        shown = choices if wording.shown is None else tuple(wording.shown)
        _check_text_length(question, shown, limits)
        ids = Ids.of(write_question(question, shown, vocabulary, wording.chat))
    else:
        kind = IDS_KIND
        ids = checked_ids(
            question, field="question_ids", vocabulary=limits.vocabulary, empty_ok=False
        )
    event = t.Question(uuid4().hex, kind, len(view.known), ids, choices, about)
    return event, letters


def probe_question(probe: ServedProbe, *, view: SessionView, about: int | None) -> t.Question:
    """The event of a question that a probe answers; ``about`` as in ``compose_question``."""
    return t.Question(
        uuid4().hex,
        *(PROBE_KIND, len(view.known), probe.suffix, probe.classes, about),
        probe=probe.facts.name,
        probe_version=probe.facts.version,
    )


def calibrated(probabilities: Sequence[float], prior: Sequence[float]) -> tuple[float, ...]:
    """Each probability divided by its prior, made to sum to one again.

    Contextual calibration (Zhao et al., 2021, arXiv 2102.09690) with a diagonal matrix: what the
    model prefers when it is shown no context is taken out.
    """
    odds = [p / max(q, TINY) for p, q in zip(probabilities, prior, strict=True)]
    whole = sum(odds)
    return tuple(p / whole for p in odds)


def make_reply(
    asked: OpenQuestion,
    probabilities: tuple[float, ...],
    *,
    position: int,
    known: int,
    lag_ms: float,
    forward_ms: float,
    prior: tuple[float, ...] | None = None,
) -> tuple[t.Answer, Reply]:
    """The answer as an event and as a reply."""
    if prior is not None:
        probabilities = calibrated(probabilities, prior)
    best = max(range(len(probabilities)), key=lambda i: probabilities[i])
    choices = asked.event.choices
    behind = max(0, known - position)
    event = t.Answer(
        asked.event.question,
        *(choices[best], probabilities, position, behind, lag_ms, forward_ms, prior),
    )
    reply = Reply(
        asked.waiting.session,
        asked.event.question,
        choices[best],
        LETTERS[best] if asked.probe is None else "",
        dict(zip(choices, probabilities, strict=True)),
        position,
        behind,
        lag_ms,
        forward_ms,
        None if prior is None else dict(zip(choices, prior, strict=True)),
        None if asked.probe is None else asked.probe.facts,
    )
    return event, reply


def _check_text_length(question: str, choices: tuple[str, ...], limits: Limits) -> None:
    chars = _chars(question, choices)
    limit = MAX_CHARS_AN_ID * limits.question_ids
    if chars > limit:
        raise TooLargeError(
            f"question and choices have {chars} characters; the limit is {limit} "
            f"({MAX_CHARS_AN_ID} an id of question_ids)",
            field="question",
            found=chars,
            limit=limit,
        )


def _chars(question: str, choices: tuple[str, ...]) -> int:
    return len(question) + sum(map(len, choices))


def closing_of(event: t.Question, vocabulary: Vocabulary) -> Closing | None:
    """What closes an open message before this question; None where nothing may."""
    if event.kind in (IDS_KIND, PROBE_KIND):
        return None
    return Closing(vocabulary.special.im_end, tuple(vocabulary.encode("\n", special=False)))


def shown_classes(classes: Mapping[str, str]) -> list[str]:
    """What stands beside each class's letter: its name, and what it means where that is said."""
    return [f"{name}: {what}" if what else name for name, what in classes.items()]
