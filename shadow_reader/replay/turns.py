"""A recorded session as a serving engine would report it: prompt ids and output ids, turn by turn.

Inside a tool loop a prompt begins with the prompt before it and that turn's output, id for id. At
a new user message it differs from where the first reasoning was dropped, and after a restart or a
failed answer from there: these are real rewinds, not artefacts of rendering.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from shadow_reader.replay.records import Recording
from shadow_reader.replay.render import (
    OPENING,
    Part,
    Segment,
    head_segments,
    output_segments,
    part_segments,
    prompt_parts,
)
from shadow_reader.shadow.vocabulary import Vocabulary

EndReason = Literal["stop", "aborted"]


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One request of the big model.

    ``turn`` is unique in its recording. ``prompt`` is never empty; ``output`` begins inside the
    think tag that the prompt opened and ends with the end-of-turn id unless ``reason`` is
    ``aborted``. ``user_turn``: a person spoke since the turn before.
    """

    turn: str
    prompt: list[int]
    output: list[int]
    user_turn: bool
    reason: EndReason = "stop"


def recorded_turns(recording: Recording, vocabulary: Vocabulary) -> Iterator[RecordedTurn]:
    """Yield every turn in order.

    Each stretch of text is encoded once, however many prompts show it. A prompt is a new list, so
    a caller who keeps all turns of a long session keeps O(n x turns) ids.

    Raises:
        VocabularyError: the vocabulary lacks a token of the chat format.
    """
    encoder = _Encoder(recording, vocabulary)
    user_turn = False
    count = 0
    for index, message in enumerate(recording.messages):
        user_turn |= message.role == "user" and not (message.restart or message.history)
        if not message.is_turn:
            continue
        count += 1
        yield RecordedTurn(
            turn=f"turn-{count:04d}",
            prompt=encoder.prompt(index),
            output=encoder.encode(output_segments(message)),
            user_turn=user_turn,
            reason="stop" if message.finished else "aborted",
        )
        user_turn = False


class _Encoder:
    """Encodes one recording; remembers every stretch of plain text and every part."""

    def __init__(self, recording: Recording, vocabulary: Vocabulary) -> None:
        self._recording = recording
        self._vocabulary = vocabulary
        self._stretches: dict[str, list[int]] = {}
        self._parts: dict[Part, list[int]] = {}
        self._head = self.encode(head_segments(recording))
        self._opening = self.encode(OPENING)

    def prompt(self, upto: int) -> list[int]:
        ids = list(self._head)
        for part in prompt_parts(self._recording, upto):
            known = self._parts.get(part)
            if known is None:
                known = self._parts[part] = self.encode(part_segments(self._recording, part))
            ids += known
        return ids + self._opening

    def encode(self, segments: Iterable[Segment]) -> list[int]:
        ids: list[int] = []
        for segment in segments:
            if segment.special:
                ids.append(self._vocabulary.added[segment.text])
                continue
            stretch = self._stretches.get(segment.text)
            if stretch is None:
                stretch = self._vocabulary.encode(segment.text, special=False)
                self._stretches[segment.text] = stretch
            ids += stretch
        return ids
