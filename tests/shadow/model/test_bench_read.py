"""The bench runs and says what its readers rely on."""

from __future__ import annotations

import json

import pytest

from bench.read import main


def test_bench_read_against_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--depths", "0,700", "--pairs", "1", "--against", "transformers", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [row["depth"] for row in told["rows"]] == [0, 700]
    for row in told["rows"]:
        assert row["ms"] > row["floor_ms"] > 0
        assert row["ratio"] == pytest.approx(row["hf_ms"] / row["ms"])
    assert told["machine"]["torch"]


def test_bench_read_alone_ends_in_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--depths", "0", "--pairs", "1"])
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert last[0] == "0"
    assert last[-2:] == ["-", "-"]
