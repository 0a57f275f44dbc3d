"""A snapshot that is damaged while the server is down: refused with a reason, or harmless.

Law: whatever is done to a session's snapshot, the session's state is the one of its ids, and the
journal says why the snapshot was not used.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from bench.faults_book import Finding
from bench.faults_world import FRESH_S, Stuck, World, folder_of
from shadow_reader.errors import NotFoundError
from shadow_reader.events import types as t
from shadow_reader.store.reader import JournalReader

Damage: TypeAlias = Callable[[Path, Path, random.Random], None]
"""Told the folder of the session, that of another one, and what chooses."""

HEAD: Final = "head.safetensors"
STRAY: Final = "notes.txt"
TALK_S: Final = 0.7
TRIES: Final = 20
_LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of damage. ``refused``: whether the snapshot must be refused then."""

    name: str
    damage: Damage
    refused: bool = True


async def damage_rounds(world: World, rounds: int) -> None:
    """Every kind of damage, so many times; a proof after each."""
    for _ in range(rounds):
        for kind in KINDS:
            await damage_once(world, kind)


async def damage_once(world: World, kind: Kind) -> None:
    """Talk, stop, damage, start: the session's snapshot is refused, and its state is exact."""
    await world.start()
    await world.check()
    target, other = await _two_resident(world)
    seq = await _newest(world)
    await world.stop()
    root = world.snapshots
    kind.damage(folder_of(root, target), folder_of(root, other), world.choices)
    world.tally.faults[f"snapshot: {kind.name}"] += 1
    await world.start()
    await world.client.ask(target, [1, 2], ["yes", "no"], timeout_s=FRESH_S)
    await world.check()
    restores = await _restores(world, target, seq)
    if kind.refused != any(restore.refused for restore in restores):
        what = f"{kind.name}: a restore that is {'' if kind.refused else 'not '}refused"
        found = [restore.refused or "restored" for restore in restores]
        world.tally.findings.append(Finding("strange", target, f"{what} was due, not {found}"))
    await world.prove()
    await world.stop()
    await world.check()
    for stranger in root.glob("*/notes.txt"):  # the product leaves it alone, for ever
        stranger.unlink()


async def _two_resident(world: World) -> tuple[str, str]:
    """Talk until two sessions have a state in memory; both are fresh, and nobody speaks."""
    for _ in range(TRIES):
        world.go()
        await asyncio.sleep(TALK_S)
        await world.park()
        names = [talker.book.session for talker in world.talkers if talker.book.turns]
        found = [line for name in names if (line := await _resident_line(world, name))]
        if len(found) >= 2:
            return found[-1], found[-2]
    raise Stuck(f"no two of {len(world.talkers)} sessions are resident after {TRIES} tries")


async def _resident_line(world: World, session: str) -> str:
    """The line that it speaks on, if that has a state with something above what all share."""
    try:
        await world.client.ask(session, [1], ["yes", "no"], timeout_s=FRESH_S)
        status = await world.client.wait_fresh(session, timeout_s=FRESH_S)
    except NotFoundError:
        return ""
    return status.session if status.committed > 512 else ""


async def _newest(world: World) -> int:
    async with await JournalReader.open(world.journal) as reader:
        return await reader.newest_seq()


async def _restores(world: World, session: str, after: int) -> list[t.Restore]:
    async with await JournalReader.open(world.journal) as reader:
        entries = reader.entries(session=session, kinds=["restore"], after=after)
        return [e.event async for e in entries if isinstance(e.event, t.Restore)]


# -- what is done to the files ---------------------------------------------------------------------


def _pieces(folder: Path) -> Sequence[Path]:
    """Its pieces; the names begin with their pages."""
    return sorted(path for path in folder.iterdir() if path.name != HEAD)


def _last_piece(folder: Path) -> Path:
    """The one with the session's own ids: the first ones may be in memory for another one."""
    return max(_pieces(folder), key=_first_page)


def _first_page(path: Path) -> int:
    digits = "".join(c if c.isdigit() else " " for c in path.name).split()
    return int(digits[0])


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def _data_start(path: Path) -> int:
    """Where the tensors of a safetensors file begin."""
    with path.open("rb") as file:
        return _LENGTH_BYTES + int.from_bytes(file.read(_LENGTH_BYTES), "little")


def _flip_in_head(folder: Path, _other: Path, choose: random.Random) -> None:
    path = folder / HEAD
    _flip(path, choose.randrange(_data_start(path), path.stat().st_size))


def _flip_in_piece(folder: Path, _other: Path, choose: random.Random) -> None:
    path = _last_piece(folder)
    start, stop = _data_start(path), path.stat().st_size
    _flip(path, choose.randrange((start + 15 * stop) // 16, stop))


def _flip_in_header(folder: Path, _other: Path, _choose: random.Random) -> None:
    _flip(folder / HEAD, _LENGTH_BYTES)


def _truncate(path: Path, choose: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(choose.randrange(path.stat().st_size))


def _swap(one: Path, two: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def _swap_pieces(folder: Path, other: Path, _choose: random.Random) -> None:
    _swap(_last_piece(folder), _last_piece(other))


def _add_stray(folder: Path, _other: Path, _choose: random.Random) -> None:
    (folder / STRAY).write_text("not ours")


def _add_unfinished(folder: Path, _other: Path, _choose: random.Random) -> None:
    (folder / f".{HEAD}.4711.tmp").write_bytes(bytes(1000))


def _take_from_other(folder: Path, other: Path, _choose: random.Random) -> None:
    """Another session's whole snapshot under this session's name."""
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


KINDS: Final = (
    Kind("a byte of the head flipped", _flip_in_head),
    Kind("a byte of a piece flipped", _flip_in_piece),
    Kind("a byte of a header flipped", _flip_in_header),
    Kind("the head cut short", lambda f, _o, c: _truncate(f / HEAD, c)),
    Kind("a piece cut short", lambda f, _o, c: _truncate(_last_piece(f), c)),
    Kind("a piece removed", lambda f, _o, _c: _last_piece(f).unlink()),
    Kind("the head removed", lambda f, _o, _c: (f / HEAD).unlink(), refused=False),
    Kind("heads swapped between sessions", lambda f, o, _c: _swap(f / HEAD, o / HEAD)),
    Kind("pieces swapped between sessions", _swap_pieces),
    Kind("another session's snapshot", _take_from_other),
    Kind("an unfinished file left", _add_unfinished, refused=False),
    Kind("a stray file added", _add_stray),
)
"""The stray comes last: nothing is ever removed from a folder with something strange in it."""
