"""The real engine: one model, one pool, the states of many sessions.

Law: what a call could not finish it did not do. A session is here only while it stands above 0;
any other session stands at 0 and takes nothing. All methods but the properties and statistics
belong to the device thread, and return when the device is done.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from shadow_reader.config import Settings
from shadow_reader.errors import ModelError, OutOfRoomError, SettingsError
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.account import MemoryAccount
from shadow_reader.shadow.engine import Aligned, EngineIdentity, EngineStats, StateStats
from shadow_reader.shadow.export import export_state
from shadow_reader.shadow.identity import identify
from shadow_reader.shadow.model import ModelConfig, Qwen35, load_model
from shadow_reader.shadow.pool import PagePool
from shadow_reader.shadow.state import SessionState


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
        with torch.inference_mode():
            self._pool = PagePool(
                shape=(config.full_layers, 2, config.kv_heads, grid, config.head_dim),
                dtype=model.dtype,
                device=model.device,
                account=self._account,
                poison=poison,
            )
        self._sessions: dict[str, SessionState] = {}
        self._identity = identify(model, grid)
        self._vocabulary = config.vocab
        self._context_ids = min(context_ids or config.context, config.context)
        self._weights_bytes = model.weight_bytes

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

    @torch.inference_mode()
    def align(self, session: str, known: Ids) -> Aligned:
        """Bring the state back to ids that ``known`` begins with; see ``Engine``."""
        state = self._sessions.get(session)
        if state is None:
            return Aligned(0)
        aligned = state.align(known)
        if not aligned.committed:
            del self._sessions[session]
        return aligned

    @torch.inference_mode()
    def read_chunk(self, session: str, known: Ids) -> int:
        """Read one chunk of ``known``; the new committed.

        Raises:
            OutOfRoomError: nothing was read.
        """
        state = self._state(session)
        with self._device_room("a chunk being read"):
            committed = state.read_chunk(known)
        self._sessions[session] = state
        return committed

    @torch.inference_mode()
    def checkpoint(self, session: str) -> str:
        """Set the state aside at its grid line; its digest.

        Raises:
            OutOfRoomError: no checkpoint was taken.
        """
        with self._device_room("a checkpoint"):
            return self._state(session).checkpoint()

    @torch.inference_mode()
    def ask(
        self, session: str, *, tail: Ids, question: Ids, letters: Sequence[int]
    ) -> tuple[float, ...]:
        """Probabilities of ``letters`` after tail + question, on a fork that leaves nothing.

        Raises:
            OutOfRoomError: the fork would pass the cap.
            ModelError: the model gave no finite numbers.
        """
        model = self._loaded()
        ids = Ids.of([*tail, *question])
        with self._device_room("a fork"), self._state(session).fork(ids) as step:
            rows = torch.tensor(list(letters), device=model.device)
            logits = model.logits(step.hidden[-1:], rows)[0]
            found = torch.softmax(logits.double(), dim=0).tolist()
        if not all(math.isfinite(p) for p in found):
            raise ModelError(f"{model.name} gives no finite logits", model=model.name)
        return tuple(found)

    @torch.inference_mode()
    def digest(self, session: str) -> str:
        """The state digest at the committed grid line."""
        with self._device_room("a digest"):
            return self._state(session).digest()

    @torch.inference_mode()
    def export(self, session: str, *, limit_bytes: int) -> bytes:
        """The whole state as one safetensors file; see ``export_state``.

        Raises:
            TooLargeError: it would pass ``limit_bytes``.
        """
        with self._device_room("a digest"):
            return export_state(
                self._state(session),
                self._identity,
                row_shape=self._pool.shape,
                limit_bytes=limit_bytes,
            )

    @torch.inference_mode()
    def drop(self, session: str) -> int:
        """Let go of everything held for the session; the bytes freed."""
        state = self._sessions.pop(session, None)
        return 0 if state is None else state.release()

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
        )

    def close(self) -> None:
        """Let go of all states and of the model. May be called again."""
        for session in list(self._sessions):
            self.drop(session)
        on_cuda = self._model is not None and self._model.device.type == "cuda"
        self._model = None
        self._weights_bytes = 0
        if on_cuda:
            torch.cuda.empty_cache()

    def _state(self, session: str) -> SessionState:
        """The session's state, or a new one at 0 that nobody holds yet."""
        found = self._sessions.get(session)
        if found is not None:
            return found
        return SessionState(self._loaded(), self._pool, self._account)

    def _loaded(self) -> Qwen35:
        assert self._model is not None, "the engine is closed"
        return self._model

    @contextmanager
    def _device_room(self, what: str) -> Iterator[None]:
        """The device's own refusal, which can come below the cap, said in our words."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise OutOfRoomError(
                f"{what} finds no memory left on the device, although {self._account.left_bytes} "
                f"bytes are left of the cap of {self._account.cap_bytes} bytes (cap_gb)",
                field="cap_gb",
                what=what,
                left=self._account.left_bytes,
                limit=self._account.cap_bytes,
            ) from error


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
    least = least_bytes(model.config, model.dtype, settings.grid_ids)
    if settings.cap_bytes < least:
        raise SettingsError(
            f"cap_gb {settings.cap_gb} is {settings.cap_bytes} bytes; "
            f"reading one chunk of {model.name} takes {least} bytes",
            key="cap_gb",
            found=settings.cap_bytes,
            limit=least,
        )
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


def least_bytes(config: ModelConfig, dtype: torch.dtype, grid: int) -> int:
    """The smallest cap under which a chunk can be read: its page, its rows, two states."""
    rows = grid * config.row_bytes(dtype.itemsize)
    return 2 * rows + 2 * config.state_bytes(dtype.itemsize)
