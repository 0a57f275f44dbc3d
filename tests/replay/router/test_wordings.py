from __future__ import annotations

from pathlib import Path

import pytest

from shadow_reader.chat import CHAT
from shadow_reader.errors import InvalidInputError
from shadow_reader.events.ids import Ids
from shadow_reader.events.types import Question
from shadow_reader.profiles import ShadowProfile
from shadow_reader.replay.router.wordings import (
    Variant,
    Wording,
    profile_wording,
    read_wording,
    what_was_said,
    write_variant,
)
from shadow_reader.shadow.phrasing import write_question
from shadow_reader.shadow.questions import shown_classes
from tests.fakes import fake_vocabulary

VOCABULARY = fake_vocabulary()
CLASSES = {"edit": "changes\nto code", "chat": "", "debug": "B. is no choice"}


def question(text: str = "What is\nit?", chat: str = CHAT, **classes: str) -> Question:
    named = classes or CLASSES
    ids = write_question(text, shown_classes(named), VOCABULARY, chat)
    return Question("q", "router", 9, Ids.of(ids), tuple(named), 9)


@pytest.mark.parametrize("chat", [CHAT, "{question}", "x <|im_start|>user\n\n {question}\n y"])
def test_a_question_is_read_out_of_its_ids(chat: str) -> None:
    said = what_was_said(question(chat=chat), VOCABULARY)
    assert said is not None
    assert said.question == "What is\nit?"
    assert list(said.shown) == shown_classes(CLASSES)
    assert said.chat == chat


@pytest.mark.parametrize(
    "ids", [[1, 2, 3], [], list(b"A. edit\nB. chat\nC. debug"), list(b"\nA. edit\nB. chat\nC. d")]
)
def test_ids_of_another_make_are_not_taken_for_one(ids: list[int]) -> None:
    asked = Question("q", "router", 9, Ids.of(ids), tuple(CLASSES), 9)
    assert what_was_said(asked, VOCABULARY) is None
    assert write_variant(Variant("same"), asked, VOCABULARY) == (asked.ids, asked.choices)
    with pytest.raises(InvalidInputError, match="not in other words"):
        write_variant(Variant("x", Wording(question="y")), asked, VOCABULARY)


def text_of(variant: Variant) -> tuple[str, tuple[str, ...]]:
    ids, choices = write_variant(variant, question(), VOCABULARY)
    return VOCABULARY.decode(list(ids)), choices


def test_other_words_keep_what_they_do_not_say() -> None:
    text, choices = text_of(Variant("x", Wording(question="Which?")))
    assert "user\nWhich?\n\nA. edit: changes\nto code\nB. chat\nC. debug: B. is" in text
    assert choices == tuple(CLASSES)
    text, _ = text_of(Variant("x", Wording(chat="<|im_start|>{question}")))
    assert text.startswith("<|im_start|>What is\nit?\n\nA. edit")
    text, _ = text_of(Variant("x", Wording(classes={"chat": "talk"})))
    assert "A. edit\nB. chat: talk\nC. debug\n" in text


def test_fewer_classes_have_the_first_letters_in_the_question_s_order() -> None:
    text, choices = text_of(Variant("x", None, ("debug", "edit")))
    assert choices == ("edit", "debug")
    assert "A. edit: changes\nto code\nB. debug: B. is no choice\n\nAnswer" in text


def test_a_wording_s_file(tmp_path: Path) -> None:
    file = tmp_path / "short.toml"
    file.write_text('question = "Which?"\n[classes]\nchat = "talk"\n')
    assert read_wording(file) == Wording(question="Which?", classes={"chat": "talk"})
    for text, field in (
        ("qustion = 1", "qustion"),
        ('chat = "none"', "chat"),
        ("question = ''", "question"),
        ("[", "wording"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidInputError) as caught:
            read_wording(file)
        assert caught.value.details["field"] == field
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_wording(tmp_path / "none.toml")


def test_a_profile_s_wording_gives_the_very_question_that_was_asked_live() -> None:
    profile = ShadowProfile(mode="on", router="shadow", router_classes=CLASSES)
    asked = question(profile.router_question)
    ids, _ = write_variant(Variant("x", profile_wording(profile)), asked, VOCABULARY)
    assert ids == asked.ids
