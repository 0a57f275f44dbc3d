"""Whatever stands in a record, an importer gives a ledger that holds, or a RecordError."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow_reader.errors import RecordError
from shadow_reader.replay.ledger import ledger_of
from shadow_reader.replay.ledger.imports import import_records
from shadow_reader.replay.ledger.turn import turn_of
from tests.replay.ledger.records import (
    claude_block,
    claude_line,
    codex_count,
    codex_line,
    iso,
    ms,
    opencode_export,
    opencode_message,
    qwen_event,
)

_USAGE = {"input": 5, "cacheRead": 5, "cacheWrite": 0, "output": 3}
_ANSWER = {"role": "assistant", "timestamp": ms(1), "usage": _USAGE, "stopReason": "stop"}
_CODEX = {"input_tokens": 9, "output_tokens": 5, "reasoning_output_tokens": 2, "total_tokens": 14}
_RESPONSE = {"prompt_token_ids": [1, 2], "choices": [{"token_ids": [3]}]}
RECORDS: dict[str, list[Any]] = {
    "opencode": [opencode_export(opencode_message(0, 0.0), opencode_message(1, 9.5, summary=True))],
    "claude": [claude_line("u", "user", 0), claude_block("a", 2, "m"), claude_block("b", 3, "m")],
    "codex": [
        codex_line(0, "session_meta", id="c"),
        codex_line(1, "event_msg", type="task_started"),
        codex_line(4, "response_item", type="reasoning"),
        codex_count(5, _CODEX, _CODEX),
        codex_line(6, "event_msg", type="task_complete", time_to_first_token_ms=2500),
    ],
    "pi": [
        {"type": "session", "id": "p"},
        {"type": "message", "timestamp": iso(2), "message": _ANSWER},
    ],
    "qwen": [qwen_event(10, input_token_count=5, output_token_count=4, duration_ms=9, ttft_ms=2)],
    "litellm": [
        {
            "request_id": "r",
            "startTime": iso(0),
            "completionStartTime": iso(1),
            "endTime": iso(2),
            "prompt_tokens": 2,
            "completion_tokens": 1,
            "session_id": "s",
            "response": _RESPONSE,
        }
    ],
    "vllm": [
        {
            "conversation_id": "7",
            "start_time_ms": 1.0,
            "ttft_ms": 1.0,
            "latency_ms": 2.0,
            "input_num_tokens": 5,
            "output_num_tokens": 9,
        }
    ],
}
_ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    1e300,
    10**400,
    "",
    "x",
    "2026",
    [],
    [[]],
    {},
    {"a": 1},
    ms(1),
]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, held in items:
        yield (*path, key)
        yield from _places(held, (*path, key))


@pytest.mark.parametrize("kind", RECORDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage(kind: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    record = copy.deepcopy(RECORDS[kind])
    for _ in range(data.draw(st.integers(1, 2))):
        *above, key = data.draw(st.sampled_from(list(_places(record))))
        holder: Any = record
        for step in above:
            holder = holder[step]
        holder[key] = copy.deepcopy(data.draw(st.sampled_from(_ODD)))
    file = tmp_path_factory.mktemp("record") / "r.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in record))
    try:
        found = import_records([file])
    except RecordError:
        return
    ledger_of("r", [turn_of(turn.row, n) for n, turn in enumerate(found.turns, start=1)])


@pytest.mark.parametrize("kind", RECORDS)
def test_without_damage_there_is_a_request(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("record") / "r.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in RECORDS[kind]))
    assert import_records([file]).turns
