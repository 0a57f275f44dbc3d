"""The ledgers of the package: there, readable, and what their raw numbers say."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files

import pytest

from shadow_reader.errors import LedgerError
from shadow_reader.replay.ledger.shipped import SHIPPED, open_shipped
from shadow_reader.replay.ledger.summary import summary
from tests.replay.ledger.turns import RAW_LEDGERS


@pytest.mark.parametrize(
    ("name", "sessions", "turns", "gap_p50"),
    [
        ("opencode-41", 41, 1624, 0.31),
        ("opencode-recorded", 41, 975, 0.17),
        ("pi-recorded", 8, 1023, 0.01),
        ("claude-code-recorded", 281, 17_562, 0.33),
    ],
)
def test_each_is_a_ledger(name: str, sessions: int, turns: int, gap_p50: float) -> None:
    ledger = open_shipped(name)
    found = summary(ledger)
    assert (found.name, found.sessions, found.turns) == (name, sessions, turns)
    assert found.gap_s.p50 == pytest.approx(gap_p50, abs=0.05)
    assert f"{turns:,}" in SHIPPED[name].about
    assert (found.assumed == {}) == SHIPPED[name].made
    assert found.orphans == 0


def test_every_file_has_a_name_and_a_provenance() -> None:
    data = files("shadow_reader.replay.ledger") / "data"
    names = {file.name for file in data.iterdir() if file.name.endswith(".gz")}
    assert names == {f"{name}.jsonl.gz" for name in SHIPPED}
    provenance = (data / "PROVENANCE.md").read_text()
    assert all(f"`{name}`" in provenance for name in names)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(LedgerError, match="there are opencode-41, opencode-recorded"):
        open_shipped("opencode")


@pytest.mark.parametrize("kind", ["opencode", "pi", "claude_code"])
def test_recorded_ones_hold_the_raw_numbers(kind: str) -> None:
    raw = RAW_LEDGERS / f"ledger_{kind}.jsonl.gz"
    if not raw.exists():
        pytest.skip("the raw ledgers are not here")
    end = "gen_end_ms" if kind == "opencode" else "end_ms"
    with gzip.open(raw, "rt") as file:
        rows = [json.loads(line) for line in file]
    ours = open_shipped(f"{kind.replace('_', '-')}-recorded").turns
    said = {(r["session"], r[end], r["prompt"]) for r in rows}
    told = {(t.session, round(t.end_s * 1000), t.prompt_ids) for t in ours}
    assert told <= said
    assert len(rows) - len(ours) == (1 if kind == "pi" else 0)
