"""The real engine: one model, one pool, the states of many sessions.

Law: what a call could not finish it did not do. A session is here only while it stands above 0;
any other session stands at 0 and takes nothing. What sessions have in common is held once, and
nothing that is done to one of them changes another. All methods but the properties and statistics
belong to the device thread, and return when the device is done.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from shadow_reader.errors import ModelError, SettingsError
from shadow_reader.events.ids import Ids
from shadow_reader.events.snapshots import Manifest, RawTensor, Span
from shadow_reader.events.view import MAX_CHECKPOINTS
from shadow_reader.shadow.account import MemoryAccount
from shadow_reader.shadow.engine import Aligned, EngineIdentity, EngineStats, StateStats
from shadow_reader.shadow.export import export_state
from shadow_reader.shadow.giving import give_way
from shadow_reader.shadow.hidden import LastRows
from shadow_reader.shadow.identity import identify
from shadow_reader.shadow.memory import Memory
from shadow_reader.shadow.model.facts import least_bytes
from shadow_reader.shadow.model.load import load_model
from shadow_reader.shadow.model.qwen35 import Qwen35, RecurrentState
from shadow_reader.shadow.pool import PagePool
from shadow_reader.shadow.prefixes import PrefixPoints
from shadow_reader.shadow.raw import host_buffer, page_lock
from shadow_reader.shadow.restore import RestoringState
from shadow_reader.shadow.snapshot_rules import (
    PIECE_PAGES,
    check_manifest,
    read_ids,
    refusal,
    restorable_position,
)
from shadow_reader.shadow.spill import PinnedState
from shadow_reader.shadow.standing import Standing
from shadow_reader.shadow.state import SessionState
from shadow_reader.shadow.writing import WritingFork

if TYPE_CHECKING:
    from shadow_reader.config import Settings


class TorchEngine:
    """Holds session states on the grid for one loaded model (the ``Engine`` of the reader).

    Args:
        model: shared by all sessions and forks.
        grid: ids a chunk.
        cap_bytes: most bytes that pages, states, checkpoints and forks may take.
        context_ids: longest sequence that is read; 0, or more than the model's, takes the model's.
        poison: fill pages that hold nothing with NaN.
    """

    def __init__(
        self,
        model: Qwen35,
        *,
        grid: int,
        cap_bytes: int,
        context_ids: int = 0,
        poison: bool = False,
    ) -> None:
        config = model.config
        self._model: Qwen35 | None = model
        self._account = MemoryAccount(cap_bytes)
        self._pool = PagePool(
            shape=(config.full_layers, 2, config.kv_heads, grid, config.head_dim),
            dtype=model.dtype,
            device=model.device,
            account=self._account,
            poison=poison,
        )
        state_bytes = config.state_bytes(model.dtype.itemsize)
        self._memory = Memory(self._pool, self._account, state_bytes)
        self._points = PrefixPoints(self._memory)
        self._sessions: dict[str, SessionState] = {}
        self._identity = identify(model, grid)
        self._vocabulary = config.vocab
        self._layers, self._hidden = config.layers, config.hidden
        self._context_ids = min(context_ids or config.context, config.context)
        self._weights_bytes = model.weight_bytes
        if model.device.type == "cuda":
            two_pieces, head = 2 * PIECE_PAGES, MAX_CHECKPOINTS + 1
            page_lock([self._pool.page_bytes] * two_pieces + [state_bytes] * head)

    @property
    def identity(self) -> EngineIdentity:
        """What decides the bits."""
        return self._identity

    @property
    def vocabulary(self) -> int:
        """Embedding rows: ids are below."""
        return self._vocabulary

    @property
    def context_ids(self) -> int:
        """Longest sequence that is read."""
        return self._context_ids

    @property
    def layers(self) -> int:
        """Decoder layers of the model."""
        return self._layers

    @property
    def hidden(self) -> int:
        """Numbers in a hidden vector."""
        return self._hidden

    @torch.inference_mode()
    def align(self, session: str, known: Ids) -> Aligned:
        """Bring the state back to ids that ``known`` begins with; see ``Engine``."""
        state = self._sessions.get(session)
        aligned = Aligned(0) if state is None else state.align(known)
        if state is None or aligned.cut is not None:
            aligned = self._start(session, state or self._state(session), known, aligned)
        return aligned

    @torch.inference_mode()
    def read_chunk(self, session: str, known: Ids) -> int:
        """Read one chunk of ``known``; the new committed.

        Raises:
            OutOfRoomError: nothing was read.
        """
        state = self._state(session)
        with self._memory.room("a chunk being read"):
            committed = state.read_chunk(known)
        self._sessions[session] = state
        now = state.standing
        assert now.state is not None
        top = now.pages[-1]
        others = (
            name
            for name, other in self._sessions.items()
            if len(other.pages) >= len(now.pages) and other.pages[len(now.pages) - 1] is top
        )
        self._points.arrived(session, now.pages, now.state, others)
        return committed

    @torch.inference_mode()
    def checkpoint(self, session: str) -> str:
        """Set the state aside at its grid line; its digest.

        Raises:
            OutOfRoomError: no checkpoint was taken.
        """
        with self._memory.room("a checkpoint"):
            return self._state(session).checkpoint()

    @torch.inference_mode()
    def ask(
        self,
        session: str,
        *,
        tail: Ids,
        question: Ids,
        letters: Sequence[int],
        line: int | None = None,
    ) -> tuple[float, ...]:
        """Probabilities of ``letters`` after tail + question, on a fork; see ``Engine``.

        Raises:
            OutOfRoomError: the fork would pass the cap.
            ModelError: the model gave no finite numbers.
        """
        model = self._loaded()
        ids = Ids.of([*tail, *question])
        rows = torch.tensor(list(letters), device=model.device)  # a wait, before there is work
        with self._memory.room("a fork"), self._state(session).fork(ids, line=line) as step:
            logits = model.logits(step.hidden[-1:], rows)[0]
            found = torch.softmax(logits.double(), dim=0).tolist()
        if not all(math.isfinite(p) for p in found):
            raise ModelError(f"{model.name} gives no finite logits", model=model.name)
        return tuple(found)

    @torch.inference_mode()
    def vectors(
        self,
        session: str,
        *,
        tail: Ids,
        layers: Sequence[int],
        last: int,
        line: int | None = None,
    ) -> NDArray[np.float32]:
        """Hidden vectors of the end of ``tail``, on a fork; see ``Engine``.

        Raises:
            OutOfRoomError: the fork would pass the cap.
            ModelError: the model gave no finite numbers.
        """
        model = self._loaded()
        rows = LastRows(layers, final=self._layers, last=last)
        watch = rows.watch if rows.within else None
        state = self._state(session)
        with self._memory.room("a fork"), state.fork(tail, line=line, watch=watch) as step:
            found = rows.mean(step.hidden)
        if not np.isfinite(found).all():
            raise ModelError(f"{model.name} gives no finite vectors", model=model.name)
        return found

    @torch.inference_mode()
    def write(
        self, session: str, *, tail: Ids, prompt: Ids, most: int, line: int | None = None
    ) -> WritingFork:
        """Begin to write on a fork; see ``Engine``.

        Raises:
            OutOfRoomError: its rows and state would pass the cap.
        """
        with self._memory.room("writing"):
            return self._state(session).write(Ids.of([*tail, *prompt]), most=most, line=line)

    @torch.inference_mode()
    def digest(self, session: str) -> str:
        """The state digest at the committed grid line."""
        with self._memory.room("a digest"):
            return self._state(session).digest()

    @torch.inference_mode()
    def export(self, session: str, *, limit_bytes: int) -> bytes:
        """The whole state as one safetensors file; see ``export_state``.

        Raises:
            TooLargeError: it would pass ``limit_bytes``.
        """
        with self._memory.room("a digest"):
            return export_state(
                self._state(session),
                self._identity,
                row_shape=self._pool.shape,
                limit_bytes=limit_bytes,
            )

    @torch.inference_mode()
    def drop(self, session: str, *, erased: bool = False) -> int:
        """Let go of everything held for the session; the bytes freed."""
        state = self._sessions.pop(session, None)
        freed = 0 if state is None else state.release()
        return freed + (self._points.forget(session) if erased else 0)

    @torch.inference_mode()
    def give_way(self, sessions: Sequence[str], *, newest: bool = True) -> int:
        """Free the next thing that may go before a session does; see ``Engine``."""
        found = (self._sessions.get(session) for session in dict.fromkeys(sessions))
        return give_way(
            self._points, [state for state in found if state is not None], newest=newest
        )

    def pin(self, session: str, written: Sequence[Span] = ()) -> PinnedState | None:
        """Hold the state as it is committed now; None where none is resident; see ``Engine``."""
        state = self._sessions.get(session)
        if state is None:
            return None
        return PinnedState(self._memory, state.standing, self._identity, written)

    @torch.inference_mode()
    def begin_restore(
        self, session: str, manifest: Manifest, head: Mapping[str, RawTensor], known: Ids
    ) -> RestoringState:
        """Begin to bring a spilled state back; see ``Engine``.

        Raises:
            SnapshotError: it is refused. OutOfRoomError: no room for its states.
        """
        assert session not in self._sessions, f"session {session!r} has a state"
        check_manifest(manifest, self._identity)
        ids = read_ids(manifest, head, self._vocabulary)
        line = restorable_position(manifest, ids, known)
        if not line:
            raise refusal(manifest, "first other id", ids.common_prefix(known), "above a line")
        with self._memory.room("a restored state"):
            return RestoringState(
                self._memory,
                manifest,
                head,
                ids=ids,
                line=line,
                blank=self._blank_state,
                install=partial(self._install, session),
            )

    def host_buffer(self, size: int) -> memoryview:
        """Memory to read a snapshot's file into: pinned, on a GPU. Safe on any thread."""
        return host_buffer(size)

    def synchronise(self) -> None:
        """Wait until the device has done all that was given to it."""
        if self._loaded().device.type == "cuda":
            torch.cuda.synchronize(self._loaded().device)

    def state_stats(self, session: str) -> StateStats | None:
        """The session's resident state, None where there is none. Safe on any thread."""
        state = self._sessions.get(session)
        return None if state is None else state.stats()

    def stats(self) -> EngineStats:
        """Totals. Safe on any thread."""
        return EngineStats(
            bytes=self._account.bytes,
            peak_bytes=self._account.peak_bytes,
            cap_bytes=self._account.cap_bytes,
            weights_bytes=self._weights_bytes,
            sessions=len(self._sessions),
            prefix_points=len(self._points),
        )

    def close(self) -> None:
        """Let go of all states and of the model; pins hold theirs. May be called again."""
        for session in list(self._sessions):
            self.drop(session)
        with torch.inference_mode():
            self._points.clear()
        on_cuda = self._model is not None and self._model.device.type == "cuda"
        self._model = None
        self._weights_bytes = 0
        if on_cuda:
            torch.cuda.empty_cache()

    def _start(self, session: str, state: SessionState, known: Ids, aligned: Aligned) -> Aligned:
        """Start at the deepest state along ``known``, if it is deeper than where this one is."""
        trail = self._memory.trail(known)
        line = trail.depth * self._pool.shape[3]
        if line > aligned.committed:
            state.adopt(known, trail)
            aligned = replace(aligned, committed=line, shared=line)
        if aligned.committed:
            self._sessions[session] = state
        else:
            self._sessions.pop(session, None)
        self._points.started(session, trail, len(state.pages))
        return aligned

    def _install(self, session: str, standing: Standing) -> None:
        """Let the session stand on what was restored."""
        assert session not in self._sessions, f"session {session!r} has a state"
        state = self._state(session)
        state.install(standing)
        self._sessions[session] = state
        self._points.passes(session, set(standing.pages))

    def _state(self, session: str) -> SessionState:
        """The session's state, or a new one at 0 that nobody holds yet."""
        found = self._sessions.get(session)
        return SessionState(self._loaded(), self._memory) if found is None else found

    def _blank_state(self) -> RecurrentState:
        """State tensors that hold anything."""
        model = self._loaded()
        config, device = model.config, model.device
        heads = config.linear_value_heads, config.linear_key_dim, config.linear_value_dim
        columns = config.linear_layers, config.conv_dim, config.conv_kernel - 1
        return RecurrentState(
            torch.empty(config.linear_layers, *heads, dtype=torch.float32, device=device),
            torch.empty(*columns, dtype=model.dtype, device=device),
        )

    def _loaded(self) -> Qwen35:
        assert self._model is not None, "the engine is closed"
        return self._model


def build_engine(settings: Settings) -> TorchEngine:
    """Load the model that ``settings`` name and put an engine around it.

    Raises:
        ModelError: the model or the device cannot be used.
        SettingsError: the cap is too small to read one chunk.
    """
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(settings.threads or default_threads())
    model = load_model(settings.model_spec(), device=device, cache_dir=settings.cache_dir)
    least = least_bytes(model.config, model.dtype.itemsize, settings.grid_ids)
    if settings.cap_bytes < least:
        raise SettingsError(
            f"cap_gb {settings.cap_gb} is {settings.cap_bytes} bytes; "
            f"reading one chunk of {model.name} takes {least} bytes",
            key="cap_gb",
            found=settings.cap_bytes,
            limit=least,
        )
    model.prepare()
    return TorchEngine(
        model,
        grid=settings.grid_ids,
        cap_bytes=settings.cap_bytes,
        context_ids=settings.context_ids,
    )


def default_threads() -> int:
    """All cores this process may use but one, which is the event loop's; one at least."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (usable or 1) - 1)
