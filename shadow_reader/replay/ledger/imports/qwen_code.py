"""qwen-code's chat files: JSON lines with ``uuid``, ``sessionId``, ``timestamp``, ``type``.

Taken from public test data and descriptions of the format; none of it was recorded by us:

- ``system`` lines of subtype ``ui_telemetry`` hold ``systemPayload.uiEvent``; one named
  ``...api_response`` is a request: its ``event.timestamp`` is the end, ``duration_ms`` its length,
  ``ttft_ms`` (newer) the wait for the first id. ``subagent_name`` makes it a session of its own.
- A session without any has ``usageMetadata`` in its assistant lines: counts, and the end alone;
  the start is then assumed to be the last line above that is not the model's.
- Cached ids are among the prompt's. Thoughts may be counted within the output or beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shadow_reader.replay.ledger.imports.requests import FAILED, NO_END, Intake, Request
from shadow_reader.replay.ledger.imports.values import count, moment, number, produced
from shadow_reader.replay.records.fields import as_object, as_text

SOURCE: Final = "qwen-code"


def is_chat(line: dict[str, Any]) -> bool:
    """Whether a parsed line is one that only qwen-code writes."""
    message = line.get("message")
    spoken = isinstance(message, dict) and "parts" in message
    return "sessionId" in line and (
        line.get("subtype") == "ui_telemetry" or "usageMetadata" in line or spoken
    )


def take_chat(intake: Intake, lines: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """Take the requests of a chat file's lines.

    Raises:
        RecordError: a field has another shape.
    """
    events = [(row, line, _event(line, row)) for row, line in lines]
    told = {
        str(line.get("sessionId")) for _, line, event in events if _named(event, "api_response")
    }
    asked: float | None = None
    restarts = False
    for row, line, event in events:
        where = f"line {row}"
        if line.get("subtype") == "chat_compression":
            restarts = True
        if _named(event, "api_error"):
            intake.leave_out(FAILED)
        elif _named(event, "api_response"):
            restarts = _response(intake, line, event, where, restarts)
        elif line.get("type") == "assistant" and line.get("usageMetadata") is not None:
            if str(line.get("sessionId")) not in told:
                restarts = _answer(intake, line, asked, where, restarts)
        elif line.get("type") in ("user", "tool_result"):
            asked = moment(line.get("timestamp"), f"{where}: timestamp")


def _event(line: dict[str, Any], row: int) -> dict[str, Any]:
    if line.get("subtype") != "ui_telemetry":
        return {}
    payload = as_object(line.get("systemPayload") or {}, f"line {row}: systemPayload")
    return as_object(payload.get("uiEvent") or {}, f"line {row}: uiEvent")


def _named(event: dict[str, Any], name: str) -> bool:
    return str(event.get("event.name", "")).endswith(name)


def _response(
    intake: Intake, line: dict[str, Any], event: dict[str, Any], where: str, restarts: bool
) -> bool:
    """Take one event; True while a compaction still waits for its first request."""
    end = moment(event.get("event.timestamp") or line.get("timestamp"), f"{where}: timestamp")
    if end is None or event.get("duration_ms") is None:
        intake.leave_out(NO_END)
        return restarts
    start = end - number(event["duration_ms"], f"{where}: duration_ms") / 1000
    wait = event.get("ttft_ms")
    agent = as_text(event.get("subagent_name"), f"{where}: subagent_name")
    names = ("input_token_count", "output_token_count", "thoughts_token_count", "total_token_count")
    counts = [event.get(name) for name in names]
    if not intake.first_time(
        (
            "qwen-code",
            as_text(line.get("uuid"), f"{where}: uuid"),
            start,
            end,
            *map(str, counts[:2]),
        )
    ):
        return restarts
    _add(
        intake,
        line,
        counts,
        where,
        agent=agent,
        start_s=start,
        first_s=None if wait is None else start + number(wait, f"{where}: ttft_ms") / 1000,
        end_s=end,
        restarts=restarts and not agent,
        assumed=frozenset(),
    )
    return restarts and bool(agent)


def _answer(
    intake: Intake, line: dict[str, Any], asked: float | None, where: str, restarts: bool
) -> bool:
    end = moment(line.get("timestamp"), f"{where}: timestamp")
    if end is None or asked is None:
        intake.leave_out("requests without a start or an end")
        return restarts
    usage = as_object(line["usageMetadata"], f"{where}: usageMetadata")
    names = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "totalTokenCount")
    if not intake.first_time(("qwen-code", as_text(line.get("uuid"), f"{where}: uuid"))):
        return restarts
    _add(
        intake,
        line,
        [usage.get(name) for name in names],
        where,
        agent="",
        start_s=min(asked, end),
        first_s=None,
        end_s=end,
        restarts=restarts,
        assumed=frozenset({"start_s"}),
    )
    return False


def _add(
    intake: Intake,
    line: dict[str, Any],
    counts: Sequence[Any],
    where: str,
    *,
    agent: str,
    start_s: float,
    first_s: float | None,
    end_s: float,
    restarts: bool,
    assumed: frozenset[str],
) -> None:
    session = as_text(line.get("sessionId"), f"{where}: sessionId") or "session"
    prompt, output, reasoning, total = (
        None if value is None else count(value, f"{where}: counts") for value in counts
    )
    made, guessed = produced(
        prompt=prompt or 0, output=output or 0, reasoning=reasoning or 0, total=total or None
    )
    intake.add(
        Request(
            session=f"{session}/{agent}" if agent else session,
            parent=session if agent else None,
            start_s=start_s,
            first_s=first_s,
            end_s=end_s,
            prompt_ids=prompt or 0,
            output_ids=made,
            restarts=restarts,
            assumed=assumed | ({"output_ids"} if guessed else frozenset()),
        )
    )
