"""The session that is made from the package's own sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import shadow_reader
from shadow_reader.errors import RecordError
from shadow_reader.replay.made_session import make_recording
from shadow_reader.replay.records import Recording
from shadow_reader.replay.turns import recorded_turns
from shadow_reader.replay.workbench import TOOLS, Workbench
from tests.replay.sessions import vocabulary

PACKAGE = Path(shadow_reader.__file__).parent


@pytest.fixture(scope="module")
def made() -> Recording:
    return make_recording()


def test_it_is_long_enough_and_has_what_sessions_have(made: Recording) -> None:
    words = vocabulary()
    turns = list(recorded_turns(made, words))
    assert 20 <= len(turns) <= 32
    assert len(turns[-1].prompt) + len(turns[-1].output) >= 12_000
    assert sum(turn.user_turn for turn in turns) >= 5
    assert all(turn.reason == "stop" for turn in turns)
    tools = {call.name for message in made.messages for call in message.tool_calls}
    assert tools == {tool["function"]["name"] for tool in TOOLS}
    assert sum(bool(message.reasoning) for message in made.messages if message.is_turn) >= 15
    assert made.system
    assert made.tools == TOOLS
    assert made.skipped == {}


def test_the_same_sources_give_the_same_session(made: Recording, tmp_path: Path) -> None:
    assert make_recording() == made
    copy = tmp_path / "shadow_reader"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert make_recording(copy).messages == made.messages
    assert make_recording(seed=2).messages != made.messages
    assert make_recording(seed=2).session != made.session


@pytest.mark.parametrize("seed", range(8))
def test_any_seed_is_long_enough(seed: int) -> None:
    words = vocabulary()
    *_, last = recorded_turns(make_recording(seed=seed), words)
    assert len(last.prompt) >= 12_000


def test_what_the_tools_print_is_true(made: Recording) -> None:
    calls = {call.call: call for message in made.messages for call in message.tool_calls}
    results = [message for message in made.messages if message.role == "tool"]
    assert not [message.text for message in results if message.text.startswith("error")]
    bench = Workbench(PACKAGE)
    first = next(m for m in results if calls[m.call].name == "read_file")
    path = str(calls[first.call].arguments["path"])
    lines = (PACKAGE.parent / path).read_text().split("\n")
    assert first.text.split("\n")[4] == f"   5  {lines[4]}".rstrip()
    assert first.text == bench.run("read_file", calls[first.call].arguments)
    checks = [m.text for m in results if calls[m.call].name == "run_checks"]
    assert "limit is 100" in checks[0]  # the edit that broke the rule, and its repair
    assert len(checks[1].split("\n")) == len(checks[0].split("\n")) - 1


def test_nothing_is_written_to_disk(tmp_path: Path) -> None:
    copy = tmp_path / "shadow_reader"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    make_recording(copy)
    assert before == {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}


def test_sources_that_cannot_carry_a_session_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is no folder"):
        make_recording(tmp_path / "absent")
    (tmp_path / "short.py").write_text('"""Short."""\n')
    with pytest.raises(RecordError, match=r"has 0 Python files .* at least 4 are needed"):
        make_recording(tmp_path)


def test_odd_sources_make_a_session_too(tmp_path: Path) -> None:
    body = "\n".join(f"def f{n}() -> int:\n    return {n}\n\n" for n in range(20))
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.py").write_text(f'"""File {name}."""\n\n{body}')
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "huge.py").write_text("#" * 300_000)
    held = make_recording(tmp_path)
    assert held.turns >= 20
    assert any("broken.py: does not parse" in message.text for message in held.messages)
    assert not any("huge.py" in message.text for message in held.messages)


def test_mistakes_of_the_caller_are_told_in_words() -> None:
    bench = Workbench(PACKAGE)
    path = f"{PACKAGE.name}/clock.py"
    assert bench.run("read_file", {"path": "no.py"}) == "error: no file 'no.py'"
    twice = bench.run("edit_file", {"path": path, "old": "def wall", "new": "def w"})
    assert twice == f"error: the old text stands 3 times in {path}, nothing was changed"
    assert "0 times" in bench.run("edit_file", {"path": path, "old": "absent", "new": ""})
    everywhere = {"path": path, "old": "def wall", "new": "def w", "everywhere": True}
    assert bench.run("edit_file", everywhere) == f"{path}: 3 places changed"
    assert bench.run("write_file", {"path": "x.py", "text": "y"}) == "x.py: created, 1 characters"
    assert bench.run("outline", {"path": "x.py"}) == "no functions"
