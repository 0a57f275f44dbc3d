"""Qwen3.5's chat format. A rendering is segments, because text may spell what only we may mean.

A segment is either a special token or plain text. What a person, a file or a tool wrote is always
plain, so a recorded ``<|im_end|>`` cannot end a turn. ``render_prompt`` and ``render_output``
join the segments for people; ids are made from the segments themselves (``turns.py``).

The structure is that of the chat template published with the model: system and tools in one
block, reasoning inside think tags and only below the last user message, calls as
``<function=...>`` with one ``<parameter=...>`` each, neighbouring tool results in one user block,
and an opened think tag for the answer to come. The instructions on how to call a tool are worded
here anew; a served model's prompt has others of about that length. Argument values that are no
strings are written as JSON. Text and reasoning are stripped of outer white space.

Plain text between two specials is one segment, with one exception: the line break below an
opened think tag stands alone. There a prompt ends and an output begins, and so the same ids come
out whether the reasoning is about to be produced, was just produced, or is empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from shadow_reader.replay.records import Message, Recording, ToolCall

_HOW_TO_CALL = (
    "Each line between the tools tags describes one function that may be called, as a JSON object."
)
_CALL_FORM = "A call has this form, one per function, after any words you want to say first:"
_CALL_RULES = (
    "Give every required parameter. A value may run over several lines and is taken as it stands. "
    "Write nothing below the last call; the results come in the next message. "
    "Where no function helps, answer in words."
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A special token's name (``special``), or plain text."""

    text: str
    special: bool = False


class Part(NamedTuple):
    """One message as a prompt shows it; equal parts of one recording give equal segments.

    ``number``: the message's place in the recording. ``reasoning``: an answer's reasoning is
    shown. ``first``, ``last``: a tool result's place in its block.
    """

    number: int
    reasoning: bool = False
    first: bool = True
    last: bool = True


def _special(name: str) -> Segment:
    return Segment(name, special=True)


_START = _special("<|im_start|>")
_END = _special("<|im_end|>")
_THINK = _special("<think>")
_THINK_END = _special("</think>")
_CALL = _special("<tool_call>")
_CALL_END = _special("</tool_call>")
_RESULT = _special("<tool_response>")
_RESULT_END = _special("</tool_response>")
_BREAK = Segment("\n")

OPENING = (_START, Segment("assistant\n"), _THINK, _BREAK)
"""What a prompt ends with: the answer begins inside the think tag."""


def render_prompt(recording: Recording, upto: int) -> str:
    """The prompt that holds the first ``upto`` messages, as text."""
    segments = [*head_segments(recording)]
    for part in prompt_parts(recording, upto):
        segments += part_segments(recording, part)
    return _join([*segments, *OPENING])


def render_output(message: Message) -> str:
    """What the model produced for an assistant message, as text; it follows ``OPENING``."""
    return _join(output_segments(message))


def head_segments(recording: Recording) -> tuple[Segment, ...]:
    """The system block with the tools; nothing if the recording has neither."""
    system = recording.system.strip()
    if not recording.tools:
        return (_START, Segment(f"system\n{system}"), _END, _BREAK) if system else ()
    lines = "\n".join(_as_json(tool) for tool in recording.tools)
    tools = f"system\n# Tools\n\n{_HOW_TO_CALL}\n\n<tools>\n{lines}\n</tools>\n\n{_CALL_FORM}\n\n"
    form = "\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n"
    rules = f"\n\n{_CALL_RULES}" + (f"\n\n{system}" if system else "")
    call = (_CALL, Segment(form), _CALL_END)
    return (_START, Segment(tools), *call, Segment(rules), _END, _BREAK)


def prompt_parts(recording: Recording, upto: int) -> list[Part]:
    """How the prompt below the head shows the first ``upto`` messages, in order."""
    messages = recording.messages
    start = max((n for n in range(upto) if messages[n].restart), default=0)
    shown = [n for n in range(start, upto) if messages[n].kept]
    asked = max((n for n in shown if messages[n].role == "user"), default=-1)
    parts = []
    for place, n in enumerate(shown):
        if messages[n].role == "tool":
            before = messages[shown[place - 1]].role if place else ""
            after = messages[shown[place + 1]].role if place + 1 < len(shown) else ""
            parts.append(Part(n, first=before != "tool", last=after != "tool"))
        else:
            parts.append(Part(n, reasoning=messages[n].role == "assistant" and n > asked))
    return parts


def part_segments(recording: Recording, part: Part) -> tuple[Segment, ...]:
    """The segments of one part."""
    message = recording.messages[part.number]
    if message.role == "tool":
        return tuple(_result_segments(message, first=part.first, last=part.last))
    if message.role == "user":
        return (_START, Segment(f"user\n{message.text.strip()}"), _END, _BREAK)
    if part.reasoning:
        return (*OPENING, *_answer_segments(message), _END, _BREAK)
    return (_START, *_said_segments(message, "assistant\n"), _END, _BREAK)


def output_segments(message: Message) -> tuple[Segment, ...]:
    """What the model produced after ``OPENING``; without an end where it was cut off."""
    if message.finished:
        return (*_answer_segments(message), _END)
    if message.text.strip() or message.tool_calls:
        return tuple(_answer_segments(message))
    return (Segment(message.reasoning.strip()),)


def _answer_segments(message: Message) -> Iterator[Segment]:
    yield Segment(f"{message.reasoning.strip()}\n")
    yield _THINK_END
    yield from _said_segments(message, "\n\n")


def _said_segments(message: Message, lead: str) -> Iterator[Segment]:
    text = message.text.strip()
    plain = lead + text + ("\n\n" if text and message.tool_calls else "")
    for n, call in enumerate(message.tool_calls):
        yield Segment("\n" if n else plain)
        yield _CALL
        yield Segment(_call_text(call))
        yield _CALL_END
    if not message.tool_calls:
        yield Segment(plain)


def _call_text(call: ToolCall) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else _as_json(value)}\n</parameter>\n"
        for key, value in call.arguments.items()
    )
    return f"\n<function={call.name}>\n{parameters}</function>\n"


def _result_segments(message: Message, *, first: bool, last: bool) -> Iterator[Segment]:
    if first:
        yield _START
    yield Segment("user\n" if first else "\n")
    yield _RESULT
    yield Segment(f"\n{message.text.strip()}\n")
    yield _RESULT_END
    if last:
        yield _END
        yield _BREAK


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)


def _join(segments: Iterable[Segment]) -> str:
    return "".join(segment.text for segment in segments)
