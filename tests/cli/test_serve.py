from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from shadow_reader.cli.output import ExitCode
from shadow_reader.cli.serve import announce
from shadow_reader.config import Settings
from shadow_reader.http.serve import Address
from tests.cli.conftest import command, environment, run, run_process

PATIENCE_S = 60.0


@contextmanager
def serving(*words: object) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """A server in a process of its own, and what it said once it was ready."""
    process = subprocess.Popen(
        command("serve", "--json", *words),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, orjson.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str], number: signal.Signals) -> int:
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    return process.returncode


def test_a_server_says_where_it_is_and_ends_in_order(tmp_path: Path) -> None:
    journal, ready_file = tmp_path / "shadow.db", tmp_path / "ready.json"
    words = ("--port", "0", "--journal", journal, "--ready-file", ready_file)
    with serving(*words) as (process, said):
        assert said.keys() == {"address", "pid", "model", "journal"}
        assert (said["pid"], said["model"], said["journal"]) == (process.pid, None, str(journal))
        assert orjson.loads(ready_file.read_bytes())["url"] == said["address"]
        body = run("status", "--url", said["address"], "--json").json
        assert (body["state"], body["model"]) == ("off", None)
        assert end(process, signal.SIGTERM) == ExitCode.OK
    assert not ready_file.exists()
    assert not journal.with_name("shadow.db-wal").exists()


def test_settings_reach_the_server_from_every_source(tmp_path: Path) -> None:
    config = tmp_path / "shadow.toml"
    config.write_text('durability = "full"\npending_events = 64\n')
    journal = tmp_path / "by_environment.db"
    process = subprocess.Popen(
        command("--config", config, "serve", "--port", "0", "--token", "secret", "--json"),
        env=environment(JOURNAL=str(journal), PORT="1"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = orjson.loads(process.stdout.readline())
        assert said["journal"] == str(journal)
        url = ("--url", said["address"])
        assert run("status", *url).code == ExitCode.FAILED
        stats = run("status", *url, "--token", "secret", "--json").json["journal"]
        assert (stats["durability"], stats["pending_limit"]) == ("full", 64)
        assert end(process, signal.SIGINT) == ExitCode.OK
    finally:
        process.kill()
        process.communicate()


def test_a_journal_that_another_server_writes(tmp_path: Path) -> None:
    journal = tmp_path / "shadow.db"
    with serving("--port", "0", "--journal", journal) as (first, _said):
        second = run_process("serve", "--port", "0", "--journal", journal)
        assert second.code == ExitCode.JOURNAL
        assert second.out == ""
        assert second.err.startswith("error: ")
        assert str(first.pid) in second.err
        assert "Traceback" not in second.err
        assert run("journal", "verify", "--journal", journal, "--json").json["bad_seq"] is None


def test_a_journal_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "shadow.db").write_bytes(b"not a journal at all")
    found = run("serve", "--port", "0", "--journal", tmp_path / "shadow.db", "--json")
    assert (found.code, found.json["error"]["code"]) == (ExitCode.JOURNAL, "journal_format")


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("serve", "--port", port, "--journal", tmp_path / "shadow.db", "--json")
        found = run(*words)
    assert found.code == ExitCode.USAGE
    assert found.json["error"]["code"] == "bad_address"
    assert found.json["error"]["details"]["port"] == port


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--port", "70000"], "port"),
        (["--grid", "100"], "grid_ids"),
        (["--device", "abacus"], "device"),
        (["--durability", "maybe"], "durability"),
        (["--foreground", "never"], "foreground"),
        (["--gb", "0"], "cap_gb"),
        (["--threads", "0"], "threads"),
        (["--host", "0.0.0.0"], "set a token"),
    ],
)
def test_settings_out_of_range_stop_the_start(words: list[str], why: str, tmp_path: Path) -> None:
    found = run("serve", "--journal", tmp_path / "shadow.db", *words)
    assert (found.code, found.out) == (ExitCode.USAGE, "")
    assert found.err.startswith("error: bad settings")
    assert why in found.err
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_none(tmp_path: Path) -> None:
    words = ("--port", "0", "--journal", tmp_path / "shadow.db", "--model", tmp_path / "nothing")
    found = run("serve", *words, "--json")
    assert (found.code, found.json["error"]["code"]) == (ExitCode.USAGE, "bad_model")


def test_people_are_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(model="random:tiny", journal=Path("/x/shadow.db"))
    for model, words in (("random:tiny", "random:tiny"), ("", "only journaled")):
        chosen = settings.model_copy(update={"model": model})
        announce(chosen, Address("127.0.0.1", 4711, 99), as_json=False)
        text = capsys.readouterr().out
        for part in ("ready", "http://127.0.0.1:4711", words, "/x/shadow.db", "99"):
            assert part in text
