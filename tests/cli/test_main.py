from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shadow_reader.cli.options import base_url
from shadow_reader.cli.output import ExitCode
from tests.cli.conftest import environment, run

COMMANDS = ("serve", "demo", "feed", "ask", "status", "journal", "rebuild")
HEAVY = ("torch", "aiohttp", "numpy", "pydantic", "tokenizers", "safetensors")


def test_help_names_every_command_setting_and_exit_code() -> None:
    found = run("--help")
    assert found.code == ExitCode.OK
    for word in (*COMMANDS, "QWEN38_SHADOW_MODEL", "--config", "Exit codes", "130 interrupted"):
        assert word in found.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    found = run(name, "--help")
    assert found.code == ExitCode.OK
    assert "--json" in found.out or name == "journal"
    assert "Exit codes" in found.out


def test_help_imports_nothing_heavy() -> None:
    """The reason why ``--help`` is quick; a bound on its time would fail on a busy machine."""
    program = (
        "import sys; sys.argv = ['shadow-reader', '--help']\n"
        "from shadow_reader.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr.strip() == "[]"


def test_no_command_shows_the_help() -> None:
    found = run()
    assert found.code == ExitCode.OK
    assert "Usage:" in found.out


def test_the_version_is_the_installed_one() -> None:
    assert run("--version").out.strip() == "0.1.0"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nothing"], "no such command 'nothing'"),
        (["status", "--nothing"], "no such option: --nothing"),
        (["--nothing"], "no such option: --nothing"),
        (["feed"], "missing argument 'file'"),
        (["ask", "s"], "give a question and its choices"),
        (["feed", "x", "--pace", "-1"], "'--pace'"),
        (["ask", "s", "q", "-c", "a", "--wait", "later"], "'later' is not one of"),
    ],
)
def test_wrong_usage_is_one_line_and_a_hint(words: list[str], why: str) -> None:
    found = run(*words)
    assert found.code == ExitCode.USAGE
    assert found.out == ""
    line, *hints = found.err.strip().splitlines()
    assert line.startswith("error: ")
    assert why in line.lower()
    assert all(hint.startswith("see ") for hint in hints)


def test_wrong_usage_with_json_is_an_object() -> None:
    found = run("status", "--json", "--nothing")
    assert (found.code, found.err) == (ExitCode.USAGE, "")
    assert found.json["error"]["code"] == "usage"
    assert "--nothing" in found.json["error"]["message"]


def test_settings_that_are_wrong_stop_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shadow.toml"
    file.write_text("port = 'many'\nnothing = 1\n")
    found = run("--config", file, "status", "--json")
    assert found.code == ExitCode.USAGE
    keys = [problem["key"] for problem in found.json["error"]["details"]["problems"]]
    assert keys == ["port", "nothing"]
    monkeypatch.setenv("QWEN38_SHADOW_NOTHING", "1")
    found = run("status")
    assert found.code == ExitCode.USAGE
    assert found.err.startswith("error: ")
    assert "QWEN38_SHADOW_NOTHING" in found.err


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    found = run("--config", tmp_path / "nothing.toml", "status")
    assert found.code == ExitCode.USAGE
    assert "cannot read" in found.err


def test_no_server_answers() -> None:
    for words in (["status"], ["ask", "s", "q", "-c", "a", "-c", "b"], ["journal", "list"]):
        found = run(*words, "--url", "http://127.0.0.1:1")
        assert (found.code, found.out) == (ExitCode.UNREACHABLE, "")
        assert found.err.startswith("error: http://127.0.0.1:1 does not answer")
        assert len(found.err.splitlines()) == 1


def test_the_address_comes_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWEN38_SHADOW_HOST", "localhost")
    monkeypatch.setenv("QWEN38_SHADOW_PORT", "2")
    found = run("status", "--json")
    assert found.code == ExitCode.UNREACHABLE
    assert found.json["error"]["details"] == {"url": "http://localhost:2"}


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("::1", "http://[::1]:1"),
        ("box.lan", "http://box.lan:1"),
    ],
)
def test_a_bound_address_is_one_that_can_be_called(host: str, url: str) -> None:
    assert base_url(host, 1) == url
