"""How a question of text is written for the model.

Law: the same question gives the same ids, and needs no settings to be written. It is the user's
next message above what the answer is based on, so a message that is still open there is closed
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shadow_reader.events.ids import EMPTY, Ids
from shadow_reader.shadow.vocabulary import Vocabulary

REQUEST: Final = "Answer with the letter of one choice and nothing else."
"""How a question of text ends."""
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Closing:
    """The ids that end a message: ``<|im_end|>`` and a line break."""

    im_end: int
    newline: tuple[int, ...]

    def after(self, known: Ids) -> Ids:
        """What ends the message that ``known`` leaves open; nothing where none is open."""
        size = len(self.newline)
        if not len(known) or tuple(known.array(-size - 1)) == (self.im_end, *self.newline):
            return EMPTY
        if known[-1] == self.im_end:
            return Ids.of(self.newline)
        return Ids.of((self.im_end, *self.newline))


def write_question(
    question: str, shown: Sequence[str], vocabulary: Vocabulary, chat: str
) -> list[int]:
    """A question of text as the model is shown it.

    Args:
        chat: the messages around it, with ``{question}`` once.
    """
    lines = [question.strip(), ""]
    lines += [f"{letter}. {text.strip()}" for letter, text in zip(LETTERS, shown, strict=False)]
    lines += ["", REQUEST]
    before, after = chat.split("{question}")
    return [
        *vocabulary.encode(before),
        *vocabulary.encode("\n".join(lines), special=False),
        *vocabulary.encode(after),
    ]
