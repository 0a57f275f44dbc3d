"""Telling formats apart, and refusing what is none, whatever the file holds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shadow_reader.errors import RecordError
from shadow_reader.replay.records import detect, read_recording
from shadow_reader.replay.records.detect import _read
from tests.replay import test_records_claude_code as claude
from tests.replay import test_records_opencode as opencode
from tests.replay import test_records_pi as pi
from tests.replay.sessions import real, write_lines

CLAUDE = [
    claude.user("u1", None, "Look"),
    claude.block("b1", "u1", "m1", claude.use("c1")),
    claude.user("r1", "b1", [claude.result("c1", [claude.text("one")])]),
    claude.block("b2", "r1", "m2", claude.text("Seen.")),
]
PI = [
    pi.HEADER,
    pi.message("user", [pi.text("Look")], "a"),
    pi.message("assistant", [pi.call("c1")], "b", "a"),
    pi.result("c1", "one", "c", "b"),
    pi.entry("compaction", "d", "c", summary="All of it.", firstKeptEntryId="a"),
    pi.message("assistant", [pi.text("Seen.")], "e", "d"),
]
OPENCODE = {
    "info": {"id": "ses_1"},
    "messages": [
        opencode.asked(opencode.text("Look"), {"type": "file", "mime": "image/png"}),
        opencode.answered(opencode.thought("Hm."), opencode.tool("c1", output="one")),
        opencode.answered(opencode.text("Seen."), summary=True),
        opencode.answered(opencode.text("Again.")),
    ],
}


def as_lines(lines: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(line) for line in lines)


@pytest.mark.parametrize(
    ("content", "source"),
    [
        (json.dumps(OPENCODE), "opencode"),
        (json.dumps(OPENCODE, indent=2), "opencode"),
        ("\ufeff" + as_lines(CLAUDE), "claude-code"),
        (as_lines([{"type": "file-history-snapshot"}, *CLAUDE]), "claude-code"),
        (as_lines(PI).replace("\n", "\r\n\n"), "pi"),
    ],
)
def test_the_content_tells_the_format(tmp_path: Path, content: str, source: str) -> None:
    path = tmp_path / "whatever.txt"
    path.write_bytes(content.encode())
    assert read_recording(path).source == source


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b'{"a": 1}', "format unknown: known are opencode exports.*has the fields a"),
        (b'{\n "a": 1\n}\n', "format unknown"),
        (b"{}", "format unknown.*fields none"),
        (b"[1, 2]", "a JSON array, perhaps opencode's event stream"),
        (b"12", "line 1 must be an object, found int"),
        (b"hello", "line 1 is not valid JSON"),
        (b'{"a": 1}\n{"a": \n', "line 2 is not valid JSON"),
        (b'{\n "info": {},\n "messages": [\n', "the file is not valid JSON"),
        (b"\xff\xfe\x00", "is not UTF-8 text: byte 0"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=message) as caught:
        read_recording(path)
    assert caught.value.details["path"] == str(path)
    assert str(path) in caught.value.message


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.jsonl", CLAUDE)
    lines = path.read_text().splitlines()
    lines[2] = lines[2][:-9]
    path.write_text("\n".join(lines))
    with pytest.raises(RecordError, match=r"s\.jsonl: line 3 is not valid JSON"):
        read_recording(path)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecordError, match="cannot be read: No such file"):
        read_recording(tmp_path / "absent.json")
    with pytest.raises(RecordError, match="cannot be read: Is a directory"):
        read_recording(tmp_path)
    path = write_lines(tmp_path / "s.jsonl", CLAUDE)
    monkeypatch.setattr(detect, "MAX_BYTES", 100)
    with pytest.raises(RecordError, match=r"has \d+ bytes, the limit is 100"):
        read_recording(path)


def test_separators_inside_strings_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    lines = [claude.user("u1", None, "a\u2028b\x85c\x0bd"), *CLAUDE[1:]]
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    assert read_recording(path).messages[0].text == "a\u2028b\x85c\x0bd"


def test_lone_surrogates_are_read(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(as_lines(CLAUDE).replace('"Look"', '"cut \\ud83d"'))
    assert read_recording(path).messages[0].text == "cut \ud83d"


@pytest.mark.parametrize("path", real("opencode_events"), ids=lambda path: path.stem)
def test_event_streams_are_refused_with_a_hint(path: Path) -> None:
    with pytest.raises(RecordError, match="write the session with `opencode export`"):
        read_recording(path)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, as the keys that lead there."""
    found = [at] if at else []
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        found += places(inner, (*at, key))
    return found


JUNK: list[Any] = [None, 0, 1.5, True, "", "x", [], {}, [1], {"a": 1}, "user", "tool", ["text"]]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["opencode", "claude", "pi"]), st.integers(0, 2**32), st.integers(1, 3))
def test_a_damaged_record_is_read_or_refused_never_a_crash(kind: str, seed: int, hits: int) -> None:
    chance = random.Random(seed)
    start: dict[str, Any] = {"opencode": OPENCODE, "claude": CLAUDE, "pi": PI}
    value = json.loads(json.dumps(start[kind]))
    for _ in range(hits):
        *way, key = chance.choice(places(value) or [("info",)])
        inner = value
        for step in way:
            inner = inner[step]
        if chance.random() < 0.3 and isinstance(inner, dict):
            inner.pop(key, None)
        else:
            inner[key] = json.loads(json.dumps(chance.choice(JUNK)))
    content = json.dumps(value) if kind == "opencode" else "\n".join(map(json.dumps, value))
    try:
        held = _read(content)
    except RecordError:
        return
    assert held.turns >= 1
    assert held.messages[-1].is_turn
    open_calls = {call.call for message in held.messages for call in message.tool_calls}
    assert all(m.call in open_calls for m in held.messages if m.role == "tool")
