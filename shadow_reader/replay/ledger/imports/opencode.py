"""opencode: messages with their parts, from an export, the JSON store or the SQLite store.

Taken from recorded exports (1.18) and from what its sources write into the stores:

- An assistant message is a request from ``time.created`` (ms) on. ``time.completed`` includes the
  run of its tools, so generation ends at the latest end of a text or reasoning part, or the latest
  start of a tool. The first id came about when the first text or reasoning part started; a text
  part that starts when it ends (up to 1.2.15) does not tell.
- The prompt is ``tokens.input`` + ``cache.read`` + ``cache.write``.
- Old versions keep several requests in one message, each closed by a ``step-finish``.
- A ``retry`` part means an attempt failed: the request that answered began after the last one.
- A ``summary`` message is a compaction's request; the next prompt starts over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from shadow_reader.replay.ledger.imports.requests import NO_COUNTS, NO_END, Intake, Request
from shadow_reader.replay.ledger.imports.values import count, moment, produced
from shadow_reader.replay.records.fields import as_list, as_object, as_text

SOURCE: Final = "opencode"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message's ``info`` and parts, and where they were read."""

    info: dict[str, Any]
    parts: tuple[dict[str, Any], ...]
    where: str


def take_export(intake: Intake, value: dict[str, Any]) -> None:
    """Take the requests of a parsed ``opencode export``.

    Raises:
        RecordError: a field has another shape.
    """
    info = as_object(value["info"], "info")
    messages = []
    for number, entry in enumerate(as_list(value["messages"], "messages")):
        where = f"messages[{number}]"
        message = as_object(entry, where)
        parts = as_list(message.get("parts"), f"{where}.parts")
        messages.append(
            StoredMessage(
                as_object(message.get("info"), f"{where}.info"),
                tuple(as_object(part, f"{where}.parts[{n}]") for n, part in enumerate(parts)),
                where,
            )
        )
    parent = as_text(info.get("parentID"), "info.parentID") or None
    take_session(intake, as_text(info.get("id"), "info.id") or "session", parent, messages)


def take_session(
    intake: Intake, session: str, parent: str | None, messages: Iterable[StoredMessage]
) -> None:
    """Take the requests of one session's messages, in order of time.

    Raises:
        RecordError: a field has another shape.
    """
    restarts = False
    for message in messages:
        if message.info.get("role") != "assistant":
            continue
        if not intake.first_time(
            (
                "opencode",
                session,
                as_text(message.info.get("id"), f"{message.where}: id") or message.where,
            )
        ):
            continue
        taken = 0
        for step in _steps(intake, message):
            request = _request(intake, session, parent, step, restarts)
            if request is not None:
                intake.add(request)
                taken += 1
        if taken:
            restarts = message.info.get("summary") is True


@dataclass(frozen=True, slots=True)
class _Step:
    """One request's part of a message. ``guessed``: its start is the end of the step before."""

    parts: tuple[dict[str, Any], ...]
    tokens: dict[str, Any]
    start_s: float | None
    completed_s: float | None
    where: str
    guessed: bool


def _steps(intake: Intake, message: StoredMessage) -> list[_Step]:
    info, where = message.info, message.where
    time = as_object(info.get("time", {}), f"{where}: time")
    start = moment(time.get("created"), f"{where}: time.created")
    completed = moment(time.get("completed"), f"{where}: time.completed")
    groups: list[list[dict[str, Any]]] = [[]]
    for part in message.parts:
        if part.get("type") == "step-start" and any(
            p.get("type") == "step-start" for p in groups[-1]
        ):
            groups.append([])
        groups[-1].append(part)
    if len(groups) == 1:
        tokens = as_object(info.get("tokens") or {}, f"{where}: tokens")
        return [_Step(tuple(groups[0]), tokens, start, completed, where, guessed=False)]
    intake.note("messages that hold several requests")
    steps: list[_Step] = []
    for number, group in enumerate(groups):
        closing = [part for part in group if part.get("type") == "step-finish"]
        tokens = as_object(closing[-1].get("tokens") or {}, where) if closing else {}
        last = number == len(groups) - 1
        steps.append(
            _Step(
                tuple(group), tokens, start, completed if last else None,
                f"{where} step {number}", guessed=number > 0,
            )
        )  # fmt: skip
        start = max(_tool_ends(group, where), default=_generated(group, where))
    return steps


def _request(
    intake: Intake, session: str, parent: str | None, step: _Step, restarts: bool
) -> Request | None:
    counts = _counts(step)
    prompt, output, guessed_output = counts
    if prompt == 0:
        intake.leave_out(NO_COUNTS)
        return None
    assumed = set()
    if guessed_output:
        assumed.add("output_ids")
        intake.note("reasoning and output counters that do not say how they add up")
    end = _generated(step.parts, step.where)
    if end is None:
        end = step.completed_s
        assumed.add("end_s")
    if step.start_s is None or end is None:
        intake.leave_out(NO_END)
        return None
    start = max([step.start_s, *_retries(step)])
    if step.guessed or start != step.start_s:
        assumed.add("start_s")
    if start != step.start_s:
        intake.note("retried requests")
    return Request(
        session=session,
        parent=parent,
        start_s=start,
        first_s=min(_firsts(step), default=None),
        end_s=end,
        prompt_ids=prompt,
        output_ids=output,
        restarts=restarts,
        assumed=frozenset(assumed),
    )


def _counts(step: _Step) -> tuple[int, int, bool]:
    tokens, where = step.tokens, f"{step.where}: tokens"
    cache = as_object(tokens.get("cache") or {}, f"{where}.cache")
    prompt = sum(
        count(held.get(name), f"{where}.{name}")
        for held, name in ((tokens, "input"), (cache, "read"), (cache, "write"))
    )
    total = tokens.get("total")
    output, guessed = produced(
        prompt=prompt,
        output=count(tokens.get("output"), f"{where}.output"),
        reasoning=count(tokens.get("reasoning"), f"{where}.reasoning"),
        total=None if total is None else count(total, f"{where}.total"),
    )
    return prompt, output, guessed


def _retries(step: _Step) -> list[float]:
    return _times(step.parts, ("retry",), "created", step.where)


def _firsts(step: _Step) -> list[float]:
    spoken = [part for part in step.parts if not _instant(part)]
    return _times(spoken, ("text", "reasoning"), "start", step.where)


def _instant(part: dict[str, Any]) -> bool:
    time = part.get("time")
    return (
        isinstance(time, dict)
        and part.get("type") == "text"
        and time.get("start") == time.get("end")
    )


def _generated(parts: Iterable[dict[str, Any]], where: str) -> float | None:
    """When the last id came, as the module says."""
    held = list(parts)
    ends = _times(held, ("text", "reasoning"), "end", where)
    return max([*ends, *_times(held, ("tool",), "start", where)], default=None)


def _tool_ends(parts: Iterable[dict[str, Any]], where: str) -> list[float]:
    return _times(parts, ("tool",), "end", where)


def _times(
    parts: Iterable[dict[str, Any]], kinds: tuple[str, ...], name: str, where: str
) -> list[float]:
    found = []
    for part in parts:
        if part.get("type") in kinds:
            holder = as_object(part.get("state") or {}, where) if "tool" in kinds else part
            time = as_object(holder.get("time") or {}, f"{where}: time")
            at = moment(time.get(name), f"{where}: time.{name}")
            found += [] if at is None else [at]
    return found
