"""How a journaled question is asked again: as it was, or in other words, of fewer classes.

Law: what a question said is read out of its own ids, and believed only when writing it again gives
the very same ids; so the journal alone is enough, and no setting that has changed since is used.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from shadow_reader.errors import InvalidInputError
from shadow_reader.events.ids import Ids
from shadow_reader.events.types import Question
from shadow_reader.profiles import ClassName, ShadowProfile
from shadow_reader.shadow.phrasing import LETTERS, REQUEST, write_question
from shadow_reader.shadow.questions import shown_classes
from shadow_reader.shadow.vocabulary import Vocabulary

MESSAGE: Final = "<|im_start|>"
SAME: Final = "same"
LABELS: Final = "labels"
"""A wording of the classes' names alone."""


class Wording(BaseModel):
    """Another wording: what is not given stays as the question had it.

    Attributes:
        question: what is asked. chat: the messages around it, with ``{question}`` once.
        classes: name -> what it means; of classes that are not named nothing is said.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str | None = Field(default=None, min_length=1, max_length=4000)
    chat: str | None = Field(default=None, max_length=4000)
    classes: dict[ClassName, str] | None = Field(default=None, max_length=26)

    @field_validator("chat")
    @classmethod
    def _one_question(cls, value: str | None) -> str | None:
        if value is not None and value.count("{question}") != 1:
            raise ValueError("must hold {question}, once")
        return value


@dataclass(frozen=True, slots=True)
class Said:
    """What a journaled question said: the text, what stood beside each letter, and the messages
    around it."""

    question: str
    shown: tuple[str, ...]
    chat: str


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of asking.

    Attributes:
        wording: None: as it was asked, id for id.
        classes: the only ones that may be chosen; empty: all that the question had.
        calibrate: divide by what the model says of the question alone; None: as it was done.
    """

    name: str
    wording: Wording | None = None
    classes: tuple[str, ...] = ()
    calibrate: bool | None = None


def read_wording(path: Path) -> Wording:
    """A wording from a TOML file: ``question``, ``chat``, and a table ``classes``.

    Raises:
        InvalidInputError: it cannot be read, or names the field that is wrong.
    """
    try:
        return Wording.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInputError(
            f"wording {path} cannot be read: {error}", field="wording", found=str(path)
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "wording"
        raise InvalidInputError(
            f"wording {path}: {where}: {first['msg']}", field=where, found=str(path)
        ) from error


def profile_wording(profile: ShadowProfile) -> Wording:
    """How a profile of the settings words it."""
    return Wording(
        question=profile.router_question,
        chat=profile.router_chat,
        classes=dict(profile.router_classes),
    )


def what_was_said(asked: Question, vocabulary: Vocabulary) -> Said | None:
    """What the question's ids say; None where they were not written as questions of text are."""
    text = vocabulary.decode(list(asked.ids))
    places, start = list[int](), 0
    for letter, choice in zip(LETTERS, asked.choices, strict=False):
        start = text.find(f"\n{letter}. {choice.strip()}", start)
        if start < 0:
            return None
        places.append(start)
        start += 1
    end = text.find(f"\n\n{REQUEST}", start)
    head = text[: places[0] - 1] if places and places[0] else ""
    if end < 0 or text[places[0] - 1 : places[0]] != "\n":
        return None
    shown = tuple(
        text[place + 4 : stop] for place, stop in zip(places, [*places[1:], end], strict=True)
    )
    after = text[end + 2 + len(REQUEST) :]
    cut = _message_start(head)
    chat = head[:cut] + "{question}" + after
    said = Said(head[cut:], shown, chat)
    if chat.count("{question}") != 1 or not said.question:
        return None
    again = write_question(said.question, said.shown, vocabulary, chat)
    return said if again == list(asked.ids) else None


def write_variant(
    variant: Variant, asked: Question, vocabulary: Vocabulary
) -> tuple[Ids, tuple[str, ...]]:
    """The question's ids and its choices.

    Raises:
        InvalidInputError: fewer than two classes are left, or the question's own ids cannot be
            put in other words.
    """
    choices = asked.choices
    if variant.classes:
        choices = tuple(choice for choice in choices if choice in variant.classes)
        if len(choices) < 2:
            raise InvalidInputError(
                f"classes {', '.join(variant.classes)}: {len(choices)} of them are among the "
                f"question's {', '.join(asked.choices)}; two are needed",
                field="classes",
                found=len(choices),
                limit=2,
            )
    if variant.wording is None and choices == asked.choices:
        return asked.ids, choices
    said = what_was_said(asked, vocabulary)
    if said is None:
        raise InvalidInputError(
            f"question {asked.question!r} was not written by this vocabulary as a question of "
            "text: it can be asked again, and not in other words",
            field="question",
            found=asked.question,
        )
    wording = variant.wording or Wording()
    if wording.classes is None:
        beside = dict(zip(asked.choices, said.shown, strict=True))
        shown = [beside[choice] for choice in choices]
    else:
        shown = shown_classes({choice: wording.classes.get(choice, "") for choice in choices})
    ids = write_question(
        wording.question or said.question, shown, vocabulary, wording.chat or said.chat
    )
    return Ids.of(ids), choices


def _message_start(head: str) -> int:
    """Where the question begins: with the text of the last message, or at once."""
    message = head.rfind(MESSAGE)
    start = head.find("\n", message) + 1 if message >= 0 else 0
    return start + len(head[start:]) - len(head[start:].lstrip())
