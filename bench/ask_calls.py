"""What a caller waits for: whole ``ask`` calls by depth and number of questions; and what the
router's question costs a turn.

    python -m bench.ask_calls --depths 512,4096,16384 --questions 1,4,16 --json

A real server as a process, its journal on disk, over HTTP on loopback. A session of so many ids
and a tail is read; then questions of ids are asked of it, so many in a call. *call*: until the
client has all answers; *forward*: the forwards of one call together, as the replies say. Then turns
with short prompts go on from there in a profile whose router asks: *router* is the forward of
such a question, *lag* how long it waited, which nobody did, and *bytes* what its three entries take
in the journal. Figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.ingest_server import running_server
from bench.machine import this_machine
from shadow_reader.events import types as t
from shadow_reader.http.client import ShadowClient
from shadow_reader.shadow.questions import Ask
from shadow_reader.shadow.vocabulary import load_vocabulary
from shadow_reader.store.reader import JournalReader

TAIL_IDS = 330
QUESTION_IDS = 290
TURN_IDS = 200
"""Of each turn that the router asks about, beside what was known."""
CHOICES = ("yes", "no", "unclear")
CLASSES = {
    "code_edit": "changes to code that is there",
    "new_code": "code that is not there yet",
    "debug": "finding why something fails",
    "explain": "saying how something works",
    "chat": "anything else",
}
WAIT_S = 600.0
LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Row:
    """One depth and number of questions, ms."""

    depth: int
    questions: int
    call_ms: float
    forward_ms: float

    @property
    def each_ms(self) -> float:
        """Of the call, for one question."""
        return self.call_ms / self.questions


@dataclass(frozen=True, slots=True)
class RouterRow:
    """The router's questions at one depth, ms; and what they add to the journal.

    ``entries_bytes``: of its question, answer and router's answer, a turn: columns and payload, as
    they stand in the file before SQLite's own overhead.
    """

    depth: int
    turns: int
    forward_ms: float
    lag_ms: float
    question_ids: int
    entries_bytes: int


class Talk:
    """One session that is read, of seeded ids."""

    def __init__(self, client: ShadowClient, depth: int, im_end: int) -> None:
        self.session = f"depth-{depth}"
        self.depth = depth
        self._client = client
        self._im_end = im_end
        self._random = random.Random(depth)
        self._known = self.ids(depth + TAIL_IDS)

    def ids(self, count: int) -> list[int]:
        """So many ids of ordinary text."""
        return [self._random.randrange(200_000) for _ in range(count)]

    async def begin(self) -> None:
        """The whole session as one prompt, read."""
        await self._client.prompt(self.session, self._known, turn="first", profile="plain")
        await self._client.end(self.session, "first")
        await self._client.wait_fresh(self.session, timeout_s=WAIT_S)

    async def call(self, questions: int) -> tuple[float, float]:
        """One call with so many different questions; its ms, and its forwards' together."""
        asked = [Ask(self.ids(QUESTION_IDS), CHOICES) for _ in range(questions)]
        began = time.perf_counter()
        replies = await self._client.ask_many(self.session, asked, timeout_s=WAIT_S)
        taken_ms = 1000 * (time.perf_counter() - began)
        return taken_ms, sum(reply.forward_ms for reply in replies)

    async def turn(self, number: int) -> None:
        """A turn that the router's question is asked about, and its answer."""
        before = await self._answered()
        name = f"turn-{number}"
        self._known += [*self.ids(TURN_IDS), self._im_end]
        await self._client.prompt(self.session, self._known, turn=name, profile="asks")
        await self._client.end(self.session, name)
        for _ in range(round(WAIT_S / LOOK_S)):
            await asyncio.sleep(LOOK_S)
            if await self._answered() > before:
                return
        raise TimeoutError(f"the router's question about {name} was not answered")

    async def _answered(self) -> int:
        router = (await self._client.status()).router
        assert router is not None, "a profile's router asks"
        assert not router.skipped, f"questions were not asked: {dict(router.skipped)}"
        return router.answered


def settings(model: str, most: int) -> dict[str, object]:
    """A server that writes no state to the disk, with a profile whose router asks."""
    asks = {"mode": "on", "router": "shadow", "router_min_tokens": 1, "router_classes": CLASSES}
    return {
        "model": model,
        "disk": "off",
        "threads": 1,
        "open_questions": max(16, most),
        "branches": 0,
        "profiles": {"plain": {"shadow": {"mode": "on"}}, "asks": {"shadow": asks}},
    }


async def measure(
    model: str, depths: Sequence[int], questions: Sequence[int], repeats: int, folder: Path
) -> tuple[list[Row], list[RouterRow]]:
    """All depths, one after the other, on one server."""
    im_end = load_vocabulary(model).special.im_end
    rows, routers = [], []
    with running_server(folder, settings(model, max(questions))) as server:
        async with ShadowClient(server.url) as client:
            await client.load(timeout_s=WAIT_S)
            for depth in depths:
                talk = Talk(client, depth, im_end)
                await talk.begin()
                for count in questions:
                    await talk.call(count)
                    calls = [await talk.call(count) for _ in range(repeats)]
                    call_ms = median(call for call, _ in calls)
                    rows.append(Row(depth, count, call_ms, median(sum_ for _, sum_ in calls)))
                for number in range(repeats):
                    await talk.turn(number)
    for depth in depths:
        routers.append(await router_row(folder / "shadow.db", depth))
    return rows, routers


async def router_row(journal: Path, depth: int) -> RouterRow:
    """What the journal says of the router's questions about one session."""
    answers: dict[str, t.Answer] = {}
    lags, forwards, lengths = [], [], list[int]()
    async with await JournalReader.open(journal) as reader:
        kinds = ["question", "answer", "router.answer"]
        async for entry in reader.entries(session=f"depth-{depth}", kinds=kinds):
            match entry.event:
                case t.Question(kind="router", ids=ids):
                    lengths.append(len(ids))
                case t.Answer(question=question):
                    answers[question] = entry.event
                case t.RouterAnswer(question=question, lag_ms=lag_ms):
                    lags.append(lag_ms)
                    forwards.append(answers[question].forward_ms)
                case _:
                    pass
    written = journal_bytes(journal, f"depth-{depth}") // max(1, len(lags))
    lengths_ids = round(median(lengths))
    return RouterRow(depth, len(lags), median(forwards), median(lags), lengths_ids, written)


def journal_bytes(journal: Path, session: str) -> int:
    """Bytes of the entries that the router's questions about a session left."""
    sql = (
        "SELECT sum(24 + length(turn) + length(kind) + length(CAST(data AS BLOB)) + "
        "coalesce(length(ids), 0)) FROM journal WHERE session = ? AND (kind = 'router.answer' OR "
        "json_extract(data, '$.question') IN (SELECT json_extract(data, '$.question') FROM journal "
        "WHERE session = ? AND kind = 'router.answer'))"
    )
    with contextlib.closing(sqlite3.connect(journal)) as db:
        (found,) = db.execute(sql, (session, session)).fetchone()
    return int(found or 0)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print: the tables last, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--depths", type=_numbers, default=[512, 4096, 16384])
    parser.add_argument("--questions", type=_numbers, default=[1, 4, 16])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {args.repeats}")
    with tempfile.TemporaryDirectory() as folder:
        rows, routers = asyncio.run(
            measure(args.model, args.depths, args.questions, args.repeats, Path(folder))
        )
    machine = this_machine()
    if args.json:
        body = {"rows": [asdict(row) for row in rows], "router": [asdict(row) for row in routers]}
        print(json.dumps(body | {"model": args.model, "machine": machine.to_json()}))
        return
    print(machine.line())
    print(
        f"{args.model}, tail {TAIL_IDS}, questions of {QUESTION_IDS} ids, {args.repeats} each; ms"
    )
    print(f"{'depth':>8}{'questions':>11}{'call':>10}{'each':>10}{'forward':>10}")
    for row in rows:
        times = (row.call_ms, row.each_ms, row.forward_ms)
        print(f"{row.depth:8}{row.questions:11}" + "".join(f"{ms:10.1f}" for ms in times))
    print(f"{'depth':>8}{'turns':>11}{'router':>10}{'lag':>10}{'ids':>10}{'bytes':>10}")
    for found in routers:
        print(
            f"{found.depth:8}{found.turns:11}{found.forward_ms:10.1f}{found.lag_ms:10.1f}"
            f"{found.question_ids:10}{found.entries_bytes:10}"
        )


def _numbers(text: str) -> list[int]:
    found = [int(part) for part in text.split(",")]
    if not all(number > 0 for number in found):
        raise argparse.ArgumentTypeError(f"numbers above 0, by commas, not {text!r}")
    return found


if __name__ == "__main__":
    main()
