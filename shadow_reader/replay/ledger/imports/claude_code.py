"""Claude Code's session files, as requests. Which lines there are: ``records/claude_code.py``.

Taken from recorded transcripts (2.0 and 2.1):

- Blocks of one answer share ``message.id``; the last block's ``usage`` is the one to read. A file
  of a resumed session repeats older lines, so an id counts once over all files.
- ``usage.output_tokens`` is a placeholder unless a ``stop_reason`` is set; then the output is
  assumed from its characters, ``CHARS_PER_ID`` of them an id (measured on 525 requests that have
  both), and never less than the placeholder.
- A request starts at the last input line above it (a message, a tool's result), so ``start_s`` is
  assumed. Its first block is written when that block is whole: later than the first id, so
  ``first_s`` is assumed; with one block it is unknown.
- A sidechain is a session of its own under the one that started it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shadow_reader.replay.ledger.imports.requests import FAILED, NO_END, Intake, Request
from shadow_reader.replay.ledger.imports.values import count, moment
from shadow_reader.replay.records.claude_code import is_transcript
from shadow_reader.replay.records.fields import as_list, as_object, as_text

SOURCE: Final = "claude-code"
CHARS_PER_ID: Final = 3.0
"""Characters of an answer (texts, thoughts, calls as JSON) an id."""

_SYNTHETIC: Final = "<synthetic>"


@dataclass(slots=True)
class _Answer:
    """The blocks of one ``message.id``; times are unix seconds."""

    session: str
    parent: str | None
    started: float | None
    restarts: bool
    times: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    ended: bool = False
    chars: int = 0


def take_transcript(intake: Intake, lines: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """Take the requests of a session file's lines.

    Raises:
        RecordError: a field has another shape.
    """
    roots: dict[str, str] = {}
    inputs: dict[str, float | None] = {}
    compacted: set[str] = set()
    answers: dict[str, _Answer] = {}
    for number, line in lines:
        if not is_transcript(line):
            continue
        where = f"line {number}"
        session, parent = _session(line, roots, where)
        if line.get("isCompactSummary") or line.get("subtype") == "compact_boundary":
            compacted.add(session)
        if line.get("type") == "user":
            inputs[session] = moment(line.get("timestamp"), f"{where}: timestamp")
        elif line.get("type") == "assistant":
            message = as_object(line.get("message"), f"{where}: message")
            if line.get("isApiErrorMessage"):
                intake.leave_out(FAILED)
            elif message.get("model") != _SYNTHETIC:
                name = as_text(message.get("id"), f"{where}: message.id") or str(line["uuid"])
                if name not in answers:
                    answers[name] = _Answer(
                        session, parent, inputs.get(session), session in compacted
                    )
                    compacted.discard(session)
                _block(answers[name], line, message, where)
    for name, answer in answers.items():
        if intake.first_time(("claude-code", name)):
            _take(intake, answer)


def _session(line: dict[str, Any], roots: dict[str, str], where: str) -> tuple[str, str | None]:
    """A line's session and its parent. ``roots``: sidechain lines by the first one above them."""
    own = as_text(line["sessionId"], f"{where}: sessionId") or "session"
    uuid = as_text(line["uuid"], f"{where}: uuid")
    if not line.get("isSidechain"):
        return own, None
    above = as_text(line["parentUuid"], f"{where}: parentUuid")
    roots[uuid] = roots.get(above, uuid)
    agent = as_text(line.get("agentId"), f"{where}: agentId") or roots[uuid]
    return f"{own}/{agent}", own


def _block(answer: _Answer, line: dict[str, Any], message: dict[str, Any], where: str) -> None:
    at = moment(line.get("timestamp"), f"{where}: timestamp")
    if at is not None:
        answer.times.append(at)
    answer.usage = as_object(message.get("usage") or answer.usage, f"{where}: usage")
    answer.ended = answer.ended or message.get("stop_reason") is not None
    content = message.get("content")
    if isinstance(content, str):
        answer.chars += len(content)
        return
    for block in as_list(content, f"{where}: content"):
        held = as_object(block, f"{where}: content")
        said = as_text(held.get("text"), where) + as_text(held.get("thinking"), where)
        answer.chars += len(said)
        if held.get("type") == "tool_use":
            answer.chars += len(json.dumps(held.get("input"), ensure_ascii=False))


def _take(intake: Intake, answer: _Answer) -> None:
    if not answer.times:
        intake.leave_out(NO_END)
        return
    usage, assumed = answer.usage, {"start_s", "first_s"}
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    output = count(usage.get("output_tokens"), "usage.output_tokens")
    if not answer.ended:
        output = max(output, round(answer.chars / CHARS_PER_ID))
        assumed.add("output_ids")
    first, end = min(answer.times), max(answer.times)
    start = answer.started if answer.started is not None else first
    intake.add(
        Request(
            session=answer.session,
            parent=answer.parent,
            start_s=min(start, first),
            first_s=first if first < end else None,
            end_s=end,
            prompt_ids=sum(count(usage.get(name), f"usage.{name}") for name in names),
            output_ids=output,
            restarts=answer.restarts,
            assumed=frozenset(assumed),
        )
    )
