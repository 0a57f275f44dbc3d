"""``opencode export``: one JSON object ``{info, messages: [{info, parts}]}``.

What a prompt holds of a message follows opencode's own rules, as its sources state them:

- user: text parts, also ``synthetic`` ones (the files it read in), not ``ignored`` ones; a file
  of plain text or a folder stands in the synthetic parts already, any other file is a placeholder;
- assistant: everything, one turn per ``step-start`` (old versions keep several in one message);
- dropped from later prompts: failed messages, and cancelled ones that got no further than thinking;
- a compaction: its request sees everything, later prompts start at it.

The export has neither the system prompt nor the tools' schemas.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shadow_reader.replay.records.fields import (
    as_arguments,
    as_list,
    as_object,
    as_text,
    paragraphs,
)
from shadow_reader.replay.records.recording import NO_RESULT, Draft, Message, Recording, ToolCall

SOURCE = "opencode"

_INLINED = ("text/plain", "application/x-directory")
_COMPACT = "Sum up this session so that the work can go on from the summary alone."
_SUBTASK = "I ran the following tool myself."
_SILENT = ("step-finish", "snapshot", "patch", "agent", "retry")


def is_export(value: Any) -> bool:
    """Whether a parsed file has the outer shape of an export."""
    return isinstance(value, dict) and "info" in value and "messages" in value


def read_export(value: Any) -> Recording:
    """The session of a parsed export.

    Raises:
        RecordError: a field has another shape, or no answer of a model is in it.
    """
    draft = Draft(SOURCE)
    draft.session = as_text(as_object(value["info"], "info").get("id"), "info.id")
    for number, entry in enumerate(as_list(value["messages"], "messages")):
        where = f"messages[{number}]"
        message = as_object(entry, where)
        info = as_object(message.get("info"), f"{where}.info")
        parts = [
            as_object(part, f"{where}.parts[{n}]")
            for n, part in enumerate(as_list(message.get("parts"), f"{where}.parts"))
        ]
        role = info.get("role")
        if role == "user":
            _user(draft, parts, where)
        elif role == "assistant":
            _assistant(draft, info, parts, where)
        else:
            draft.skip("messages of unknown role")
    return draft.done()


def _user(draft: Draft, parts: list[dict[str, Any]], where: str) -> None:
    texts: list[str] = []
    for part in parts:
        kind = part.get("type")
        if kind == "text" and part.get("ignored"):
            draft.skip("ignored parts")
        elif kind == "text":
            texts.append(as_text(part.get("text"), f"{where}: text"))
        elif kind == "file" and part.get("mime") not in _INLINED:
            texts.append(_placeholder(part))
            draft.skip("images and files")
        elif kind == "compaction":
            texts.append(_COMPACT)
        elif kind == "subtask":
            texts.append(_SUBTASK)
        elif kind != "file" and kind not in _SILENT:
            draft.skip(f"parts of type {kind}")
    draft.add(Message("user", "\n\n".join(text for text in texts if text)))


def _assistant(draft: Draft, info: dict[str, Any], parts: list[dict[str, Any]], where: str) -> None:
    before = len(draft.messages)
    steps = _steps(parts)
    error = info.get("error")
    cancelled = isinstance(error, dict) and error.get("name") == "MessageAbortedError"
    spoke = any(part.get("type") in ("text", "tool") for part in parts)
    kept = error is None or (cancelled and spoke)
    finish = info.get("finish")
    ended = finish != "length" if finish else any(p.get("type") == "step-finish" for p in parts)
    finished = error is None and ended
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        message, results = _step(draft, step, f"{where} step {number}")
        if not (message.text or message.reasoning or message.tool_calls):
            draft.skip("requests without an answer")
            continue
        draft.add(replace(message, kept=kept, finished=finished or not last))
        for result in results:
            draft.add(result)
    if info.get("summary") is True and finished and len(draft.messages) > before:
        _restart(draft, before)


def _restart(draft: Draft, summary: int) -> None:
    """Later prompts begin with the request for the summary and the summary itself."""
    asked = draft.messages[summary - 1] if summary else Message("user", _COMPACT)
    again = [replace(message, history=True) for message in draft.messages[summary:]]
    draft.messages.append(Message("user", asked.text or _COMPACT, restart=True))
    draft.messages.extend(again)


def _steps(parts: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    steps: list[list[dict[str, Any]]] = [[]]
    for part in parts:
        if part.get("type") == "step-start" and steps[-1]:
            steps.append([])
        elif part.get("type") != "step-start":
            steps[-1].append(part)
    return steps


def _step(draft: Draft, parts: list[dict[str, Any]], where: str) -> tuple[Message, list[Message]]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    for number, part in enumerate(parts):
        kind = part.get("type")
        if kind == "text":
            texts.append(as_text(part.get("text"), f"{where}: text"))
        elif kind == "reasoning":
            thoughts.append(as_text(part.get("text"), f"{where}: reasoning"))
        elif kind == "tool":
            call, result = _tool(draft, part, f"{where} part {number}")
            calls.append(call)
            results.append(result)
        elif kind not in _SILENT:
            draft.skip(f"parts of type {kind}")
    message = Message(
        "assistant",
        paragraphs(texts),
        paragraphs(thoughts),
        tuple(calls),
    )
    return message, results


def _tool(draft: Draft, part: dict[str, Any], where: str) -> tuple[ToolCall, Message]:
    state = as_object(part.get("state"), f"{where}: state")
    call = ToolCall(
        as_text(part.get("tool"), f"{where}: tool"),
        as_arguments(state.get("input")),
        as_text(part.get("callID"), f"{where}: callID"),
    )
    if state.get("status") == "completed":
        text = as_text(state.get("output"), f"{where}: output")
        files = [
            as_object(file, f"{where}: attachment")
            for file in as_list(state.get("attachments"), f"{where}: attachments")
        ]
        draft.skip("images and files", len(files))
        text = "\n".join([text, *map(_placeholder, files)])
    elif state.get("status") == "error":
        text = as_text(state.get("error"), f"{where}: error")
    else:
        draft.skip("missing tool results")
        text = NO_RESULT
    return call, Message("tool", text, call=call.call)


def _placeholder(part: dict[str, Any]) -> str:
    return f"[{part.get('mime') or 'file'}: {part.get('filename') or 'unnamed'}]"
