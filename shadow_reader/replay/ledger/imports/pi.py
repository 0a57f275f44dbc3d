"""Pi's session files, as requests. Which entries there are: ``records/pi.py``.

Taken from recorded sessions (versions 1 and 3): an assistant message's own ``timestamp`` (ms) is
its request's start, its line's ``timestamp`` (ISO) the end, for a line is written when the answer
is whole. ``usage.input`` leaves cached ids out. There is no first id. Every branch's answers were
requests; a forked session's file repeats its parent's, so the same answer counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shadow_reader.replay.ledger.imports.requests import FAILED, NO_END, Intake, Request
from shadow_reader.replay.ledger.imports.values import count, moment
from shadow_reader.replay.records.fields import as_object, as_text

SOURCE: Final = "pi"


def take_session(intake: Intake, lines: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """Take the requests of a session file's lines, the header first.

    Raises:
        RecordError: a field has another shape.
    """
    session = as_text(lines[0][1].get("id"), "line 1: id") or "session"
    restarts = False
    for number, line in lines[1:]:
        where = f"line {number}"
        if line.get("type") == "compaction":
            restarts = True
        if line.get("type") != "message":
            continue
        message = as_object(line.get("message"), f"{where}: message")
        if message.get("role") == "assistant":
            restarts = _take(intake, session, line, message, where, restarts)


def _take(
    intake: Intake,
    session: str,
    line: dict[str, Any],
    message: dict[str, Any],
    where: str,
    restarts: bool,
) -> bool:
    """Take one answer; True while a compaction still waits for its first request."""
    usage = as_object(message.get("usage") or {}, f"{where}: usage")
    start = moment(message.get("timestamp"), f"{where}: message.timestamp")
    end = moment(line.get("timestamp"), f"{where}: timestamp")
    names = ("input", "cacheRead", "cacheWrite")
    prompt = sum(count(usage.get(name), f"{where}: usage.{name}") for name in names)
    output = count(usage.get("output"), f"{where}: usage.output")
    if prompt == 0 and message.get("stopReason") in ("error", "aborted"):
        intake.leave_out(FAILED)
        return restarts
    if start is None or end is None:
        intake.leave_out(NO_END)
        return restarts
    if not intake.first_time(("pi", start, end, prompt, output)):
        return restarts
    intake.add(
        Request(
            session=session,
            start_s=start,
            end_s=end,
            prompt_ids=prompt,
            output_ids=output,
            restarts=restarts,
        )
    )
    return restarts and prompt == 0
