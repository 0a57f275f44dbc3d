"""Claude Code's session file: JSON lines, one line per content block.

Which lines a prompt holds:

- The main line is the chain of ``parentUuid`` from the file's last conversation line back to the
  first. A compaction starts a new chain; the old one is followed through ``logicalParentUuid`` or,
  where that is missing, the line above. A parent that is not in the file counts as the line above.
- Blocks of one answer share ``message.id`` and hang off each other, and parallel tool results hang
  off their own block, so a chain misses some of them: every block of an answer on the main line
  belongs to it, and so does the result of every call in it.
- Sidechains (of subtasks) are other conversations. So are lines off the main line: they were
  written before the person went back and asked again.
- ``isMeta`` lines are hidden on the screen only; the model is shown them. Answers of the model
  ``<synthetic>`` are Claude Code's own words: shown, but no request. API errors are neither.

The file has neither the system prompt nor the tools' schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shadow_reader.replay.records.fields import (
    as_arguments,
    as_list,
    as_object,
    as_text,
    paragraphs,
)
from shadow_reader.replay.records.recording import Draft, Message, Recording, ToolCall

SOURCE = "claude-code"

_SYNTHETIC = "<synthetic>"
_INTERRUPTED = "[Request interrupted by user]"


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the conversation: ``blocks`` are its content blocks, a bare string made one."""

    number: int
    kind: str
    uuid: str
    parent: str
    sidechain: bool
    compaction: bool
    answer: str
    synthetic: bool
    blocks: tuple[dict[str, Any], ...]

    @property
    def where(self) -> str:
        return f"line {self.number}"

    @property
    def speaks(self) -> bool:
        return self.kind in ("user", "assistant") and not self.sidechain


def is_transcript(line: dict[str, Any]) -> bool:
    """Whether a parsed line is one of Claude Code's conversation lines."""
    return "parentUuid" in line and "uuid" in line and "sessionId" in line


def read_transcript(lines: Sequence[tuple[int, dict[str, Any]]]) -> Recording:
    """The main line of a transcript.

    Args:
        lines: line number (from 1) and parsed object of every line.

    Raises:
        RecordError: a field has another shape, or no answer of a model is in it.
    """
    draft = Draft(SOURCE)
    chain = _parse(draft, lines)
    kept = _main_line(draft, chain)
    blocks: dict[str, list[_Line]] = {}
    for line in kept:
        if line.kind == "assistant":
            blocks.setdefault(line.answer, []).append(line)
    for line in kept:
        if line.kind == "user":
            _user(draft, line)
        elif blocks[line.answer][0] is line:
            _assistant(draft, blocks[line.answer])
    _mark_interrupted(draft)
    return draft.done()


def _parse(draft: Draft, lines: Iterable[tuple[int, dict[str, Any]]]) -> list[_Line]:
    parsed: list[_Line] = []
    seen: set[str] = set()
    for number, line in lines:
        where = f"line {number}"
        if not is_transcript(line):
            draft.skip(f"lines of type {line.get('type')}")
            continue
        uuid = as_text(line["uuid"], f"{where}: uuid")
        if uuid in seen:
            draft.skip("duplicate lines")
            continue
        seen.add(uuid)
        draft.session = draft.session or as_text(line["sessionId"], f"{where}: sessionId")
        parsed.append(_line(draft, line, number, uuid))
    return parsed


def _line(draft: Draft, line: dict[str, Any], number: int, uuid: str) -> _Line:
    where = f"line {number}"
    kind = as_text(line.get("type"), f"{where}: type")
    content: list[dict[str, Any]] = []
    answer = uuid
    synthetic = False
    if line.get("isApiErrorMessage"):
        kind = "api error"
    if kind in ("user", "assistant"):
        message = as_object(line.get("message"), f"{where}: message")
        answer = as_text(message.get("id"), f"{where}: message.id") or uuid
        synthetic = message.get("model") == _SYNTHETIC
        content = _blocks(message.get("content"), f"{where}: message.content")
    else:
        draft.skip(f"lines of type {kind}")
    compaction = bool(line.get("isCompactSummary")) or line.get("subtype") == "compact_boundary"
    logical = line.get("logicalParentUuid") if compaction else None
    return _Line(
        number=number,
        kind=kind,
        uuid=uuid,
        parent=as_text(line["parentUuid"] or logical, f"{where}: parentUuid"),
        sidechain=bool(line.get("isSidechain")),
        compaction=compaction,
        answer=answer,
        synthetic=synthetic,
        blocks=tuple(content),
    )


def _blocks(content: Any, where: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [as_object(block, f"{where}[{n}]") for n, block in enumerate(as_list(content, where))]


def _main_line(draft: Draft, lines: list[_Line]) -> list[_Line]:
    chain = _chain(lines)
    answers = {line.answer for line in lines if line.uuid in chain and line.kind == "assistant"}
    calls = {
        str(block.get("id"))
        for line in lines
        if line.kind == "assistant" and line.answer in answers and not line.sidechain
        for block in line.blocks
        if block.get("type") == "tool_use"
    }
    answered = {call for line in lines if line.uuid in chain for call in _results(line)}
    kept = []
    for line in lines:
        if not line.speaks:
            draft.skip("sidechain lines", int(line.sidechain))
            continue
        late = [call for call in _results(line) if call in calls and call not in answered]
        block = line.kind == "assistant" and line.answer in answers
        if line.uuid in chain or block or late:
            answered.update(late)
            kept.append(line)
        else:
            draft.skip("lines off the main line")
    return kept


def _chain(lines: list[_Line]) -> set[str]:
    """The uuids from the last line that speaks back to the first, as the module says."""
    main = [line for line in lines if not line.sidechain]
    place = {line.uuid: n for n, line in enumerate(main)}
    chain: set[str] = set()
    n = max((n for n, line in enumerate(main) if line.speaks), default=-1)
    while n >= 0 and main[n].uuid not in chain:
        line = main[n]
        chain.add(line.uuid)
        above = n - 1 if line.parent or line.compaction else -1
        n = place.get(line.parent, above)
    return chain


def _results(line: _Line) -> list[str]:
    if line.kind != "user":
        return []
    return [str(b.get("tool_use_id")) for b in line.blocks if b.get("type") == "tool_result"]


def _user(draft: Draft, line: _Line) -> None:
    texts: list[str] = []
    for block in line.blocks:
        kind = block.get("type")
        if kind == "tool_result":
            call = as_text(block.get("tool_use_id"), f"{line.where}: tool_use_id")
            draft.add(Message("tool", _result_text(draft, block, line.where), call=call))
        else:
            texts.append(_text(draft, block, line.where))
    text = "\n\n".join(text for text in texts if text)
    if text:
        draft.add(Message("user", text, restart=line.compaction))
    elif not line.blocks:
        draft.skip("empty messages")


def _result_text(draft: Draft, block: dict[str, Any], where: str) -> str:
    content = _blocks(block.get("content"), f"{where}: content")
    return "\n".join(_text(draft, part, where) for part in content)


def _text(draft: Draft, block: dict[str, Any], where: str) -> str:
    kind = block.get("type")
    if kind == "text":
        return as_text(block.get("text"), f"{where}: text")
    if kind in ("image", "document"):
        draft.skip("images and files")
        return f"[{kind}]"
    draft.skip(f"blocks of type {kind}")
    return ""


def _assistant(draft: Draft, lines: list[_Line]) -> None:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    seen: list[dict[str, Any]] = []
    for line in lines:
        for block in line.blocks:
            if block in seen:
                draft.skip("duplicate blocks")
                continue
            seen.append(block)
            kind = block.get("type")
            if kind == "thinking":
                thoughts.append(as_text(block.get("thinking"), f"{line.where}: thinking"))
            elif kind == "tool_use":
                calls.append(
                    ToolCall(
                        as_text(block.get("name"), f"{line.where}: name"),
                        as_arguments(block.get("input")),
                        as_text(block.get("id"), f"{line.where}: id"),
                    )
                )
            else:
                texts.append(_text(draft, block, line.where))
    draft.add(
        Message(
            "assistant",
            paragraphs(texts),
            paragraphs(thoughts),
            tuple(calls),
            history=lines[0].synthetic,
        )
    )


def _mark_interrupted(draft: Draft) -> None:
    """An answer that the person stopped while it was written has no end-of-turn id."""
    for n, (message, after) in enumerate(zip(draft.messages, draft.messages[1:], strict=False)):
        stopped = after.role == "user" and after.text == _INTERRUPTED
        if message.role == "assistant" and stopped and not message.tool_calls:
            draft.messages[n] = replace(message, finished=False)
