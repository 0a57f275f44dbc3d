"""``shadow-reader replay ledger``: policies side by side, and what the figures mean."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shadow_reader.cli.ledger_plot import curves, steps
from shadow_reader.cli.main import app
from shadow_reader.replay.ledger import write_ledger
from shadow_reader.replay.simulation.policy import PRESETS
from shadow_reader.replay.simulation.simulate import simulate
from tests.fakes import GRID
from tests.replay.simulation.ledgers import made
from tests.runtimes import runtime, whole_turn

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


async def journal_of(folder: Path) -> Path:
    """What a service leaves that followed a session for three turns."""
    async with runtime(folder, foreground="lease") as shadow:
        await shadow.prompt("s", list(range(50)), turn="t1")
        await shadow.output("s", "t1", offset=0, ids=[7] * 20)
        await shadow.end("s", "t1")
        await shadow.wait_fresh("s")
        await whole_turn(shadow, "s", [*range(50), *[7] * 20, *range(60)], "t2")
        await whole_turn(shadow, "s", [*range(30), *[1] * 99], "t3")
        await shadow.prompt("s", [1, 2, 3], turn="t4")
    return folder / "shadow.db"


def test_a_journal_is_replayed_beside_what_it_says_itself(tmp_path: Path) -> None:
    path = str(asyncio.run(journal_of(tmp_path)))
    words = ["replay", "ledger", path, "--policy", "events"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    assert (body["ledger"], body["sessions"], body["turns"]) == ("shadow.db", 1, 3)
    measured = body["measured"]
    assert (measured["grid"], measured["unfinished"]) == (GRID, 1)
    assert 0 <= measured["fresh"] <= 1
    assert [row["name"] for row in body["policies"]] == ["events", "as-served"]
    served = body["policies"][1]["policy"]
    assert served["grid"] == GRID
    assert served["read_ms_per_1000"] == pytest.approx(measured["read_ms_per_1000"])
    shown = CliRunner().invoke(app, words)
    assert "measured" in shown.stdout
    assert "by the journal" in shown.stdout


def test_a_plot_is_drawn(ledger: str, tmp_path: Path) -> None:
    words = ["replay", "ledger", ledger, *POLICIES, "--plot"]
    done = CliRunner().invoke(app, [*words, str(tmp_path / "behind.png")])
    assert done.exit_code == 0, done.output
    image = (tmp_path / "behind.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    assert len(image) > 20_000
    for bad, said in (("no/behind.png", "there is no folder"), ("behind.jpeg", "writes .png")):
        refused = CliRunner().invoke(app, [*words, str(tmp_path / bad)])
        assert refused.exit_code == 2
        assert said in " ".join(refused.stderr.split())


def test_without_matplotlib_a_plot_is_refused_before_anything_is_simulated(
    ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    words = ["replay", "ledger", ledger, "--plot", str(tmp_path / "behind.png")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "shadow-reader[plot]" in done.stderr


def test_what_is_drawn_is_what_was_simulated() -> None:
    found = simulate(made(1), PRESETS["events"])
    drawn = curves(made(1), found)
    assert {curve.session: list(curve.behind) for curve in drawn} == found.by_session()
    assert all(list(curve.hours) == sorted(curve.hours) for curve in drawn)
    assert min(curve.hours[0] for curve in drawn) == 0
    distribution = steps("events", found.values())
    assert list(distribution.behind) == sorted(found.values())
    assert distribution.share[-1] == 1
    pairs = zip(distribution.behind, distribution.share, strict=True)
    share = max(share for behind, share in pairs if behind < 512)
    assert share == found.figures().fresh


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
