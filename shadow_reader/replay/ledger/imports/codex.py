"""Codex's rollout files: JSON lines ``{timestamp, type, payload}``.

Taken from public descriptions and test data of the format; none of it was recorded by us:

- ``event_msg`` of type ``token_count`` closes a request: ``info.last_token_usage`` has its counts,
  cached ids among ``input_tokens``. Where only ``total_token_usage`` is there, the last total is
  taken off. The same totals again are a repetition. ``info`` may be null.
- The request starts at the last input line above its first output item, so ``start_s`` is assumed,
  and ends at its last output item (``response_item``: reasoning, an assistant message, a call);
  without one at the count itself, which is then assumed.
- ``task_complete.time_to_first_token_ms`` tells the first id of a task's first request only.
- ``compacted`` starts the prompts over. ``session_meta`` names the session, and its parent where a
  subagent was spawned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from shadow_reader.replay.ledger.imports.requests import DUPLICATE, Intake, Request
from shadow_reader.replay.ledger.imports.values import count, moment, number, produced
from shadow_reader.replay.records.fields import as_object, as_text

SOURCE: Final = "codex"

_KINDS: Final = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_COUNTS: Final = ("input_tokens", "output_tokens", "reasoning_output_tokens", "total_tokens")
_STARTS: Final = ("user_message", "task_started")


def is_rollout(line: dict[str, Any]) -> bool:
    """Whether a parsed line is one of a rollout file's."""
    return line.get("type") in _KINDS and isinstance(line.get("payload"), dict)


@dataclass(slots=True)
class _Rollout:
    """What is known above the line that is read; times are unix seconds."""

    session: str = "session"
    parent: str | None = None
    input_at: float | None = None
    start: float | None = None
    end: float | None = None
    restarts: bool = False
    task_at: float | None = None
    task_first: int | None = None
    totals: dict[str, int] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)


def take_rollout(intake: Intake, lines: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """Take the requests of a rollout file's lines.

    Raises:
        RecordError: a field has another shape.
    """
    state = _Rollout()
    for row, line in lines:
        where = f"line {row}"
        if not is_rollout(line):
            continue
        at = moment(line.get("timestamp"), f"{where}: timestamp")
        payload = as_object(line["payload"], f"{where}: payload")
        match line["type"]:
            case "session_meta":
                _meta(state, payload, where)
            case "compacted":
                state.restarts = True
            case "response_item":
                _item(state, payload, at)
            case "event_msg":
                _event(intake, state, payload, at, where)
    for request in state.requests:
        if intake.first_time(("codex", request.start_s, request.end_s, request.prompt_ids)):
            intake.add(request)


def _meta(state: _Rollout, payload: dict[str, Any], where: str) -> None:
    state.session = as_text(payload.get("id"), f"{where}: id") or state.session
    source = payload.get("source")
    for name in ("subagent", "thread_spawn"):
        source = source.get(name) if isinstance(source, dict) else None
    if isinstance(source, dict):
        parent = as_text(source.get("parent_thread_id"), f"{where}: parent_thread_id")
        state.parent = parent or None


def _item(state: _Rollout, payload: dict[str, Any], at: float | None) -> None:
    kind = str(payload.get("type"))
    given = kind.endswith("_output") or (kind == "message" and payload.get("role") != "assistant")
    if given:
        state.input_at = at
        return
    if state.start is None:
        state.start = state.input_at
    state.end = at


def _event(
    intake: Intake, state: _Rollout, payload: dict[str, Any], at: float | None, where: str
) -> None:
    kind = payload.get("type")
    if kind in _STARTS:
        state.input_at = at
        if kind == "task_started":
            state.task_at, state.task_first = at, len(state.requests)
    elif kind == "token_count":
        _counted(intake, state, payload, at, where)
    elif kind == "task_complete":
        _first(state, payload, where)


def _counted(
    intake: Intake, state: _Rollout, payload: dict[str, Any], at: float | None, where: str
) -> None:
    info = as_object(payload.get("info") or {}, f"{where}: info")
    totals = _usage(info.get("total_token_usage"), where)
    last = _usage(info.get("last_token_usage"), where)
    if not last and not totals:
        return  # a report of rate limits alone
    if totals and totals == state.totals:
        intake.leave_out(DUPLICATE)
        return
    if not last:
        last = {name: max(n - state.totals.get(name, 0), 0) for name, n in totals.items()}
        intake.note("counts from totals")
    state.totals = totals
    prompt = last.get("input_tokens", 0)
    output, guessed = produced(
        prompt=prompt,
        output=last.get("output_tokens", 0),
        reasoning=last.get("reasoning_output_tokens", 0),
        total=last.get("total_tokens"),
    )
    end = state.end if state.end is not None else at
    start = state.start if state.start is not None else state.input_at
    assumed = {"start_s"}
    if state.end is None:
        assumed.add("end_s")
    if guessed:
        assumed.add("output_ids")
    if end is None or start is None:
        intake.leave_out("requests without a start or an end")
    else:
        state.requests.append(
            Request(
                session=state.session,
                parent=state.parent,
                start_s=min(start, end),
                end_s=end,
                prompt_ids=prompt,
                output_ids=output,
                restarts=state.restarts,
                assumed=frozenset(assumed),
            )
        )
        state.restarts = False
    state.start = state.end = None


def _usage(value: Any, where: str) -> dict[str, int]:
    usage = as_object(value or {}, f"{where}: token usage")
    return {
        name: count(usage[name], f"{where}: {name}")
        for name in _COUNTS
        if usage.get(name) is not None
    }


def _first(state: _Rollout, payload: dict[str, Any], where: str) -> None:
    wait = payload.get("time_to_first_token_ms")
    index = state.task_first
    if wait is None or state.task_at is None or index is None or index >= len(state.requests):
        return
    first = state.task_at + number(wait, f"{where}: time_to_first_token_ms") / 1000
    state.requests[index] = replace(state.requests[index], first_s=first)
    state.task_first = None
