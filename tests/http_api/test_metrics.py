"""``/metrics``: parses, says what is true, keeps its labels bounded, and belongs to one runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson
from prometheus_client.parser import text_string_to_metric_families

from shadow_reader.http.table import ROUTES
from tests.http_api.fake_engine import GRID, FakeEngine
from tests.http_api.serving import Served, lines, serving, until

SAMPLE_LIMIT = 400
"""Lines of the text without requests and errors, which are bounded by routes and codes."""


class Scrape:
    """The metrics of one look: types by name, values by name and labels."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.types = {family.name: family.type for family in families}
        self.helps = {family.name: family.documentation for family in families}
        assert len(self.types) == len(families), "a family stands twice"
        samples = [sample for family in families for sample in family.samples]
        self.values = {
            (sample.name, frozenset(sample.labels.items())): sample.value for sample in samples
        }
        assert len(self.values) == len(samples), "a sample stands twice"

    def __call__(self, name: str, **labels: str) -> float:
        return self.values[f"shadow_reader_{name}", frozenset(labels.items())]

    def labels(self, name: str) -> set[frozenset[tuple[str, str]]]:
        return {labels for found, labels in self.values if found == f"shadow_reader_{name}"}


async def scrape(served: Served) -> Scrape:
    async with served.http.get(served.address.url + "/metrics") as reply:
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return Scrape(await reply.text())


async def read_and_asked(served: Served) -> None:
    """One session: a turn of two chunks and three output ids, a fresh question about it."""
    await served.ok("POST", "/v1/sessions/s/turns", {"turn": "t", "ids": [1] * (2 * GRID)})
    await served.ok("POST", "/v1/sessions/s/turns/t/output", {"offset": 0, "ids": [2, 3, 4]})
    await served.ok("POST", "/v1/sessions/s/turns/t/end", {})
    await served.ok("GET", "/v1/sessions/s?wait=fresh")
    asked = {"session": "s", "question": "Well?", "choices": ["a", "b"]}
    await served.ok("POST", "/v1/conductor/shadow/ask", asked)


async def test_values_after_a_known_history(asking: Served) -> None:
    await read_and_asked(asking)
    found = await scrape(asking)
    assert found("state", state="ready") == 1
    assert found("state", state="failed") == found("state", state="closing") == 0
    assert found("sessions") == found("sessions_fresh") == 1
    assert (found("known_ids"), found("behind_ids")) == (2 * GRID + 3, 3)
    assert found("sessions_running") == 0
    assert (found("prompt_ids_total"), found("output_ids_total")) == (2 * GRID, 3)
    assert found("turns_ended_total", reason="stop") == 1
    assert found("session_events_total", kind="output") == 1
    assert found("read_chunks_total", window="idle") == 2
    assert found("read_ids_total", window="idle") == 2 * GRID
    assert found("questions_asked_total") == found("questions_answered_total") == 1
    assert found("question_lag_seconds_count") == found("question_forward_seconds_count") == 1
    assert found("journal_events_total") == found("journal_last_seq") >= 7
    assert found("journal_bytes") > found("journal_wal_bytes") > 0
    assert found("memory_cap_bytes") == 1 << 30
    assert found("memory_bytes") == found("memory_peak_bytes") == 4 * 2 * GRID
    assert found("snapshot_cap_bytes") == asking.runtime.settings.disk_gb * 1024**3
    assert found("snapshot_sessions") == found("spills_total") == 0
    assert found("engine_info", **engine_labels(found))
    assert found("bound_used", bound="requests") == 1, "this very look"
    assert found("bound_limit", bound="requests") == asking.runtime.settings.requests
    bounds = {limit.name for limit in asking.runtime.bounds.limits()}
    for name in ("bound_used", "bound_limit"):
        assert found.labels(name) == {frozenset({("bound", bound)}) for bound in bounds}


def engine_labels(found: Scrape) -> Mapping[str, str]:
    (labels,) = found.labels("engine_info")
    assert {"engine", "model", "weights", "grid", "dtype", "device", "build"} <= dict(labels).keys()
    return dict(labels)


async def test_names_say_their_types_and_every_one_has_a_help_text(asking: Served) -> None:
    await read_and_asked(asking)
    async with asking.http.get(asking.address.url + "/metrics") as reply:
        raw = await reply.text()
    found = Scrape(raw)
    assert set(found.types.values()) == {"counter", "gauge", "histogram"}
    for name, kind in found.types.items():
        assert name.startswith("shadow_reader_")
        assert found.helps[name].endswith(".")
        assert (f"# TYPE {name}_total counter" in raw) == (kind == "counter")
        assert kind != "histogram" or name.endswith("_seconds")


async def test_counters_never_fall_also_when_a_session_is_erased(asking: Served) -> None:
    await read_and_asked(asking)
    before = await scrape(asking)
    await asking.ok("DELETE", "/v1/sessions/s")
    after = await scrape(asking)
    assert (before("sessions"), after("sessions")) == (1, 0)
    for (name, labels), value in before.values.items():
        if name.endswith(("_total", "_count", "_bucket", "_sum")):
            assert after.values[name, labels] >= value, name
    assert after("session_events_total", kind="session.erased") == 1


async def test_requests_are_counted_by_route_and_never_by_path(served: Served) -> None:
    for name in ("a", "b", "c"):
        await served.ok("POST", f"/v1/sessions/{name}/turns", {"ids": [1]})
        await served.call("GET", f"/nowhere/{name}")
        await served.call("PATCH", f"/v1/sessions/{name}")
    await served.call("GET", "/v1/sessions/none")
    found = await scrape(served)
    turns = "/v1/sessions/{session}/turns"
    session = "/v1/sessions/{session}"
    assert found("http_requests_total", method="POST", route=turns, status="200") == 3
    assert found("http_requests_total", method="GET", route=session, status="404") == 1
    assert found("http_requests_total", method="GET", route="other", status="404") == 3
    assert found("http_requests_total", method="other", route="other", status="405") == 3
    assert found("http_request_seconds_count", route=turns) == 3
    assert found("errors_total", code="not_found") == 4
    assert found("errors_total", code="method_not_allowed") == 3
    routes = {dict(labels)["route"] for labels in found.labels("http_requests_total")}
    assert routes <= {"other", *(route.path for route in ROUTES)}


async def test_errors_before_there_is_a_request_are_counted_too(served: Served) -> None:
    expecting = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nExpect: a-miracle\r\n\r\n"
    for request in (b"nonsense\r\n\r\n", expecting):
        reader, writer = await served.connect()
        writer.write(request)
        assert await reader.readline()
        writer.close()
    found = await scrape(served)
    assert found("errors_total", code="bad_request") == 1
    assert found("errors_total", code="expectation_failed") == 1


async def test_a_feed_that_is_cut_is_counted_as_cut(served: Served) -> None:
    _, writer = await served.connect()
    writer.write(b"POST /v1/feed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    await until(lambda: served.used("streams") == 1, "the feed")
    writer.transport.abort()
    await until(lambda: served.used("streams") == 0, "the end of the feed")
    found = await scrape(served)
    assert found("http_requests_total", method="POST", route="/v1/feed", status="cut") == 1


async def test_lines_of_feeds_are_counted_by_what_became_of_them(served: Served) -> None:
    prompt = {"kind": "prompt", "session": "s", "turn": "t", "ids": [1]}
    outputs = [
        {"kind": "output", "session": "s", "turn": "t", "offset": offset, "ids": [2]}
        for offset in (0, 1, 2, 9)
    ]
    replies = await served.feed(lines(prompt, *outputs, {"kind": "end", "session": "x"}))
    assert [reply["ok"] for reply in replies] == [True, True, True, True, False, False]
    found = await scrape(served)
    assert found("feed_lines_total", outcome="accepted") == 4
    assert found("feed_lines_total", outcome="refused") == 2
    codes = [reply["error"]["code"] for reply in replies if not reply["ok"]]
    assert codes == ["conflict", "invalid_input"]
    assert [found("errors_total", code=code) for code in codes] == [1, 1]


async def test_a_thousand_names_add_no_sample(served: Served) -> None:
    await served.feed(lines({"kind": "prompt", "session": "s", "turn": "t", "ids": [1]}))
    before = await scrape(served)
    named = [
        {"kind": "prompt", "session": f"session {n}", "turn": f"turn {n}", "ids": [1]}
        for n in range(1000)
    ]
    await served.feed(lines(*named))
    after = await scrape(served)
    assert after("sessions") == 1001
    seen = {"/metrics"}  # the first look is a request that the second one counts
    added = after.values.keys() - before.values.keys()
    assert all(dict(labels).get("route") in seen for _, labels in added)
    assert len(after.values) < SAMPLE_LIMIT
    assert not any("session 7" in value for _, labels in after.values for _, value in labels)


async def test_two_runtimes_in_one_process_do_not_mix(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with serving(tmp_path / "one") as one, serving(tmp_path / "two") as two:
        await one.ok("POST", "/v1/sessions/s/turns", {"ids": [1, 2]})
        assert (await two.call("GET", "/v1/sessions/none"))[0] == 404
        first, second = await scrape(one), await scrape(two)
    assert (first("prompt_ids_total"), second("prompt_ids_total")) == (2, 0)
    assert (first("sessions"), second("sessions")) == (1, 0)
    assert first.labels("errors_total") == set()
    assert second("errors_total", code="not_found") == 1


async def test_without_a_model_there_are_no_figures_of_one(served: Served) -> None:
    found = await scrape(served)
    assert found("state", state="off") == 1
    assert not found.labels("memory_bytes") | found.labels("engine_info")
    assert found("read_chunks_total", window="idle") == 0, "a counter is there before it counts"


async def test_who_waits_for_the_device_is_seen(asking: Served, engine: FakeEngine) -> None:
    async with asking.runtime.lease.request():
        found = await scrape(asking)
    assert found("lease_holders", rank="request") == 1
    assert found("lease_holders", rank="reader") == found("lease_waiters", rank="request") == 0


async def test_a_token_guards_them(tmp_path: Path) -> None:
    async with serving(tmp_path, token="secret") as served:
        url = served.address.url + "/metrics"
        async with served.http.get(url) as reply:
            assert reply.status == 403
            assert orjson.loads(await reply.read())["error"]["code"] == "forbidden"
        async with served.http.get(url, headers={"Authorization": "Bearer secret"}) as reply:
            assert Scrape(await reply.text())("errors_total", code="forbidden") == 1
