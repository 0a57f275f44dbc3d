"""LiteLLM's rows and vLLM's statistics; an unknown format says what was tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.errors import RecordError
from shadow_reader.replay.ledger import Turn
from shadow_reader.replay.ledger.imports import import_records
from shadow_reader.replay.ledger.imports.values import moment, produced
from tests.replay.ledger.records import T0, iso


def _log(number: int, at: float, **fields: Any) -> dict[str, Any]:
    return {
        "request_id": f"r{number}",
        "call_type": "acompletion",
        "startTime": iso(at),
        "completionStartTime": iso(at + 1),
        "endTime": iso(at + 3),
        "prompt_tokens": 6,
        "completion_tokens": 3,
        "session_id": "lt",
        **fields,
    }


def _file(tmp_path: Path, value: object) -> Path:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(value))
    return file


def _ids(prompt: list[int], output: list[int]) -> str:
    return json.dumps({"prompt_token_ids": prompt, "choices": [{"token_ids": output}]})


def test_litellm_ids_win_over_counters_and_give_the_prefix(tmp_path: Path) -> None:
    rows = [
        _log(0, 0, response=_ids([1, 2, 3, 4], [5, 6])),
        _log(1, 5, response=_ids([1, 2, 3, 4, 5, 9, 9], [7])),
        _log(2, 10, response=_ids([1, 2, 3, 4, 5, 9, 9, 7, 8], [])),
    ]
    found = import_records([_file(tmp_path, {"data": rows})])
    assert [(t.prompt_ids, t.prefix_ids, t.output_ids, t.assumed) for t in found.turns] == [
        (4, 0, 2, ()),
        (7, 5, 1, ()),
        (9, 8, 3, ()),
    ]
    assert found.notes["counters that contradict the ids"] == 3


def test_litellm_rows_that_are_no_requests_are_counted(tmp_path: Path) -> None:
    rows = [
        _log(0, 0),
        _log(0, 0),
        _log(1, 5, status="failure"),
        _log(2, 5, cache_hit="True"),
        _log(3, 5, call_type="aembedding"),
        _log(4, 5, endTime=None),
        _log(5, 9, session_id=None, completionStartTime=iso(12)),
        _log(6, 20, endTime=iso(19)),
        _log(7, 30, completionStartTime=iso(29)),
    ]
    found = import_records([_file(tmp_path, rows)])
    assert [(t.session, t.first_s) for t in found.turns] == [
        ("lt", T0 + 1),
        ("request r5", None),
        ("lt", None),
    ]
    assert found.left_out == {
        "answers from a cache of answers": 1,
        "failed requests": 1,
        "requests that are no completions": 1,
        "requests that end before they begin": 1,
        "requests that stand twice": 1,
        "requests without an end": 1,
    }
    assert found.notes["first ids outside their request"] == 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_vllm_statistics(tmp_path: Path, wrapped: bool) -> None:
    rows = [
        {
            "conversation_id": 7,
            "start_time_ms": 1000.0 * n,
            "ttft_ms": 100.0,
            "latency_ms": 800.0,
            "input_num_tokens": 50 + n,
            "output_num_tokens": 9,
        }
        for n in (5, 1)
    ]
    found = import_records([_file(tmp_path, {"per_request": rows} if wrapped else rows)])
    assert list(found.turns) == [
        Turn("7", None, 0, 1.0, 1.1, 1.8, 51, 0, 9, ("prompt_ids",)),
        Turn("7", None, 1, 5.0, 5.1, 5.8, 55, 51, 9, ("prompt_ids", "prefix_ids")),
    ]
    assert found.notes["times of the benchmark's own clock"] == 2


def test_an_unknown_format_says_what_was_tried(tmp_path: Path) -> None:
    for text in ("[]", '[{"a": 1}]', '{"a": 1}\n{"a": 2}\n'):
        (tmp_path / "x.json").write_text(text)
        for path in (tmp_path / "x.json", tmp_path):
            with pytest.raises(RecordError, match=r"tried: opencode .*Codex.*LiteLLM.*vLLM"):
                import_records([path])
    (tmp_path / "x.json").unlink()
    with pytest.raises(RecordError, match="holds no file to import; tried"):
        import_records([tmp_path])
    with pytest.raises(RecordError, match="does not exist"):
        import_records([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("field", "value"),
    [("prompt_tokens", -1), ("prompt_tokens", True), ("startTime", "noon"), ("endTime", [])],
)
def test_a_broken_field_is_named(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(RecordError, match=rf"rows\.json: row 1: {field}"):
        import_records([_file(tmp_path, [_log(0, 0, **{field: value})])])


@pytest.mark.parametrize(
    "value",
    [T0, T0 * 10**3, T0 * 10**6, T0 * 10**9, float(T0), iso(0), "2026-01-02 09:20:00"],
)
def test_moments_in_any_unit(value: object) -> None:
    assert moment(value, "x") == T0


def test_a_total_tells_where_reasoning_is_counted() -> None:
    assert produced(prompt=10, output=5, reasoning=3, total=18) == (8, False)
    assert produced(prompt=10, output=5, reasoning=3, total=15) == (5, False)
    assert produced(prompt=10, output=5, reasoning=0, total=19) == (9, True)
