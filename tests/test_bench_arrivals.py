"""The bench of arrivals: what a request waits for, out of a real run and out of a journal."""

from __future__ import annotations

import json

import pytest

from bench.arrivals import main, waits_of


def test_waits_are_summed_up_by_nearest_rank() -> None:
    found = waits_of("library", [0.0, 0.01, 0.02, 0.03], [0.04, 0.02])
    assert (found.arrivals, found.waited) == (4, 3)
    assert (found.p50, found.p90, found.p99, found.max) == (10.0, 30.0, 30.0, 30.0)
    assert (found.chunk_p50, found.chunk_max) == (20.0, 40.0)


def test_a_short_run_of_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--arrivals", "3", "--json"])
    body = json.loads(capsys.readouterr().out)
    assert [(row["way"], row["arrivals"]) for row in body["rows"]] == [
        ("library", 3),
        ("server", 3),
    ]
    for row in body["rows"]:
        assert 0 <= row["p50"] <= row["p99"] <= row["max"]
        assert row["chunk_max"] > 0


def test_no_arrivals_are_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--arrivals", "0"])
