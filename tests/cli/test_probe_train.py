"""``probe train`` and ``probe eval`` from the command line, on journals that a runtime wrote."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from shadow_reader.cli.output import ExitCode
from shadow_reader.events.ids import Ids
from shadow_reader.shadow import torch_engine, vocabulary
from shadow_reader.shadow.probe_file import packed, unpacked
from tests.cli.conftest import Outcome, run
from tests.replay.probes.taught import SAYS, taught, teach
from tests.replay.probes.told import reading
from tests.replay.router.journals import GRID, IM_END, VOCABULARY, engine
from tests.shadow.models import SMALL

pytest.importorskip("sklearn")
LAST = ("--last", 8, "--layer", SMALL.layers)


@pytest.fixture(autouse=True)
def small_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands build is the engine that the journals were made with."""
    monkeypatch.setattr(torch_engine, "build_engine", lambda _settings: engine())
    monkeypatch.setattr(vocabulary, "load_vocabulary", lambda _spec: VOCABULARY)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return asyncio.run(taught(tmp_path))


def train(journal: Path, *words: object, name: str = "said") -> Outcome:
    given = words if "--out" in words else (*words, "--out", journal.parent / "out")
    return run("probe", "train", name, "--journal", journal, "--model", "random:tiny", *given)


def evaluate(journal: Path, *words: object) -> Outcome:
    return run("probe", "eval", "--journal", journal, "--model", "random:tiny", *words)


async def test_what_it_says_later_is_what_the_file_says_of_the_live_vector(tmp_path: Path) -> None:
    """Fed, labelled, trained, restarted: the vector is the running engine's."""
    journal, file = await taught(tmp_path), tmp_path / "probe"
    found = await asyncio.to_thread(train, journal, "--label", "kind", *LAST, "--out", file)
    assert found.code == ExitCode.OK
    probe, own, right = unpacked(file.read_bytes()), engine(), 0
    async with reading(tmp_path, own) as shadow:
        await teach(shadow, sessions=4, each=6, seed=9, prefix="new")
        for number in range(4):
            status = await shadow.wait_fresh(f"new{number}")
            live = await shadow.sessions.load(status.session)
            assert live.durable is not None
            ids = list(live.durable.known)
            line = len(ids) // GRID * GRID
            tail = Ids.of([*ids[line:], IM_END])
            vectors = own.vectors(
                status.session, tail=tail, layers=[SMALL.layers], last=8, line=line
            )
            said = probe.classes[max(range(3), key=probe.classify(vectors[0]).__getitem__)]
            right += SAYS[said] == ids[-2]
    assert right >= 3
    later = await asyncio.to_thread(evaluate, journal, "--file", file, "--later", "--json")
    assert (later.json["labels"], later.json["overlap"]) == (24, 0)
    assert later.json["metrics"]["accuracy"] > later.json["metrics"]["constant"]


def test_for_people(journal: Path, tmp_path: Path) -> None:
    file = tmp_path / "probe"
    words = ("--classes", "alpha,beta", "--seed", 7, "--out", file)
    found = train(journal, "--label", "kind", *LAST, *words)
    assert found.code == ExitCode.OK
    for said in ("constant", "by class", "left out", "of another class", "seed", "labels:kind"):
        assert said in found.out
    assert "better than the constant answer" in found.out.splitlines()
    assert f"{file.stat().st_size:,} bytes" in found.out
    found = evaluate(journal, "--file", file)
    assert found.code == ExitCode.OK
    assert "--later leaves them out" in found.out
    assert "are of classes that it does not have" in found.out


def test_the_same_again_is_the_same_file(journal: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two", "router", "seed")]
    for file, words in zip(
        files,
        (("--label", "kind"), ("--label", "kind"), ("--router",), ("--label", "kind", "--seed", 1)),
        strict=True,
    ):
        found = train(journal, *words, *LAST, "--out", file, "--no-snapshots", "--json")
        assert (found.code, found.json["file"]) == (ExitCode.OK, str(file))
        assert (found.json["labels"], found.json["sessions"]) == (60, 6)
    one, two, router, seed = (file.read_bytes() for file in files)
    assert one == two
    assert unpacked(one).source == "labels:kind"
    assert unpacked(router).source == "router"
    assert seed != one
    own = evaluate(journal, "--file", files[0], "--json").json
    assert (own["source"], own["labels"], own["overlap"]) == ("labels:kind", 60, 60)
    other = evaluate(journal, "--file", files[0], "--router", "--session", "s2", "--json").json
    assert (other["source"], other["labels"], other["sessions"]) == ("router", 10, 1)


def test_refusals_come_before_a_model_is_loaded(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_settings: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(torch_engine, "build_engine", never)
    found = train(journal, "--label", "kind", "--session", "s1", "--json")
    assert (found.code, found.json["error"]["code"]) == (ExitCode.USAGE, "cannot_train")
    assert sum(found.json["error"]["details"]["found"].values()) == 10
    found = train(journal, "--label", "mood", "--json")
    assert (found.code, found.json["error"]["code"]) == (ExitCode.FAILED, "not_found")
    assert "dice@tests 60, kind@tests 60" in found.json["error"]["message"]
    found = train(journal, "--label", "kind", name="said ")
    assert (found.code, "blank" in found.err) == (ExitCode.USAGE, True)
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    found = train(journal, "--label", "kind", "--json")
    assert (found.code, found.json["error"]["code"]) == (ExitCode.USAGE, "missing_extra")


def test_wrong_usage(journal: Path, tmp_path: Path) -> None:
    label = ("--label", "kind")
    for words in (
        (),
        ("--router", *label),
        ("--router", "--source", "tests"),
        (*label, "--decided-only"),
        (*label, "--classes", "alpha"),
        (*label, "--layer", 99),
        (*label, "--last", 0),
        (*label, "--suffix", ""),
        (*label, "--out", tmp_path / "no" / "file"),
        (*label, "--since", "yesterday"),
    ):
        assert train(journal, *words).code == ExitCode.USAGE, words
    assert run("probe", "train", "x", "--journal", journal, *label).code == ExitCode.USAGE
    assert evaluate(journal).code == ExitCode.USAGE
    assert evaluate(journal, "--file", tmp_path / "none").code == ExitCode.USAGE
    assert train(tmp_path / "none.db", *label).code == ExitCode.JOURNAL


def test_a_file_is_what_the_library_packs(journal: Path, tmp_path: Path) -> None:
    file = tmp_path / "probe"
    train(journal, "--label", "kind", *LAST, "--suffix", "<|im_end|>\n", "--out", file)
    probe = unpacked(file.read_bytes())
    assert list(probe.suffix) == [IM_END, 10]
    assert packed(probe) == file.read_bytes()
