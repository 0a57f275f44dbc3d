"""One state moved between memory and disk, a piece at a time.

Laws: a move holds the lease for one piece, so whoever waits for the device waits for that long; the
disk is never waited for with the lease in hand. What cannot be finished leaves nothing behind, in
memory or on the disk. A session that went away meanwhile gets no snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from shadow_reader.errors import NotFoundError, OutOfRoomError, SnapshotError
from shadow_reader.events.snapshots import Manifest, Piece, RawTensor, SnapshotStore, Span
from shadow_reader.events.view import SessionView
from shadow_reader.shadow.box_lock import BoxLock
from shadow_reader.shadow.engine import Engine, Pinned, Restore
from shadow_reader.shadow.job_thread import JobThread
from shadow_reader.shadow.lease import Lease, Rank
from shadow_reader.shadow.snapshot_rules import check_manifest
from shadow_reader.shadow.windows import BOX_POLL_S

T = TypeVar("T")


class OnDevice(Protocol):
    """Runs one job of the device."""

    async def __call__(self, job: Callable[[], T], /) -> T:
        """Its result."""
        ...


OWNER: Final = "spill and restore"


@dataclass(frozen=True, slots=True)
class Moved:
    """What a move did: where the state stands, and the bytes that went through the disk."""

    position: int
    bytes: int


@dataclass(slots=True)
class Moves:
    """Spills and restores single sessions.

    Args:
        disk: the one thread that uses ``store``.
        box: taken for each piece. gate: waits until the device may be used beside the foreground.
    """

    engine: Engine
    device: JobThread
    disk: JobThread
    store: SnapshotStore
    lease: Lease
    box: BoxLock
    gate: Callable[[], Awaitable[None]]

    async def spill(
        self, view: SessionView, *, seq: int, is_there: Callable[[], bool], leased: bool = True
    ) -> Moved | None:
        """Write the session's state as it is committed now; it stays resident.

        Args:
            seq: of the journal, up to which the view's ids are known.
            is_there: whether the session is still the one that it was.
            leased: False where nobody else uses the device any more.

        Returns:
            None where no state is resident.

        Raises:
            SnapshotError: it cannot be written. NotFoundError: the session went away.
        """
        on_device: OnDevice = self._on_device if leased else self.device.run
        held: list[Pinned] = []  # also when whoever waits for the job is cancelled meanwhile

        written = await self.disk.run(partial(_written, self.store, view.session))

        def pin() -> None:
            if (found := self.engine.pin(view.session, written)) is not None:
                held.append(found)

        try:
            await on_device(pin)
            if not held:
                return None
            (pinned,) = held
            new_bytes = 0
            for index in range(pinned.pieces):
                _must_be_there(is_there)
                new_bytes += await self._write_piece(view.session, pinned, index, on_device)
            head = await on_device(pinned.copy_head)
            manifest = await on_device(
                partial(pinned.manifest, session=view.session, opened_at=view.opened_at, seq=seq)
            )
            _must_be_there(is_there)
            await self.disk.run(self.store.write_head, manifest, head)
            return Moved(pinned.position, new_bytes + _bytes(head))
        except BaseException:
            await self.disk.run(self.store.abandon, view.session)
            raise
        finally:
            for one in held:
                await self.device.run(one.release)

    async def restore(
        self, view: SessionView, make_room: Callable[[OutOfRoomError], Awaitable[None]]
    ) -> Moved | None:
        """Bring the session's state back from its snapshot, if there is one.

        Args:
            make_room: frees memory, or raises what it is given.

        Raises:
            SnapshotError: the snapshot is refused. OutOfRoomError: no room for it.
        """
        manifest = await self.disk.run(self.store.find, view.session)
        if manifest is None:
            return None
        if manifest.opened_at != view.opened_at:
            raise SnapshotError(
                f"the snapshot is of another session of the name {view.session!r}, "
                f"opened at {manifest.opened_at}",
                session=view.session,
                field="opened_at",
                found=manifest.opened_at,
                expected=view.opened_at,
            )
        check_manifest(manifest, self.engine.identity)
        head = await self.disk.run(self.store.read_head, manifest)
        begun: list[Restore] = []  # also when whoever waits for the job is cancelled meanwhile

        def begin() -> None:
            begun.append(self.engine.begin_restore(view.session, manifest, head, view.known))

        try:
            await self._with_room(begin, make_room)
            read = _bytes(head) + await self._put_pieces(begun[0], manifest, make_room)
            return Moved(await self._on_device(begun[0].finish), read)
        except BaseException:
            for restore in begun:
                await self.device.run(restore.abort)
            raise

    async def _write_piece(
        self, session: str, pinned: Pinned, index: int, on_device: OnDevice
    ) -> int:
        """Bytes written; 0 where an earlier spill wrote it."""
        piece = await on_device(partial(pinned.piece, index))
        if await self.disk.run(self.store.has_piece, session, piece.name):
            return 0
        tensors = await on_device(partial(pinned.copy_piece, index))
        await self.disk.run(self.store.write_piece, session, piece, tensors)
        return piece.bytes

    async def _put_pieces(
        self,
        restore: Restore,
        manifest: Manifest,
        make_room: Callable[[OutOfRoomError], Awaitable[None]],
    ) -> int:
        """Read ahead by one piece, so that disk and device work at the same time."""
        pieces = restore.pieces
        read = 0
        coming = self._begin_reading(manifest, pieces[0]) if pieces else None
        try:
            for index, piece in enumerate(pieces):
                assert coming is not None
                tensors = await coming
                coming = None
                if index + 1 < len(pieces):
                    coming = self._begin_reading(manifest, pieces[index + 1])
                await self._with_room(partial(restore.put, piece, tensors), make_room)
                read += piece.bytes
        finally:
            if coming is not None:
                await asyncio.wait([coming])
                if not coming.cancelled():
                    coming.exception()
        return read

    def _begin_reading(
        self, manifest: Manifest, piece: Piece
    ) -> asyncio.Task[Mapping[str, RawTensor]]:
        reading = self.disk.run(self.store.read_piece, manifest, piece)
        return asyncio.create_task(reading, name="read a snapshot's piece")

    async def _with_room(
        self, job: Callable[[], T], make_room: Callable[[OutOfRoomError], Awaitable[None]]
    ) -> T:
        while True:
            try:
                return await self._on_device(job)
            except OutOfRoomError as error:
                await make_room(error)

    async def _on_device(self, job: Callable[[], T]) -> T:
        """One job of the device, under the lease."""
        while True:
            await self.gate()
            async with self.lease.hold(Rank.SUMMARY, OWNER):
                if self.box.try_take():
                    try:
                        return await self.device.run(job)
                    finally:
                        self.box.release()
            await asyncio.sleep(BOX_POLL_S)


def _written(store: SnapshotStore, session: str) -> tuple[Span, ...]:
    """The pages of each piece of the snapshot that is there; of none if it cannot be used."""
    try:
        manifest = store.find(session)
    except SnapshotError:
        return ()
    return tuple((p.start, p.stop) for p in manifest.pieces) if manifest is not None else ()


def _must_be_there(is_there: Callable[[], bool]) -> None:
    if not is_there():
        raise NotFoundError("the session went away while it was spilled", field="session")


def _bytes(tensors: Mapping[str, RawTensor]) -> int:
    return sum(memoryview(raw.data).nbytes for raw in tensors.values())
