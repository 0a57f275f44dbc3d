"""Pi's entries: the path of the tree, compactions, failed answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shadow_reader.errors import RecordError
from shadow_reader.replay.records import Recording, read_recording
from tests.replay.sessions import real, write_lines

Line = dict[str, Any]

HEADER: Line = {"type": "session", "version": 3, "id": "p-1", "cwd": "/home/user"}
OLD_HEADER: Line = {"type": "session", "id": "p-0"}


def entry(kind: str, entry_id: str = "", parent: str = "", **fields: Any) -> Line:
    ids = {"id": entry_id, "parentId": parent or None} if entry_id else {}
    return {"type": kind, **ids, **fields}


def message(role: str, content: Any, entry_id: str = "", parent: str = "", **fields: Any) -> Line:
    body = {"role": role, "content": content, **fields}
    return entry("message", entry_id, parent, message=body)


def text(words: str) -> Line:
    return {"type": "text", "text": words}


def call(call_id: str) -> Line:
    return {"type": "toolCall", "id": call_id, "name": "read", "arguments": {"path": call_id}}


def result(call_id: str, words: str, entry_id: str = "", parent: str = "") -> Line:
    return message("toolResult", [text(words)], entry_id, parent, toolCallId=call_id)


def read(tmp_path: Path, *lines: Line) -> Recording:
    return read_recording(write_lines(tmp_path / "p.jsonl", lines))


def texts(held: Recording) -> list[str]:
    return [message.text for message in held.messages]


def test_a_session_with_tools(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        HEADER,
        entry("model_change", "a", modelId="m"),
        message("user", [text("Look"), {"type": "image", "mimeType": "image/png"}], "b", "a"),
        message("assistant", [{"type": "thinking", "thinking": "Hm."}, call("c1")], "c", "b"),
        result("c1", "x = 1", "d", "c"),
        message("assistant", [text("It is one.")], "e", "d", stopReason="stop"),
    )
    assert (held.session, held.source, held.turns) == ("p-1", "pi", 2)
    assert texts(held) == ["Look\n[image/png]", "", "x = 1", "It is one."]
    assert held.messages[1].reasoning == "Hm."
    assert held.messages[1].tool_calls[0].arguments == {"path": "c1"}
    assert held.skipped == {"entries of type model_change": 1, "images and files": 1}


def test_the_path_to_the_last_entry_is_the_conversation(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        HEADER,
        message("user", "One", "a"),
        message("assistant", [text("First.")], "b", "a"),
        message("user", "Two, badly put", "c", "b"),
        message("assistant", [text("Wrong.")], "d", "c"),
        entry("branch_summary", "e", "b", fromId="d", summary="It went wrong."),
        message("user", "Two, put better", "f", "e"),
        message("assistant", [text("Right.")], "g", "f"),
    )
    assert texts(held)[:2] == ["One", "First."]
    assert "It went wrong." in texts(held)[2]
    assert texts(held)[3:] == ["Two, put better", "Right."]
    assert held.skipped == {"entries of other branches": 2}


def test_failed_answers_are_turns_that_later_prompts_lack(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        HEADER,
        message("user", "One", "a"),
        message("assistant", [text("Half")], "b", "a", stopReason="aborted"),
        message("assistant", [], "c", "b", stopReason="error", errorMessage="overloaded"),
        message("user", "Again", "d", "c"),
        message("assistant", [text("Too long")], "e", "d", stopReason="length"),
    )
    answers = [(m.text, m.finished, m.kept) for m in held.messages if m.is_turn]
    assert answers == [("Half", False, False), ("Too long", False, True)]
    assert held.skipped == {"requests without an answer": 1}


def test_a_result_of_a_dropped_answer_is_dropped(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        HEADER,
        message("user", "One", "a"),
        message("assistant", [call("c1")], "b", "a", stopReason="aborted"),
        result("c1", "late", "c", "b"),
        message("assistant", [text("First.")], "d", "c"),
    )
    assert texts(held) == ["One", "", "First."]
    assert held.skipped == {"tool results without a call": 1}


@pytest.mark.parametrize("version", [1, 3])
def test_a_compaction_starts_over_with_what_it_kept(tmp_path: Path, version: int) -> None:
    ids = [str(n) if version == 3 else "" for n in range(8)]
    first = {"firstKeptEntryId": "3"} if version == 3 else {"firstKeptEntryIndex": 3}
    held = read(
        tmp_path,
        HEADER if version == 3 else OLD_HEADER,
        message("user", "One", ids[1]),
        message("assistant", [text("First.")], ids[2], ids[1]),
        message("user", "Two", ids[3], ids[2]),
        message("assistant", [text("Second.")], ids[4], ids[3]),
        entry("compaction", ids[5], ids[4], summary="We did one.", tokensBefore=9, **first),
        message("user", "Three", ids[6], ids[5]),
        message("assistant", [text("Third.")], ids[7], ids[6]),
    )
    assert held.turns == 3
    assert texts(held)[:4] == ["One", "First.", "Two", "Second."]
    assert held.messages[4].restart
    assert held.messages[4].text.endswith("We did one.")
    assert texts(held)[5:] == ["Two", "Second.", "Three", "Third."]
    assert [m.history for m in held.messages[5:]] == [True, True, False, False]


def test_commands_and_extensions_speak_as_the_user(tmp_path: Path) -> None:
    ran = {"role": "bashExecution", "command": "ls", "output": "a.py\n", "exitCode": 2}
    held = read(
        tmp_path,
        OLD_HEADER,
        entry("message", message=ran),
        entry("message", message={**ran, "excludeFromContext": True}),
        entry("custom_message", content="From an extension"),
        entry("custom", data={}),
        message("hookMessage", [text("From a hook")]),
        message("assistant", [text("Seen.")]),
    )
    assert texts(held)[0] == "I ran `ls`. It printed:\n\n```\na.py\n```\n(exit code 2)"
    assert texts(held)[1:] == ["From an extension", "From a hook", "Seen."]
    assert held.skipped == {"entries of type custom": 1, "messages of role bashExecution": 1}


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        HEADER,
        message("user", "One", "a", "b"),
        message("assistant", [text("First.")], "b", "a"),
    )
    assert texts(held) == ["One", "First."]


def test_fields_of_another_shape_name_their_line(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"line 2: content\[0\] must be an object, found int"):
        read(tmp_path, OLD_HEADER, message("user", [3]))
    with pytest.raises(RecordError, match="nothing to feed: this pi record"):
        read(tmp_path, OLD_HEADER)


@pytest.mark.parametrize("path", real("pi"), ids=lambda path: path.stem[:12])
def test_real_sessions(path: Path) -> None:
    held = read_recording(path)
    assert held.turns > 30
    assert held.source == "pi"
    if path.stem.startswith("pimono"):
        assert sum(message.restart for message in held.messages) == 2
        assert held.skipped["requests without an answer"] == 13
        assert held.turns == 471
