"""The bench of questions runs and says what its readers rely on."""

from __future__ import annotations

import json

import pytest

from bench.ask import main


def test_bench_ask_tells_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--depths", "512", "--tail", "9", "--question", "5", "--repeats", "1", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [row["depth"] for row in told["rows"]] == [512]
    for row in told["rows"]:
        assert row["ask_ms"] > 0
        assert row["forward_ms"] > row["floor_ms"] > 0


def test_bench_ask_ends_in_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--depths", "600", "--repeats", "1"])
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "512"
