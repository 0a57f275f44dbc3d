"""``opencode export``: what of it a prompt holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.errors import RecordError
from shadow_reader.replay.records import Message, Recording, read_recording
from shadow_reader.replay.records.recording import NO_RESULT


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def thought(words: str) -> dict[str, Any]:
    return {"type": "reasoning", "text": words}


def tool(call: str, status: str = "completed", **state: Any) -> dict[str, Any]:
    state = {"status": status, "input": {"path": "a.py"}, **state}
    return {"type": "tool", "tool": "read", "callID": call, "state": state}


START = {"type": "step-start"}
FINISH = {"type": "step-finish"}


def asked(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"info": {"role": "user"}, "parts": list(parts)}


def answered(*parts: dict[str, Any], **info: Any) -> dict[str, Any]:
    return {"info": {"role": "assistant", "finish": "stop", **info}, "parts": list(parts)}


ABORTED = {"name": "MessageAbortedError", "data": {}}


def read(tmp_path: Path, *messages: dict[str, Any], **info: Any) -> Recording:
    path = tmp_path / "export.json"
    path.write_text(json.dumps({"info": {"id": "ses_1", **info}, "messages": messages}, indent=2))
    return read_recording(path)


def test_one_turn_with_its_tools(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        asked(text("Look")),
        answered(START, thought("Hm."), text("I look."), tool("c1", output="x = 1"), FINISH),
        answered(START, text("It is one."), FINISH),
    )
    assert (held.session, held.source, held.turns) == ("ses_1", "opencode", 2)
    assert [message.role for message in held.messages] == ["user", "assistant", "tool", "assistant"]
    first = held.messages[1]
    assert (first.text, first.reasoning) == ("I look.", "Hm.")
    assert (first.tool_calls[0].name, first.tool_calls[0].arguments) == ("read", {"path": "a.py"})
    assert held.messages[2] == Message("tool", "x = 1", call="c1")
    assert held.skipped == {}


def test_results_stand_below_all_calls_of_their_answer(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        asked(text("Look")),
        answered(START, tool("c1", output="one"), tool("c2", output="two"), FINISH),
        answered(START, text("Seen.")),
    )
    assert [message.text for message in held.messages[2:4]] == ["one", "two"]
    assert len(held.messages[1].tool_calls) == 2


def test_synthetic_text_is_shown_and_ignored_text_is_not(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        asked(text("See @a"), text("<file>", synthetic=True), text("a banner", ignored=True)),
        answered(text("Seen.")),
        asked(text("only a banner", ignored=True)),
        answered(text("More.")),
    )
    assert held.messages[0].text == "See @a\n\n<file>"
    assert [message.role for message in held.messages] == ["user", "assistant", "assistant"]
    assert held.skipped == {"ignored parts": 2, "empty messages": 1}


def test_inlined_files_vanish_and_images_leave_a_placeholder(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        asked(
            {"type": "file", "mime": "text/plain", "filename": "a.py"},
            {"type": "file", "mime": "image/png", "filename": "shot.png", "url": "data:..."},
            {"type": "agent", "name": "explore"},
        ),
        answered(tool("c1", output="saw", attachments=[{"mime": "image/jpeg"}])),
        answered(text("Seen.")),
    )
    assert held.messages[0].text == "[image/png: shot.png]"
    assert held.messages[2].text == "saw\n[image/jpeg: unnamed]"
    assert held.skipped == {"images and files": 2}


def test_tool_errors_and_calls_that_never_ended(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        asked(text("Look")),
        answered(tool("c1", "error", error="no such file"), tool("c2", "running")),
        answered(tool("c3", "error", error="bad", input="not an object")),
        answered(text("Seen.")),
    )
    assert [m.text for m in held.messages if m.role == "tool"] == ["no such file", NO_RESULT, "bad"]
    assert held.messages[4].tool_calls[0].arguments == {"input": "not an object"}
    assert held.skipped == {"missing tool results": 1}


def test_an_answer_that_never_began_is_no_turn(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        asked(text("One")),
        answered(text("First.")),
        asked(text("Two")),
        answered(error=ABORTED, finish=None),
    )
    assert held.turns == 1
    assert held.skipped == {"requests without an answer": 1, "unanswered messages": 1}


def test_cancelled_answers(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        asked(text("One")),
        answered(text("Half"), error=ABORTED, finish=None),
        asked(text("Two")),
        answered(thought("Only a thou"), error=ABORTED, finish=None),
        asked(text("Three")),
        answered(text("Overload"), error={"name": "APIError"}, finish=None),
        answered(text("Well."), finish="length"),
        answered(text("Killed"), finish=None),
        answered(text("Old version"), FINISH, finish=None),
    )
    answers = [(m.text, m.finished, m.kept) for m in held.messages if m.role == "assistant"]
    assert answers == [
        ("Half", False, True),
        ("", False, False),
        ("Overload", False, False),
        ("Well.", False, True),
        ("Killed", False, True),
        ("Old version", True, True),
    ]


def test_each_step_of_an_old_message_is_a_turn(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        asked(text("Look")),
        answered(
            *(START, thought("a"), tool("c1", output="one"), FINISH),
            *(START, tool("c2", output="two"), FINISH),
            *(START, text("Done.")),
            finish="length",
        ),
    )
    roles = [message.role for message in held.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [m.finished for m in held.messages if m.is_turn] == [True, True, False]


def test_a_compaction_sees_everything_and_then_hides_it(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        asked(text("One")),
        answered(text("First.")),
        asked({"type": "compaction", "auto": True}),
        answered(text("We did one."), summary=True),
        asked(text("Continue", synthetic=True)),
        answered(text("Second.")),
    )
    assert held.turns == 3
    flags = [(m.text[:11], m.restart, m.history) for m in held.messages]
    asking = held.messages[2].text
    assert flags == [
        ("One", False, False),
        ("First.", False, False),
        (asking[:11], False, False),
        ("We did one.", False, False),
        (asking[:11], True, False),
        ("We did one.", False, True),
        ("Continue", False, False),
        ("Second.", False, False),
    ]


def test_a_failed_compaction_hides_nothing(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        asked(text("One")),
        answered(text("First.")),
        asked({"type": "compaction"}),
        answered(text("We di"), summary=True, error=ABORTED, finish=None),
        asked(text("Two")),
        answered(text("Second.")),
    )
    assert not any(message.restart for message in held.messages)


def test_parts_nobody_knows_are_counted(tmp_path: Path) -> None:
    held = read(
        tmp_path,
        asked(text("One"), {"type": "hologram"}),
        answered(text("First."), {"type": ["odd"]}),
        {"info": {"role": "oracle"}, "parts": []},
    )
    assert held.skipped == {
        "messages of unknown role": 1,
        "parts of type ['odd']": 1,
        "parts of type hologram": 1,
    }


def test_nothing_to_feed(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="nothing to feed: this opencode record holds no answer"):
        read(tmp_path, asked(text("One")))


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([{"info": {"role": "user"}, "parts": [text(7)]}], r"messages\[0\]: text must be a string"),  # type: ignore[arg-type]  # the wrong type is the test
        ([{"info": {"role": "user"}, "parts": {}}], r"messages\[0\]\.parts must be an array"),
        ([{"parts": []}], r"messages\[0\]\.info must be an object"),
        ([answered({"type": "tool"})], r"part 0: state must be an object"),
    ],
)
def test_fields_of_another_shape(tmp_path: Path, messages: list[Any], where: str) -> None:
    with pytest.raises(RecordError, match=where):
        read(tmp_path, *messages)
