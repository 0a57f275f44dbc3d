"""The A/B bench: its statistics, the streams it reads, and one short run of everything."""

from __future__ import annotations

import json
import random
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from bench.ab import main
from bench.ab_statistics import LEAST_PAIRS, Difference, Run, compare, judge
from bench.ab_stream import MADE_UP, Answer, Upstream, UpstreamError, ids_of_line
from bench.standin import paced, weights_work


def runs(*pairs: tuple[float, float]) -> list[Run]:
    found = []
    for off, on in pairs:
        found += [Run("off", 100, 1.0, off), Run("on", 100, 1.1, on)]
    return found


def test_medians_and_paired_differences() -> None:
    result = compare(runs((40.0, 39.0), (20.0, 19.8), (10.0, 9.7)), seed=1)
    assert (result.rate_off, result.rate_on) == (20.0, 19.8)
    assert result.rate_change.pairs == pytest.approx((-0.025, -0.01, -0.03))
    assert result.rate_change.median == pytest.approx(-0.025)
    assert result.rate_change.low == pytest.approx(-0.03)
    assert result.rate_change.high == pytest.approx(-0.01)
    assert result.ttft_change_s.median == pytest.approx(0.1)


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=8))
def test_the_order_of_pairs_changes_no_median(pairs: list[tuple[float, float]]) -> None:
    mixed = pairs[:]
    random.Random(3).shuffle(mixed)
    first, second = (compare(runs(*one), seed=1, draws=50) for one in (pairs, mixed))
    assert first.rate_change.median == pytest.approx(second.rate_change.median)
    assert first.rate_change.low <= first.rate_change.median <= first.rate_change.high


def test_arms_that_make_no_pairs_are_refused() -> None:
    for bad in ([], runs((1.0, 2.0))[:1]):
        with pytest.raises(ValueError, match="make no pairs"):
            compare(bad, seed=1)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.025, -0.01, "passed"),
        (-0.03, 0.02, "passed"),
        (-0.05, -0.031, "missed"),
        (-0.05, -0.01, "too few runs to tell"),
    ],
)
def test_a_gate_inside_the_interval_is_neither_passed_nor_missed(
    low: float, high: float, verdict: str
) -> None:
    pairs = (0.0,) * LEAST_PAIRS
    assert judge(Difference((low + high) / 2, low, high, pairs), 0.03) == verdict
    assert judge(Difference(low, low, high, pairs[1:]), 0.03) == "too few runs to tell"


@pytest.mark.parametrize(
    ("chunk", "found"),
    [
        ({"choices": [{"index": 0, "text": "a", "token_ids": [5, 6]}]}, ([5, 6], False)),
        ({"choices": [{"delta": {"content": ""}, "token_ids": [5]}]}, ([5], False)),
        ({"choices": [{"delta": {"content": "x"}}]}, ([MADE_UP], True)),
        ({"choices": [{"delta": {"reasoning": "x"}}]}, ([MADE_UP], True)),
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, None),
        ({"choices": [], "usage": {"completion_tokens": 3}}, None),
        ({"index": 0, "content": "x", "tokens": [9], "stop": False}, ([9], False)),
        ({"index": 0, "content": "x", "tokens": [], "stop": False}, ([MADE_UP], True)),
    ],
)
def test_ids_are_found_in_what_servers_stream(chunk: dict[str, Any], found: object) -> None:
    assert ids_of_line(b"data: " + json.dumps(chunk).encode() + b"\n") == found


def test_lines_without_ids_and_broken_ones() -> None:
    for line in (b"\n", b": ping\n", b"event: x\n", b"data: [DONE]\n", b"data:\n"):
        assert ids_of_line(line) is None
    for line, said in ((b"data: {", "no JSON"), (b'data: {"error": "oom"}', "says: oom")):
        with pytest.raises(UpstreamError, match=said):
            ids_of_line(line)


def test_a_stand_in_of_weights_reads_them_all_and_is_paced() -> None:
    work = weights_work("tiny", "cpu")
    pace = paced(work, 50.0, 1000.0)
    assert pace.decode_units >= 1
    assert pace.decode_units * pace.unit_s == pytest.approx(0.02, rel=0.5)
    assert pace.prefill_units * pace.unit_s == pytest.approx(0.001)


@pytest.mark.slow
def test_a_short_run_of_everything(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--standin", "cpu", "--runs", "2", "--prompt", "1100", "--output", "30", "--json"]
    code = main([*words, "--rate", "60", "--prefill", "4000", "--pause", "0.1"])
    body = json.loads(capsys.readouterr().out)
    assert code == {"passed": 0, "missed": 1, "too few runs to tell": 3}[body["verdict"]]
    assert [run["arm"] for run in body["runs"]] == ["off", "on", "on", "off"]
    assert all(run["ids"] == 30 for run in body["runs"])
    assert body["read_ids"] > 0
    assert body["made_up"] is False


async def ask(chunks: list[bytes], status: int = 200) -> Answer:
    """One request for four ids of a server that streams these."""

    async def completions(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for chunk in chunks:
            await response.write(b"data: " + chunk + b"\n\n")
        return response

    told: list[str] = []

    class Shadow:
        async def prompt(self, *_: object, **__: object) -> None:
            told.append("prompt")

        async def output(self, *_: object, **__: object) -> None:
            told.append("output")

        async def end(self, *_: object) -> None:
            told.append("end")

    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    async with TestServer(app) as server:
        upstream = Upstream(str(server.make_url("/v1")), "m")
        try:
            return await upstream.ask([1], 4, shadow=cast("Any", Shadow()), session="s", turn="t")
        finally:
            assert (told[0], told[-1]) == ("prompt", "end"), "the turn is ended whatever comes"


def ids(*found: int) -> bytes:
    return json.dumps({"choices": [{"text": "x", "token_ids": list(found)}]}).encode()


async def test_a_whole_answer_and_its_rate_behind_the_first_piece() -> None:
    answer = await ask([ids(1, 2, 3), ids(4), b"[DONE]"])
    assert (answer.ids, answer.first) == ([1, 2, 3, 4], 3)
    answer.ttft_s, answer.last_s = 1.0, 1.5
    assert answer.rate == 2.0


@pytest.mark.parametrize(
    ("chunks", "status", "said"),
    [
        ([ids(1), ids(2)], 200, "streamed 2 ids, not 4"),
        ([], 200, "streamed 0 ids, not 4"),
        ([b"nonsense"], 200, "no JSON"),
        ([ids(1)], 500, "answered 500"),
    ],
)
async def test_a_broken_answer_says_what_is_missing(
    chunks: list[bytes], status: int, said: str
) -> None:
    with pytest.raises(UpstreamError, match=said):
        await ask(chunks, status)


@pytest.mark.slow
def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--upstream", "http://127.0.0.1:9/v1", "--runs", "1", "--pause", "0.01"]) == 2
    assert "127.0.0.1:9/v1 broke off" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--standin", "cpu", "--upstream", "x"], ["--runs", "0"]])
def test_what_makes_no_run_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
