from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from shadow_reader.errors import ConflictError, InvalidInputError, NotFoundError
from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids
from shadow_reader.replay.rebuild import Journaled, Rebuilt, journaled_session, rebuild
from shadow_reader.replay.state_file import StateFile, compare, parse_state, read_state
from shadow_reader.shadow.jobs import stride
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.shadow.models import small_model

GRID = 64
GIB = 1024**3


def make_engine(grid: int = GRID) -> TorchEngine:
    return TorchEngine(small_model(), grid=grid, cap_bytes=GIB, poison=True)


def make_ids(count: int, seed: int) -> Ids:
    return Ids.of(np.random.default_rng(seed).integers(0, 256, count))


class Entries:
    """The entries of one session, as a journal gives them."""

    def __init__(self, *events: tuple[str, t.Event]) -> None:
        self.found = [
            t.Entry(float(seq), "s", turn, event, seq)
            for seq, (turn, event) in enumerate(events, start=1)
        ]

    async def entries(self, *, session: str) -> AsyncIterator[t.Entry]:
        for entry in self.found:
            if entry.session == session:
                yield entry


@cache
def served() -> tuple[tuple[tuple[str, t.Event], ...], bytes]:
    """What a server journaled of two turns with a rewind between them, and its state at the end.

    The first turn's ids from 300 on are dropped by the second prompt; checkpoints lie at 256 (kept
    by both) and at 448 (of the first line of ids alone), then at 512.
    """
    engine = make_engine()
    first, second = make_ids(460, 1), make_ids(300, 2)
    events: list[tuple[str, t.Event]] = [
        ("", t.SessionOpened()),
        ("t1", t.Prompt(0, first.take(400))),
        ("t1", t.Output(0, Ids.of(first.array(400)))),
        ("t1", t.TurnEnded("stop")),
    ]
    events += _read(engine, first, frozenset({256, 448}))
    known = first.take(300).extend(second)
    events += [("t2", t.Prompt(300, second)), ("t2", t.TurnEnded("stop"))]
    aligned = engine.align("s", known)
    assert aligned.cut is not None
    events.append(("t2", t.Rewind(aligned.cut, aligned.committed, aligned.reread)))
    events += _read(engine, known, frozenset({512}))
    return tuple(events), engine.export("s", limit_bytes=GIB)


def _read(engine: TorchEngine, known: Ids, lines: frozenset[int]) -> list[tuple[str, t.Event]]:
    events: list[tuple[str, t.Event]] = []
    while (done := stride(engine, "s", known, lines)).read:
        events.append(("", t.Read(done.aligned.committed, done.stop, "idle", 1.0)))
        if done.digest is not None:
            events.append(("", t.Checkpoint(done.stop, done.digest, engine.identity.engine)))
    return events


async def journaled(*more: tuple[str, t.Event]) -> Journaled:
    return await journaled_session(Entries(*served()[0], *more), "s")


def exported(
    flip: tuple[str, int] | None = None, claims: Mapping[str, str] = MappingProxyType({})
) -> StateFile:
    """The server's state.

    Args:
        flip: a tensor and a byte of it whose lowest bit is inverted.
        claims: metadata that replaces what the server wrote.
    """
    raw = np.frombuffer(bytearray(served()[1]), dtype=np.uint8)
    state = parse_state(raw, "test")
    if flip is not None:
        state.tensors[flip[0]].raw[flip[1]] ^= 1
    return StateFile({**state.metadata, **claims}, state.tensors)


async def proof(state: StateFile | None = None, *more: tuple[str, t.Event]) -> Rebuilt:
    return rebuild(await journaled(*more), make_engine(), state=state)


async def test_a_state_with_a_rewind_in_its_past_is_exact() -> None:
    found = await proof(exported())
    assert found.verdict == "exact"
    assert found.exact
    assert (found.known, found.position, found.turns) == (600, 576, 2)
    assert [check.position for check in found.checkpoints] == [256, 512]
    assert found.state is not None
    assert (found.state.position, found.state.digest) == (576, found.digest)
    assert found.state.bytes > 576 * 4
    assert found.state.difference is None


async def test_checkpoints_of_dropped_ids_are_not_compared() -> None:
    found = await journaled()
    assert [c.position for c in found.checkpoints] == [256, 512]
    back = await journaled(("t3", t.Prompt(511, make_ids(1, 3))))
    assert [c.position for c in back.checkpoints] == [256]
    again = await journaled(("", t.SessionErased(9, 9)), ("", t.SessionOpened()))
    assert again.checkpoints == ()


@pytest.mark.parametrize(
    ("tensor", "byte", "index"),
    [
        ("rows", 0, (0, 0, 0, 0, 0)),
        ("rows", -1, (1, 1, 1, 575, 15)),
        ("recurrent", 4 * (16 * 16 + 17), (0, 1, 1, 1)),
        ("conv", -3, (2, 127, 2)),
        ("ids", 4 * 300 + 2, (300,)),
    ],
)
async def test_one_flipped_bit_is_found_where_it_is(
    tensor: str, byte: int, index: tuple[int, ...]
) -> None:
    found = await proof(exported((tensor, byte)))
    assert found.verdict == "differs"
    assert found.state is not None
    assert found.state.difference is not None
    assert (found.state.difference.tensor, found.state.difference.index) == (tensor, index)
    assert " instead of 0x" in found.state.difference.why
    assert all(check.exact for check in found.checkpoints)


async def test_a_state_that_claims_another_digest_differs() -> None:
    found = await proof(exported(claims={"digest": "0" * 32}))
    assert found.verdict == "differs"
    assert found.state is not None
    assert found.state.difference is None


async def test_one_flipped_id_in_the_journal_is_found() -> None:
    events = list(served()[0])
    prompt = events[1][1]
    assert isinstance(prompt, t.Prompt)
    ids = prompt.ids.array().copy()
    ids[290] ^= 1
    events[1] = ("t1", replace(prompt, ids=Ids.of(ids)))
    found = rebuild(await journaled_session(Entries(*events), "s"), make_engine(), state=exported())
    assert found.verdict == "differs"
    assert [(c.position, c.exact) for c in found.checkpoints] == [(256, True), (512, False)]
    assert found.state is not None
    assert found.state.difference is not None
    assert (found.state.difference.tensor, found.state.difference.index) == ("ids", (290,))


async def test_a_wrong_digest_in_the_journal_is_found() -> None:
    wrong = t.Checkpoint(256, "0" * 32, make_engine().identity.engine)
    found = await proof(None, ("", wrong))
    assert found.verdict == "differs"
    check = found.checkpoints[0]
    assert (check.position, check.journaled, check.exact) == (256, "0" * 32, False)


async def test_digests_of_other_engines_prove_nothing() -> None:
    found = await journaled()
    foreign = replace(
        found, checkpoints=tuple(replace(c, engine="other") for c in found.checkpoints)
    )
    nothing = rebuild(foreign, make_engine())
    assert (nothing.verdict, nothing.exact, nothing.other_engines) == (
        "nothing to compare",
        False,
        2,
    )


async def test_a_session_shorter_than_a_chunk_has_nothing_to_compare() -> None:
    short = Entries(("", t.SessionOpened()), ("t1", t.Prompt(0, make_ids(GRID - 1, 1))))
    found = rebuild(await journaled_session(short, "s"), make_engine())
    assert (found.verdict, found.position, found.known) == ("nothing to compare", 0, GRID - 1)


async def test_progress_reaches_the_end_and_the_engine_is_left_empty() -> None:
    engine = make_engine()
    seen: list[tuple[int, int]] = []
    rebuild(await journaled(), engine, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(position, 576) for position in range(0, 577, GRID)]
    assert (engine.stats().sessions, engine.stats().bytes) == (0, 0)


async def test_a_state_below_the_known_ids_is_compared_where_it_stands() -> None:
    engine = make_engine()
    known = (await journaled()).view.known
    while engine.read_chunk("s", known) < 320:
        pass
    raw = np.frombuffer(engine.export("s", limit_bytes=GIB), dtype=np.uint8)
    found = await proof(parse_state(raw, "test"))
    assert found.exact
    assert found.state is not None
    assert (found.state.position, found.position) == (320, 576)
    assert found.state.digest != found.digest


@pytest.mark.parametrize("key", ["weights", "grid", "dtype", "device", "build", "layout"])
async def test_a_state_of_another_engine_is_refused(key: str) -> None:
    with pytest.raises(ConflictError, match=f"another engine's.*{key} 'other'") as caught:
        await proof(exported(claims={key: "other"}))
    assert caught.value.details["found"] == {key: "other"}


async def test_a_state_past_the_journal_is_refused() -> None:
    with pytest.raises(ConflictError, match="stands at 640; the journal reaches grid line 576"):
        await proof(exported(claims={"position": "640"}))
    with pytest.raises(ConflictError, match="stands at 100"):
        await proof(exported(claims={"position": "100"}))


async def test_an_unknown_session_is_said_to_be_unknown() -> None:
    with pytest.raises(NotFoundError, match="no session 'other'"):
        await journaled_session(Entries(*served()[0]), "other")
    with pytest.raises(NotFoundError, match="no session 's'"):
        await journaled(("", t.SessionErased(1, 1)))


def test_a_state_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    file.write_bytes(served()[1])
    state = read_state(file)
    assert (state.position, len(state.digest)) == (576, 32)
    assert state.tensors["rows"].shape == (2, 2, 2, 576, 16)
    assert state.tensors["recurrent"].dtype == "F32"
    assert compare(state, exported()) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is no exported state"),
        (b"1234567", "7 bytes are too few"),
        (b"\xff" * 64, "its header would take 18446744073709551615 bytes"),
        (b"\x02" + bytes(7) + b"{}", "KeyError"),
        (b"\x02" + bytes(7) + b"[]", "is no exported state"),
        (b"\x02" + bytes(7) + b"no", "JSONDecodeError"),
    ],
)
def test_a_file_that_is_no_state_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "state.safetensors"
    file.write_bytes(content)
    with pytest.raises(InvalidInputError, match=why):
        read_state(file)


def test_a_missing_state_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        read_state(tmp_path / "nothing")


def test_a_truncated_state_is_refused() -> None:
    raw = np.frombuffer(served()[1], dtype=np.uint8)
    with pytest.raises(InvalidInputError, match="data_offsets"):
        parse_state(raw[:-1], "test")


def test_tensors_that_cannot_be_compared_are_a_difference() -> None:
    state = exported()
    less = StateFile(state.metadata, {k: v for k, v in state.tensors.items() if k != "conv"})
    missing = compare(less, state)
    assert missing is not None
    assert (missing.tensor, missing.index, missing.why) == (
        "conv",
        (),
        "only one of the two states has it",
    )
    rows = replace(state.tensors["rows"], dtype="BF16")
    retyped = compare(StateFile(state.metadata, {**state.tensors, "rows": rows}), state)
    assert retyped is not None
    assert retyped.why.startswith("BF16 [2, 2, 2, 576, 16] instead of F32")


def test_minus_zero_is_not_zero() -> None:
    one, other = exported(), exported()
    one.tensors["conv"].raw[:4] = np.frombuffer(np.float32(0).tobytes(), np.uint8)
    other.tensors["conv"].raw[:4] = np.frombuffer(np.float32(-0.0).tobytes(), np.uint8)
    found = compare(one, other)
    assert found is not None
    assert (found.index, found.why) == ((0, 0, 0), "0x00000000 instead of 0x80000000")
