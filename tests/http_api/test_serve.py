"""The process: it says where it listens, ends in order on a signal, at once on a second."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from shadow_reader.config import Settings
from shadow_reader.http.errors import AddressError
from shadow_reader.http.serve import Address, run, serve

ROOT = Path(__file__).parents[2]
CODE = """
import json, pathlib, sys
from shadow_reader.config import load_settings
from shadow_reader.http.serve import run
run(load_settings(overrides=json.loads(sys.argv[1])),
    on_ready=lambda address: print(address.url, flush=True),
    ready_file=pathlib.Path(sys.argv[2]))
print("ended in order", flush=True)
"""


@contextmanager
def service(folder: Path, **settings: Any) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    overrides = {"journal": str(folder / "shadow.db"), "port": 0, **settings}
    ready = folder / "ready.json"
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, json.dumps(overrides), str(ready)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process, json.loads(ready.read_text())
    finally:
        process.kill()
        process.communicate()


def post(url: str, path: str, body: Any) -> Any:
    with urlopen(Request(url + path, json.dumps(body).encode())) as reply:
        return json.load(reply)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with service(tmp_path) as (process, ready):
        assert ready["pid"] == process.pid
        assert ready["url"] == f"http://127.0.0.1:{ready['port']}"
        accepted = post(ready["url"], "/v1/sessions/s/turns", {"ids": [1]})
        assert accepted["known"] == 1
        process.send_signal(number)
        out, _ = process.communicate(timeout=20)
        assert process.returncode == 0
    assert out.split("\n") == [ready["url"], "ended in order", ""]
    assert not (tmp_path / "ready.json").exists()


def test_killed_it_has_everything_that_was_acknowledged(tmp_path: Path) -> None:
    with service(tmp_path) as (process, ready):
        for n in range(50):
            post(ready["url"], f"/v1/sessions/s{n}/turns", {"turn": "t", "ids": [n]})
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        (tmp_path / "ready.json").unlink()
    with service(tmp_path) as (_, ready):
        for n in range(50):
            again = post(ready["url"], f"/v1/sessions/s{n}/turns", {"turn": "t", "ids": [n]})
            assert again["seq"] is None


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """A feed whose client neither reads nor ends would hold up the orderly end for seconds."""
    with service(tmp_path) as (process, ready):
        with socket.create_connection(("127.0.0.1", ready["port"])) as client:
            client.sendall(
                b"POST /v1/feed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            assert client.recv(15) == b"HTTP/1.1 200 OK"
            process.send_signal(signal.SIGSTOP)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGCONT)
            process.wait(timeout=10)
        assert process.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)


def test_a_taken_port_is_a_typed_error_and_closes_the_runtime(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(journal=tmp_path / "shadow.db", port=taken.getsockname()[1])
        with pytest.raises(AddressError) as caught:
            run(settings)
        assert caught.value.details["port"] == settings.port
    run_briefly(settings)


def run_briefly(settings: Settings) -> None:
    found: list[Address] = []

    def ready(address: Address) -> None:
        found.append(address)
        os.kill(os.getpid(), signal.SIGTERM)

    run(settings, on_ready=ready)
    assert found[0].port == settings.port


def test_an_address_that_is_none(tmp_path: Path) -> None:
    settings = Settings(journal=tmp_path / "shadow.db", host="256.1.1.1", token="t", port=0)
    with pytest.raises(AddressError):
        run(settings)


def test_what_a_client_is_given() -> None:
    assert Address("127.0.0.1", 1, 2).url == "http://127.0.0.1:1"
    assert Address("::1", 1, 2).url == "http://[::1]:1"
    assert Address("0.0.0.0", 1, 2).url == "http://127.0.0.1:1"
    assert Address("::", 1, 2).url == "http://[::1]:1"
    assert Address("localhost", 1, 2).url == "http://localhost:1"


async def test_serve_gives_the_callers_errors_through(tmp_path: Path) -> None:
    def broken(_address: Address) -> None:
        raise LookupError("of the caller")

    settings = Settings(journal=tmp_path / "shadow.db", port=0)
    with pytest.raises(LookupError):
        await serve(settings, on_ready=broken, ready_file=tmp_path / "ready.json")
    assert not (tmp_path / "ready.json").exists()
