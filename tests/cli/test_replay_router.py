"""``replay router`` from the command line, on journals that a real runtime wrote."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from shadow_reader.cli.output import ExitCode
from shadow_reader.shadow import torch_engine, vocabulary
from tests.cli.conftest import Outcome, run
from tests.replay.router.journals import GRID, VOCABULARY, engine, live, rewrite, some_ids, talk


@pytest.fixture(autouse=True)
def small_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command builds is the engine that the journals were made with."""
    monkeypatch.setattr(torch_engine, "build_engine", lambda _settings: engine())
    monkeypatch.setattr(vocabulary, "load_vocabulary", lambda _spec: VOCABULARY)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    asyncio.run(talk(tmp_path, 9))
    return tmp_path / "shadow.db"


def replay(journal: Path, *words: object) -> Outcome:
    return run("replay", "router", journal, "--model", "random:tiny", *words)


def test_the_control_and_its_exit_code(journal: Path) -> None:
    found = replay(journal, "--json")
    assert found.code == ExitCode.OK
    assert (found.json["verdict"], found.json["asked"]) == ("holds", 12)
    assert found.json["control"][0]["equal"] == 12
    people = replay(journal)
    assert people.code == ExitCode.OK
    assert people.out.splitlines()[-1] == "the control holds"
    assert "constant" in people.out
    rewrite(
        journal, "answer", lambda data: data.replace('"probabilities":[0.', '"probabilities":[1.')
    )
    people = replay(journal)
    assert people.code == ExitCode.FAILED
    assert people.out.splitlines()[-1] == "the control FAILS"


def test_every_way_of_asking(journal: Path, tmp_path: Path) -> None:
    words = tmp_path / "short.toml"
    words.write_text('question = "Which?"')
    found = replay(
        *(journal, "--wording", words, "--wording", "labels", "--classes", "chat,debug"),
        *("--calibrate", "--behind", 0, "--no-snapshots", "--json"),
    )
    assert found.json["variants"] == [
        *("journal", "same", "fewer classes", "short", "labels"),
        *("fewer classes, calibrated", "short, calibrated", "labels, calibrated"),
    ]
    assert found.json["restored"] == 0
    turns = found.json["figures"]["turns"]
    assert all(one["agreement"]["n"] == turns for one in found.json["figures"]["variants"])
    fewer = replay(journal, "--decided-only", "--json")
    assert 0 < fewer.json["asked"] < 12


def test_a_profile_s_wording_gives_the_same_answers(journal: Path, tmp_path: Path) -> None:
    settings = tmp_path / "shadow.toml"
    settings.write_text(
        """
        [profiles.coding.shadow.router_classes]
        code_edit = "changes to code"
        chat = ""
        debug = "finding a fault"
        """
    )
    words = ("replay", "router", journal, "--model", "random:tiny", "--json")
    found = run("--config", settings, *words, "--profile", "coding")
    assert found.code == ExitCode.OK
    same, coding = found.json["figures"]["variants"][1:]
    assert same["confusion"] == coding["confusion"]
    assert run("--config", settings, *words, "--profile", "other").code == ExitCode.USAGE


def test_wrong_usage(journal: Path, tmp_path: Path) -> None:
    assert run("replay", "router", journal).code == ExitCode.USAGE
    assert replay(journal, "--classes", "chat").code == ExitCode.USAGE
    assert replay(journal, "--ordinary", "--decided-only").code == ExitCode.USAGE
    assert replay(journal, "--wording", "labels", "--wording", "labels").code == ExitCode.USAGE
    assert replay(journal, "--wording", tmp_path / "none.toml").code == ExitCode.USAGE
    assert replay(journal, "--where", "x=1").code == ExitCode.USAGE
    assert replay(tmp_path / "none.db").code == ExitCode.JOURNAL


def test_a_journal_without_the_router_s_answers(tmp_path: Path) -> None:
    async def plain() -> None:
        async with live(tmp_path) as shadow:
            await shadow.prompt("s", some_ids(random.Random(1), 3 * GRID), turn="t1")
            await shadow.end("s", "t1")
            await shadow.ask("s", "Well?", ["yes", "no"])

    asyncio.run(plain())
    found = replay(tmp_path / "shadow.db")
    assert found.code == ExitCode.FAILED
    assert "no answer to the router's question" in found.err
    assert replay(tmp_path / "shadow.db", "--ordinary", "--json").json["verdict"] == "holds"
