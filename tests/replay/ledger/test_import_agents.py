"""Claude Code, Codex, Pi and qwen-code: their traps, one each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.errors import RecordError
from shadow_reader.replay.ledger import Turn, ledger_of
from shadow_reader.replay.ledger.imports import import_records
from tests.replay.ledger.records import (
    T0,
    claude_block,
    claude_line,
    codex_count,
    codex_line,
    iso,
    lines,
    ms,
    qwen_event,
)
from tests.replay.sessions import real


def test_claude_code_groups_blocks_and_reads_the_last_usage(tmp_path: Path) -> None:
    file = lines(
        tmp_path / "s.jsonl",
        [
            claude_line("u0", "user", 0),
            claude_block("a1", 2, "m1"),
            claude_block("a2", 3, "m1", output=77, stop="tool_use"),
            claude_line("u1", "user", 4),
            claude_block("b1", 6, "m2"),
            claude_block("b2", 7, "m2"),
            claude_line("u2", "user", 8),
            claude_block("c1", 9, "m3"),
        ],
    )
    found = import_records([file])
    guess = ("start_s", "first_s", "prefix_ids", "output_ids")
    assert list(found.turns) == [
        Turn("cc", None, 0, T0, T0 + 2, T0 + 3, 5000, 0, 77, ("start_s", "first_s")),
        Turn("cc", None, 1, T0 + 4, T0 + 6, T0 + 7, 5000, 5000, 600, guess),
        Turn("cc", None, 2, T0 + 8, None, T0 + 9, 5000, 5000, 300, (guess[0], *guess[2:])),
    ]
    assert found.notes["output_ids assumed"] == 2


def test_claude_code_sidechains_copies_errors_and_compactions(tmp_path: Path) -> None:
    first = [
        claude_line("u0", "user", 0),
        claude_block("a1", 1, "m1", stop="tool_use", output=5),
        claude_line("s0", "user", 2, isSidechain=True),
        claude_block("s1", 3, "m2", parent="s0", isSidechain=True, stop="end_turn"),
        claude_line("e", "assistant", 4, isApiErrorMessage=True),
        claude_line("n", "assistant", 5, message={"model": "<synthetic>"}),
        claude_line("k", "user", 6, isCompactSummary=True),
        claude_block("a2", 7, "m3", stop="end_turn"),
    ]
    lines(tmp_path / "a.jsonl", first)
    copied = [{**line, "sessionId": "resumed"} for line in first[:2]]
    copied += [
        claude_line("u9", "user", 19, session="resumed"),
        claude_block("b1", 20, "m4", session="resumed", stop="end_turn"),
        claude_block(
            "g1", 30, "m5", session="resumed", isSidechain=True, agentId="ag", stop="end_turn"
        ),
    ]
    lines(tmp_path / "b.jsonl", copied)
    found = import_records([tmp_path])
    told = [(t.session, t.parent, t.turn, t.prefix_ids) for t in found.turns]
    assert told == [
        ("cc", None, 0, 0),
        ("cc/s0", "cc", 0, 0),
        ("cc", None, 1, 0),
        ("resumed", None, 0, 0),
        ("resumed/ag", "resumed", 0, 0),
    ]
    assert found.left_out == {"failed requests": 1, "requests that stand twice": 1}
    assert found.notes["compactions"] == 1


def test_codex_closes_a_request_with_its_count(tmp_path: Path) -> None:
    last = {"input_tokens": 900, "output_tokens": 50, "reasoning_output_tokens": 20}
    total = {"input_tokens": 900, "output_tokens": 50, "total_tokens": 950}
    more = {"input_tokens": 2000, "output_tokens": 80, "total_tokens": 2080}
    file = lines(
        tmp_path / "rollout-1.jsonl",
        [
            codex_line(
                0,
                "session_meta",
                id="cx",
                source={"subagent": {"thread_spawn": {"parent_thread_id": "top"}}},
            ),
            codex_line(1, "event_msg", type="task_started"),
            codex_line(1.5, "response_item", type="message", role="user"),
            codex_line(2, "event_msg", type="token_count", info=None),
            codex_line(4, "response_item", type="reasoning"),
            codex_line(5, "response_item", type="function_call"),
            codex_line(8, "response_item", type="function_call_output"),
            codex_count(8.1, {**last, "total_tokens": 950}, total),
            codex_count(8.2, last, total),
            codex_line(11, "response_item", type="message", role="assistant"),
            codex_count(11.2, None, more),
            codex_line(12, "event_msg", type="task_complete", time_to_first_token_ms=2500),
            codex_line(13, "compacted"),
            codex_line(14, "event_msg", type="user_message"),
            codex_count(16, {"input_tokens": 300, "output_tokens": 3}, {"input_tokens": 2300}),
        ],
    )  # fmt: skip
    found = import_records([file])
    assert list(found.turns) == [
        Turn("cx", "top", 0, T0 + 1.5, T0 + 3.5, T0 + 5, 900, 0, 50, ("start_s",)),
        Turn("cx", "top", 1, T0 + 8, None, T0 + 11, 1100, 900, 30, ("start_s", "prefix_ids")),
        Turn(
            "cx", "top", 2, T0 + 14, None, T0 + 16, 300, 0, 3, ("start_s", "end_s", "prefix_ids")
        ),
    ]  # fmt: skip
    assert found.left_out == {"requests that stand twice": 1}
    assert found.notes["counts from totals"] == 1


def _pi(at: float, end: float, prompt: int, output: int, stop: str = "stop") -> dict[str, Any]:
    usage = {"input": prompt - 30, "cacheRead": 20, "cacheWrite": 10, "output": output}
    usage = usage if prompt else {"input": 0, "output": 0}
    message = {"role": "assistant", "timestamp": ms(at), "usage": usage, "stopReason": stop}
    return {"type": "message", "timestamp": iso(end), "message": message}


def test_pi_failures_overlaps_and_forks(tmp_path: Path) -> None:
    rows = [
        {"type": "session", "id": "p1"},
        _pi(0, 2, 100, 10),
        _pi(3, 4, 0, 0, "aborted"),
        _pi(5, 9, 140, 20),
        _pi(8, 10, 150, 5),  # began before the last one ended
        _pi(8.5, 9.5, 150, 5),  # lies inside it
        {"type": "compaction", "summary": "s"},
        _pi(20, 21, 60, 5),
    ]
    lines(tmp_path / "a.jsonl", rows)
    lines(tmp_path / "b.jsonl", [{"type": "session", "id": "p2"}, *rows[1:2]])
    found = import_records([tmp_path])
    assert [(t.start_s - T0, t.prefix_ids, t.assumed) for t in found.turns] == [
        (0, 0, ()),
        (5, 100, ("prefix_ids",)),
        (9, 140, ("start_s", "prefix_ids")),
        (20, 0, ("prefix_ids",)),
    ]
    assert found.left_out == {
        "failed requests": 1,
        "requests inside another one of their session": 1,
        "requests that stand twice": 1,
    }


def test_qwen_code_telemetry_wins_over_answers(tmp_path: Path) -> None:
    counts: dict[str, Any] = {
        "input_token_count": 500,
        "output_token_count": 40,
        "thoughts_token_count": 0,
    }
    answer = {
        "uuid": "x",
        "sessionId": "qw",
        "type": "assistant",
        "timestamp": iso(10),
        "usageMetadata": {"promptTokenCount": 500, "candidatesTokenCount": 40},
    }
    file = lines(
        tmp_path / "chat.jsonl",
        [
            qwen_event(10, **counts, duration_ms=4000, ttft_ms=1500),
            answer,
            qwen_event(12, **counts, duration_ms=1000, subagent_name="explore"),
            qwen_event(13, "qwen-code.api_error"),
            qwen_event(14, **counts),
        ],
    )
    found = import_records([file])
    assert list(found.turns) == [
        Turn("qw", None, 0, T0 + 6, T0 + 7.5, T0 + 10, 500, 0, 40),
        Turn("qw/explore", "qw", 0, T0 + 11, None, T0 + 12, 500, 0, 40),
    ]
    assert found.left_out == {"failed requests": 1, "requests without an end": 1}


def test_qwen_code_without_telemetry_has_counts_and_ends(tmp_path: Path) -> None:
    usage = {"promptTokenCount": 500, "candidatesTokenCount": 40, "thoughtsTokenCount": 9}
    base = {"sessionId": "qw", "parentUuid": None}
    file = lines(
        tmp_path / "chat.jsonl",
        [
            {**base, "uuid": "1", "type": "user", "timestamp": iso(1), "message": {"parts": []}},
            {
                **base,
                "uuid": "2",
                "type": "assistant",
                "timestamp": iso(5),
                "usageMetadata": {**usage, "totalTokenCount": 549},
            },
        ],
    )
    (turn,) = import_records([file]).turns
    assert turn == Turn("qw", None, 0, T0 + 1, None, T0 + 5, 500, 0, 49, ("start_s",))


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    file = lines(tmp_path / "s.jsonl", [claude_line("u", "user", 0), claude_block("a", 1, "m")])
    with file.open("a") as more:
        more.write('{"type": "assi')
    found = import_records([file])
    assert (len(found.turns), found.left_out) == (1, {"half-written last lines": 1})
    with file.open("a") as more:
        more.write("\n{}\n")
    with pytest.raises(RecordError, match=r"s\.jsonl: line 3 is not valid JSON"):
        import_records([file])


@pytest.mark.parametrize("file", real("claude_code", "pi"), ids=lambda path: path.stem)
def test_real_sessions(file: Path) -> None:
    found = import_records([file])
    ledger_of(file.name, found.turns)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    if "parentUuid" in rows[1]:
        said = [row["message"] for row in rows if row["type"] == "assistant"]
        answers = len({m["id"] for m in said if m["model"] != "<synthetic>"})
    else:
        said = [row["message"] for row in rows if row["type"] == "message"]
        answers = sum(message["role"] == "assistant" for message in said)
    assert len(found.turns) + sum(found.left_out.values()) == answers
