"""The bench of writing runs and says what its readers rely on."""

from __future__ import annotations

import json

import pytest

from bench.decode import main


def test_bench_decode_tells_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--depths", "512", "--tail", "9", "--prompt", "5", "--ids", "4", "--repeats", "1"]
    main([*words, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [row["depth"] for row in told["rows"]] == [512]
    for row in told["rows"]:
        assert row["first_ms"] > 0
        assert row["id_ms"] > row["floor_ms"] > 0
    main(words)
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "512"


def test_one_id_is_no_pace() -> None:
    with pytest.raises(SystemExit):
        main(["--ids", "1"])
