"""Rows of those who stand before or beside a server: LiteLLM's spend logs, vLLM's benchmark.

- LiteLLM, ``LiteLLM_SpendLogs`` as JSON (its schema is public): ``startTime``,
  ``completionStartTime``, ``endTime``, ``prompt_tokens`` (cached ones included),
  ``completion_tokens``, ``session_id``. A first id at the very end means the answer was not
  streamed. An answer from LiteLLM's own cache asked no model. Where ``response`` holds the ids that
  vLLM returned, they win over the counters.
- vLLM, ``benchmark_serving_multi_turn`` statistics (``RequestStats`` of its source):
  ``start_time_ms`` on the benchmark's own clock, ``ttft_ms``, ``latency_ms``, ``input_num_tokens``
  (counted without the chat template, so assumed), ``output_num_tokens``, ``conversation_id``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shadow_reader.replay.ledger.imports.requests import FAILED, NO_END, Intake, Request
from shadow_reader.replay.ledger.imports.values import count, moment, name, number
from shadow_reader.replay.records.fields import as_list, as_object, as_text, parse

LITELLM: Final = "litellm"
VLLM: Final = "vllm-multi-turn"

_CALLS: Final = ("completion", "responses", "anthropic_messages", "generate_content")


def is_spend_log(row: dict[str, Any]) -> bool:
    """Whether a row is one of LiteLLM's spend logs."""
    return {"request_id", "startTime", "endTime", "prompt_tokens"} <= row.keys()


def is_request_stats(row: dict[str, Any]) -> bool:
    """Whether a row is one of the benchmark's."""
    return {"start_time_ms", "latency_ms", "input_num_tokens", "conversation_id"} <= row.keys()


def take_spend_logs(intake: Intake, rows: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """Take the requests of spend logs; rows are numbered from 1.

    Raises:
        RecordError: a field has another shape.
    """
    for at, row in rows:
        where = f"row {at}"
        if row.get("status") == "failure":
            intake.leave_out(FAILED)
        elif str(row.get("cache_hit")).lower() == "true":
            intake.leave_out("answers from a cache of answers")
        elif row.get("call_type") and not any(k in str(row["call_type"]) for k in _CALLS):
            intake.leave_out("requests that are no completions")
        elif intake.first_time(("litellm", name(row["request_id"], f"{where}: request_id"))):
            _spend_log(intake, row, where)


def _spend_log(intake: Intake, row: dict[str, Any], where: str) -> None:
    start = moment(row["startTime"], f"{where}: startTime")
    first = moment(row.get("completionStartTime"), f"{where}: completionStartTime")
    end = moment(row["endTime"], f"{where}: endTime")
    if start is None or end is None:
        intake.leave_out(NO_END)
        return
    session = as_text(row.get("session_id"), f"{where}: session_id")
    if not session:
        intake.note("requests without a session, each one of its own")
        session = f"request {row['request_id']}"
    prompt, output = _ids(row.get("response"), where)
    intake.add(
        Request(
            session=session,
            start_s=start,
            first_s=first if first != end else None,
            end_s=end,
            prompt_ids=count(row["prompt_tokens"], f"{where}: prompt_tokens"),
            output_ids=count(row.get("completion_tokens"), f"{where}: completion_tokens"),
            prompt=prompt,
            output=output,
        )
    )


def _ids(response: Any, where: str) -> tuple[list[int] | None, list[int] | None]:
    """A response's ids of prompt and output, None where it has none."""
    if isinstance(response, str) and response:
        response = parse(response, f"{where}: response")
    if not isinstance(response, dict):
        return None, None
    choices = as_list(response.get("choices"), f"{where}: choices")
    choice = as_object(choices[0], f"{where}: choices[0]") if choices else {}
    prompt = response.get("prompt_token_ids") or choice.get("prompt_token_ids")
    return _id_list(prompt, where), _id_list(choice.get("token_ids"), where)


def _id_list(value: Any, where: str) -> list[int] | None:
    ids = as_list(value, f"{where}: token ids")
    return [count(one, f"{where}: token id") for one in ids] or None


def take_request_stats(intake: Intake, rows: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """Take the requests of a benchmark's statistics; rows are numbered from 1.

    Raises:
        RecordError: a field has another shape.
    """
    for at, row in rows:
        where = f"row {at}"
        start = number(row["start_time_ms"], f"{where}: start_time_ms") / 1000
        wait = row.get("ttft_ms")
        intake.note("times of the benchmark's own clock")
        intake.add(
            Request(
                session=name(row["conversation_id"], f"{where}: conversation_id"),
                start_s=start,
                first_s=None if wait is None else start + number(wait, f"{where}: ttft_ms") / 1000,
                end_s=start + number(row["latency_ms"], f"{where}: latency_ms") / 1000,
                prompt_ids=count(row["input_num_tokens"], f"{where}: input_num_tokens"),
                output_ids=count(row.get("output_num_tokens"), f"{where}: output_num_tokens"),
                assumed=frozenset({"prompt_ids"}),
            )
        )
