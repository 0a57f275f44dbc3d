"""``/metrics``: one runtime's counters and gauges in Prometheus' text format.

Law: every name, help text and label stands here, and nothing is counted here. Counters come from
the tally and the meter, which are fed as things happen; gauges are looked at when somebody asks.
No label names a session, and there is no registry of the process: two runtimes never mix.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final, TypeAlias, get_args

from aiohttp import hdrs, web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shadow_reader.events import types as t
from shadow_reader.events.codec import KINDS
from shadow_reader.http.api import Api
from shadow_reader.http.meter import Meter
from shadow_reader.shadow.lease import LeaseEntry, LeaseStatus, Rank
from shadow_reader.shadow.status import EngineStatus, ServiceState, Status
from shadow_reader.shadow.tally import Histogram, Tally

PREFIX: Final = "shadow_reader_"
MEDIA: Final = CONTENT_TYPE_PLAIN_0_0_4

Rows: TypeAlias = Iterable[tuple[Sequence[str], float]]
"""Label values, and the number they stand for."""

_KIND: Final = {cls: kind for kind, cls in KINDS.items()}


async def get_metrics(api: Api, _request: web.Request) -> web.StreamResponse:
    """Everything worth a plot or an alert."""
    status = await api.runtime.status(shown=0)
    text = metrics_text(status, api.runtime.sessions.tally, api.meter)
    return web.Response(body=text, headers={hdrs.CONTENT_TYPE: MEDIA})


def metrics_text(status: Status, tally: Tally, meter: Meter) -> bytes:
    """All metrics, as they stand, in the text format."""
    return generate_latest(_Metrics(status, tally, meter))


class _Metrics(Collector):
    def __init__(self, status: Status, tally: Tally, meter: Meter) -> None:
        self._status = status
        self._tally = tally
        self._meter = meter

    def collect(self) -> Iterator[Metric]:
        status, tally = self._status, self._tally
        yield from _service(status)
        yield from _journal(status, tally)
        yield from _sessions(status, tally)
        yield from _reader(tally)
        if status.model is not None:
            yield from _engine(status.model)
        yield from _snapshots(status, tally)
        yield from _questions(tally)
        yield from _lease(status.lease)
        yield from _bounds(status)
        yield from _http(self._meter)


def _service(status: Status) -> Iterator[Metric]:
    build = (_version(), platform.python_version())
    yield _gauge("build_info", "The running build.", [(build, 1)], ("version", "python"))
    yield _gauge("uptime_seconds", "Since the runtime started.", status.uptime_s)
    states = [((state,), float(state == status.state)) for state in get_args(ServiceState)]
    yield _gauge("state", "1 for the state that the service is in.", states, ("state",))


def _journal(status: Status, tally: Tally) -> Iterator[Metric]:
    journal = status.journal
    yield _counter("journal_events", "Events committed.", journal.events)
    yield _counter("journal_commits", "Transactions committed.", journal.commits)
    yield _counter(
        "journal_commit_failures", "Groups of events that were not taken.", tally.commit_failures
    )
    yield _gauge("journal_pending_events", "Events queued, not committed.", journal.pending)
    yield _gauge("journal_pending_bytes", "Bytes of what is queued.", journal.pending_bytes)
    yield _gauge("journal_bytes", "On disk, the write-ahead log included.", journal.bytes)
    yield _gauge("journal_wal_bytes", "Of the write-ahead log alone.", journal.wal_bytes)
    yield _gauge("journal_last_seq", "The newest committed entry.", journal.last_seq)


def _sessions(status: Status, tally: Tally) -> Iterator[Metric]:
    totals = status.totals
    yield _gauge("sessions", "Sessions in view.", totals.sessions)
    yield _gauge("sessions_running", "Sessions in view whose turn runs.", totals.running)
    yield _gauge("sessions_fresh", "Sessions in view with less than a chunk unread.", totals.fresh)
    yield _gauge("known_ids", "Ids known of the sessions in view.", totals.known)
    yield _gauge("behind_ids", "Known ids that are not read.", totals.behind)
    kinds = [((_KIND[kind],), count) for kind, count in tally.events.items()]
    yield _counter("session_events", "Events of sessions committed, by kind.", kinds, ("kind",))
    yield _counter("prompt_ids", "New ids that came with prompts.", tally.prompt_ids)
    yield _counter("output_ids", "Ids that came as output.", tally.output_ids)
    yield _counter("turns_ended", "Turns ended.", _named(tally.turns_ended), ("reason",))


def _reader(tally: Tally) -> Iterator[Metric]:
    window = ("window",)
    yield _counter("read_chunks", "Chunks read.", _named(tally.chunks), window)
    yield _counter("read_ids", "Ids read, again ones included.", _named(tally.read_ids), window)
    yield _counter("read_seconds", "Spent on reading chunks.", _named(tally.read_s), window)
    yield _counter("rewinds", "Times a state went back.", tally.events[t.Rewind])
    yield _counter("reread_ids", "Ids to be read again after rewinds.", tally.reread_ids)
    yield _counter(
        "digest_mismatches", "Digests unlike those journaled: a fault.", tally.mismatches
    )
    yield _counter(
        "states_dropped", "States let go, not spilled.", _named(tally.dropped), ("reason",)
    )


def _engine(model: EngineStatus) -> Iterator[Metric]:
    facts = {name: str(value) for name, value in asdict(model.identity).items()}
    facts["engine"] = model.engine
    yield _gauge("engine_info", "The loaded model.", [(tuple(facts.values()), 1)], tuple(facts))
    memory = model.memory
    yield _gauge("memory_bytes", "Held by pages, states and checkpoints.", memory.bytes)
    yield _gauge("memory_peak_bytes", "The most that it was.", memory.peak_bytes)
    yield _gauge("memory_cap_bytes", "What it never passes.", memory.cap_bytes)
    yield _gauge("weights_bytes", "Held by the weights.", memory.weights_bytes)
    yield _gauge("resident_states", "Sessions with a state in memory.", memory.sessions)


def _snapshots(status: Status, tally: Tally) -> Iterator[Metric]:
    if (held := status.snapshots) is not None:
        yield _gauge("snapshot_bytes", "Of all snapshots on disk.", held.bytes)
        yield _gauge("snapshot_peak_bytes", "The most that it was.", held.peak_bytes)
        yield _gauge("snapshot_cap_bytes", "What it never passes.", held.cap_bytes)
        yield _gauge("snapshot_sessions", "Sessions with a snapshot.", held.sessions)
    yield _counter("spills", "Snapshots written.", tally.events[t.Spill])
    yield _counter("spilled_bytes", "Written to snapshots.", tally.spilled_bytes)
    restored = tally.events[t.Restore] - tally.refused
    yield _counter("restores", "States that came back from snapshots.", restored)
    yield _counter("restored_bytes", "Read from snapshots.", tally.restored_bytes)
    yield _counter("snapshots_refused", "Snapshots that were not used.", tally.refused)


def _questions(tally: Tally) -> Iterator[Metric]:
    yield _counter("questions_asked", "Questions journaled.", tally.events[t.Question])
    yield _counter("questions_answered", "Answers journaled.", tally.events[t.Answer])
    ended = _named(tally.questions_ended)
    yield _counter("questions_ended", "Questions without an answer.", ended, ("reason",))
    yield _counter("summaries", "Summaries written.", _named(tally.summaries), ("reason",))
    yield _counter("summary_ids", "Ids of summaries.", tally.summary_ids)
    yield _counter(
        "router_answers",
        "Answers to the router's question, by whether the router's class is the same.",
        _named(tally.router_answers),
        ("agreement",),
    )
    yield _histogram("question_lag_seconds", "From asking to answering.", [((), tally.lag_s)])
    forward = [((), tally.forward_s)]
    yield _histogram("question_forward_seconds", "An answer's forward alone.", forward)


def _lease(lease: LeaseStatus) -> Iterator[Metric]:
    ranks = [rank.name.lower() for rank in Rank]

    def by_rank(entries: Iterable[LeaseEntry]) -> Rows:
        found = Counter(entry.rank for entry in entries)
        return [((rank,), found[rank]) for rank in ranks]

    yield _gauge("lease_holders", "Who holds the device.", by_rank(lease.holders), ("rank",))
    yield _gauge("lease_waiters", "Who waits for it.", by_rank(lease.waiters), ("rank",))
    longest = max((entry.seconds for entry in lease.waiters), default=0.0)
    yield _gauge("lease_longest_wait_seconds", "Of those who wait now.", longest)


def _bounds(status: Status) -> Iterator[Metric]:
    used = [((limit.name,), limit.used) for limit in status.limits]
    limits = [((limit.name,), limit.limit) for limit in status.limits]
    yield _gauge("bound_used", "How much of a bound is in use.", used, ("bound",))
    yield _gauge("bound_limit", "The most that may be.", limits, ("bound",))


def _http(meter: Meter) -> Iterator[Metric]:
    labels = ("method", "route", "status")
    requests = sorted(meter.requests.items())
    yield _counter("http_requests", "Requests; cut: without a whole reply.", requests, labels)
    seconds = [((route,), found) for route, found in sorted(meter.seconds.items())]
    yield _histogram("http_request_seconds", "From head to end of handler.", seconds, ("route",))
    lines = {"accepted": meter.lines - meter.refused_lines, "refused": meter.refused_lines}
    yield _counter("feed_lines", "Lines of feeds answered.", _named(lines), ("outcome",))
    errors = _named(dict(sorted(meter.errors.items())))
    yield _counter("errors", "Replies and feed lines with an error.", errors, ("code",))


@cache
def _version() -> str:
    try:
        return version("shadow-reader")
    except PackageNotFoundError:  # run from a folder, not installed
        return "unknown"


def _named(counts: Mapping[str, float]) -> Rows:
    return [((name,), count) for name, count in counts.items()]


def _rows(value: Rows | float) -> Rows:
    return [((), value)] if isinstance(value, int | float) else value


def _counter(name: str, text: str, value: Rows | float, labels: Sequence[str] = ()) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for names, count in _rows(value):
        family.add_metric(names, count)
    return family


def _gauge(name: str, text: str, value: Rows | float, labels: Sequence[str] = ()) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for names, number in _rows(value):
        family.add_metric(names, number)
    return family


def _histogram(
    name: str,
    text: str,
    rows: Iterable[tuple[Sequence[str], Histogram]],
    labels: Sequence[str] = (),
) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for names, found in rows:
        buckets, below = [], 0
        for bound, count in zip((*map(str, found.bounds), "+Inf"), found.counts, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric(names, buckets, found.sum)
    return family
