"""``shadow-reader replay ledger``: policies side by side, and what the figures mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shadow_reader.cli.main import app
from shadow_reader.replay.ledger import write_ledger
from tests.replay.simulation.ledgers import made

POLICIES = ("--policy", "original", "--policy", "events:grid=256")


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    path = tmp_path / "usage.jsonl"
    write_ledger(path, made(1).turns)
    return str(path)


def test_json_has_the_policies_in_the_order_they_were_asked_for(ledger: str) -> None:
    words = ["replay", "ledger", ledger, *POLICIES, "--idle-only", "--sessions", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    assert (body["ledger"], body["sessions"], body["turns"]) == ("usage.jsonl", 6, 90)
    assert [row["name"] for row in body["policies"]] == ["original", "events:grid=256", "yours"]
    for row in body["policies"]:
        assert 0 <= row["interval"]["low"] <= row["fresh"] <= row["interval"]["high"] <= 1
        assert row["p50"] <= row["p90"] <= row["max"]
        assert sum(one["turns"] for one in row["sessions"].values()) == 90
    assert body["policies"][0]["share_used"] > body["policies"][2]["share_used"] == 0
    assert body["conventions"]["turns_without_first"] == 0
    assert "published" not in body


def test_the_made_ledger_stands_beside_the_published_figures() -> None:
    done = CliRunner().invoke(app, ["replay", "ledger", "opencode-41", "--policy", "original-idle"])
    assert done.exit_code == 0, done.output
    assert "published" in done.stdout
    assert "49,000" in done.stdout
    assert "nearest rank" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "none"], "there are original-idle"),
        (["--share", "1.5"], "share of policy 'yours' must be from 0 to 1"),
        (["--idle-only", "--share", "0.1"], "give one of them"),
        (["--grid", "0"], "grid of policy 'yours' must be from 1"),
    ],
)
def test_what_makes_no_policy_is_refused(ledger: str, words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["replay", "ledger", ledger, *words])
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_a_ledger_that_is_not_there_is_refused() -> None:
    done = CliRunner().invoke(app, ["replay", "ledger", "nobody", "--policy", "events"])
    assert done.exit_code == 2
    assert "no ledger is called 'nobody'" in done.stderr
