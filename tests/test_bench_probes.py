"""The bench of probes: every size it was told, with something learned in it."""

from __future__ import annotations

import json

import pytest

from bench.probes import main


def test_a_small_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    size = ["--labels", "300", "--sessions", "10", "--hidden", "16,32", "--classes", "2,3"]
    main([*size, "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["hidden"], row["classes"]) for row in rows] == [(16, 2), (16, 3), (32, 2), (32, 3)]
    for row in rows:
        assert row["accuracy"] > row["constant"] + 0.1
        assert row["fit_s"] > 0
        assert row["classify_ms"] > 0
        assert row["file_bytes"] > 4 * row["hidden"] * (row["classes"] + 2)
    main(size)
    assert len(capsys.readouterr().out.splitlines()) == 3 + 4
