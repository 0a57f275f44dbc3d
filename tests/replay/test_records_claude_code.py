"""Claude Code's lines: blocks, branches, sidechains, compactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shadow_reader.errors import RecordError
from shadow_reader.replay.records import Recording, read_recording
from shadow_reader.replay.records.recording import NO_RESULT
from tests.replay.sessions import real, write_lines

Line = dict[str, Any]


def line(uuid: str, parent: str | None, kind: str, **more: Any) -> Line:
    shared = {"uuid": uuid, "parentUuid": parent, "sessionId": "s-1", "isSidechain": False}
    return {**shared, "type": kind, **more}


def user(uuid: str, parent: str | None, content: Any, **more: Any) -> Line:
    return line(uuid, parent, "user", message={"role": "user", "content": content}, **more)


def block(uuid: str, parent: str | None, answer: str, content: Line, **more: Any) -> Line:
    message = {"id": answer, "role": "assistant", "content": [content], **more}
    return line(uuid, parent, "assistant", message=message)


def text(words: str) -> Line:
    return {"type": "text", "text": words}


def use(call: str) -> Line:
    return {"type": "tool_use", "id": call, "name": "Read", "input": {"path": call}}


def result(call: str, content: Any = "ok") -> Line:
    return {"type": "tool_result", "tool_use_id": call, "content": content}


def read(tmp_path: Path, *lines: Line) -> Recording:
    return read_recording(write_lines(tmp_path / "s.jsonl", lines))


def texts(held: Recording) -> list[str]:
    return [message.text for message in held.messages]


def test_blocks_of_one_answer_are_one_turn(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        {"type": "summary", "summary": "A title", "leafUuid": "b3"},
        user("u1", None, "Look"),
        block("b1", "u1", "m1", {"type": "thinking", "thinking": "Hm.", "signature": "x"}),
        block("b2", "b1", "m1", text("I look.")),
        block("b3", "b2", "m1", use("c1")),
        user("u2", "b3", [result("c1", [text("one"), {"type": "image", "source": {}}])]),
        block("b4", "u2", "m2", text("Seen.")),
    )
    assert (held.session, held.source, held.turns) == ("s-1", "claude-code", 2)
    first = held.messages[1]
    assert (first.reasoning, first.text) == ("Hm.", "I look.")
    assert [call.call for call in first.tool_calls] == ["c1"]
    assert held.messages[2].text == "one\n[image]"
    assert held.skipped == {"lines of type summary": 1, "images and files": 1}


def test_parallel_results_hang_off_their_own_block(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        user("u1", None, "Look"),
        block("b1", "u1", "m1", use("c1")),
        block("b2", "b1", "m1", use("c2")),
        user("r1", "b1", [result("c1", "one")]),  # not on the chain of the last line
        user("r2", "b2", [result("c2", "two")]),
        block("b3", "r2", "m2", text("Seen.")),
    )
    assert texts(held) == ["Look", "", "one", "two", "Seen."]
    assert len(held.messages[1].tool_calls) == 2
    assert held.skipped == {}


def test_a_block_may_be_written_after_the_first_result(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        user("u1", None, "Look"),
        block("b1", "u1", "m1", use("c1")),
        user("r1", "b1", [result("c1", "one")]),
        block("b2", "b1", "m1", use("c2")),
        user("r2", "b2", [result("c2", "two")]),
        block("b3", "r2", "m2", text("Seen.")),
    )
    assert texts(held) == ["Look", "", "one", "two", "Seen."]
    assert held.turns == 2


def test_sidechains_are_other_conversations(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        user("u1", None, "Look"),
        block("b1", "u1", "m1", use("c1")),
        user("x1", None, "You do a subtask", isSidechain=True),
        line("x2", "x1", "assistant", isSidechain=True, message={"content": [text("Sub.")]}),
        user("r1", "b1", [result("c1")]),
        block("b2", "r1", "m2", text("Seen.")),
    )
    assert texts(held) == ["Look", "", "ok", "Seen."]
    assert held.skipped == {"sidechain lines": 2}


def test_the_branch_of_the_last_line_is_the_conversation(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        user("u1", None, "One"),
        block("b1", "u1", "m1", text("First.")),
        user("u2", "b1", "Two, badly put"),
        block("b2", "u2", "m2", use("c1")),
        user("r1", "b2", [result("c1")]),
        block("b3", "r1", "m3", text("Wrong.")),
        user("u3", "b1", "Two, put better"),
        block("b4", "u3", "m4", text("Right.")),
    )
    assert texts(held) == ["One", "First.", "Two, put better", "Right."]
    assert held.skipped == {"lines off the main line": 4}


def test_duplicates_count_once(tmp_path: Path) -> None:
    lines = [
        user("u1", None, "One"),
        block("b1", "u1", "m1", text("First.")),
        block("b2", "b1", "m1", text("First.")),  # the same block under another uuid
    ]
    held = read(tmp_path, *lines, lines[1])
    assert texts(held) == ["One", "First."]
    assert held.skipped == {"duplicate lines": 1, "duplicate blocks": 1}


def test_text_beside_a_result_stands_below_it(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        user("u1", None, "Look"),
        block("b1", "u1", "m1", use("c1")),
        user("r1", "b1", [text("By the way"), result("c1", "one")]),
        block("b2", "r1", "m2", text("Seen.")),
    )
    assert texts(held) == ["Look", "", "one", "By the way", "Seen."]


@pytest.mark.parametrize("logical", ["b1", None])
def test_a_compact_summary_starts_over(tmp_path: Path, logical: str | None) -> None:
    boundary = {"subtype": "compact_boundary", "logicalParentUuid": logical}
    held = read(
        tmp_path,
        user("u1", None, "One"),
        block("b1", "u1", "m1", text("First.")),
        line("s1", None, "system", **boundary),
        user("u2", "s1", "Summary of one", isCompactSummary=True),
        user("u3", "u2", "Two"),
        block("b2", "u3", "m2", text("Second.")),
    )
    assert texts(held) == ["One", "First.", "Summary of one", "Two", "Second."]
    assert [message.restart for message in held.messages] == [False, False, True, False, False]
    assert held.skipped == {"lines of type system": 1}


def test_a_parent_that_is_not_in_the_file_is_the_line_above(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        user("u1", "in-another-file", "One"),
        block("b1", "u1", "m1", text("First.")),
        user("u2", "a-pruned-progress-line", "Two"),
        block("b2", "u2", "m2", text("Second.")),
    )
    assert texts(held) == ["One", "First.", "Two", "Second."]


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    held = read(tmp_path, user("u1", "b1", "One"), block("b1", "u1", "m1", text("First.")))
    assert texts(held) == ["One", "First."]


def test_words_of_the_agent_itself(tmp_path: Path) -> None:
    failed = {**block("b2", "b1", "m2", text("API Error: overloaded")), "isApiErrorMessage": True}
    held = read(
        tmp_path,
        user("u1", None, "One"),
        block("b1", "u1", "m1", text("First.")),
        failed,
        user("u2", "b2", "<command-name>/exit</command-name>", isMeta=True),
        block("b3", "u2", "m3", text("No response requested."), model="<synthetic>"),
        user("u3", "b3", "Two"),
        block("b4", "u3", "m4", text("Second.")),
    )
    assert held.turns == 2
    assert "No response requested." in texts(held)
    assert held.messages[2].text.startswith("<command-name>")
    assert not any("API Error" in words for words in texts(held))
    assert held.skipped == {"lines of type api error": 1}


def test_an_interrupted_answer_has_no_end(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        user("u1", None, "One"),
        block("b1", "u1", "m1", text("Half")),
        user("u2", "b1", [text("[Request interrupted by user]")]),
        user("u3", "u2", "Two"),
        block("b2", "u3", "m2", use("c1")),
        user("u4", "b2", "Three"),
        block("b3", "u4", "m3", {"type": "redacted_thinking", "data": "x"}),
        block("b4", "b3", "m3", text("Whole.")),
    )
    assert [m.finished for m in held.messages if m.is_turn] == [False, True, True]
    assert held.messages[5].text == NO_RESULT
    assert held.skipped == {"blocks of type redacted_thinking": 1, "missing tool results": 1}


def test_a_signature_without_words_is_no_reasoning(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        user("u1", None, "One"),
        block("b1", "u1", "m1", {"type": "thinking", "thinking": "", "signature": "x"}),
        block("b2", "b1", "m1", text("First.")),
    )
    assert (held.messages[1].reasoning, held.messages[1].text) == ("", "First.")


def test_nothing_to_feed(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="nothing to feed: this claude-code record"):
        read(tmp_path, user("u1", None, "One"))


def test_fields_of_another_shape_name_their_line(tmp_path: Path) -> None:
    broken = line("u2", "u1", "user", message={"content": [7]})
    with pytest.raises(RecordError, match=r"line 2: message\.content\[0\] must be an object"):
        read(tmp_path, user("u1", None, "One"), broken)


@pytest.mark.parametrize("path", real("claude_code"), ids=lambda path: path.stem[:12])
def test_real_sessions_lose_no_tool_result(path: Path) -> None:
    held = read_recording(path)
    calls = [call.call for message in held.messages for call in message.tool_calls]
    results = [message.call for message in held.messages if message.role == "tool"]
    assert sorted(calls) == sorted(results)
    assert calls
    assert "missing tool results" not in held.skipped
    assert "lines off the main line" not in held.skipped
