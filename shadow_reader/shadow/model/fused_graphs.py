"""CUDA graphs of the fused forward, one a padded length, each good at every depth.

Law: a call's result depends on its arguments alone; what it needs is copied into the buffers and
what it gives is copied out, in the order of the device's stream. One call at a time: a lock holds
that. Graphs are captured when ``prepare`` says so, or else at the first call of their length.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from shadow_reader.shadow.model.config import ModelConfig
from shadow_reader.shadow.model.fused_attention import KEYS, QUERIES
from shadow_reader.shadow.model.fused_forward import Arena, ChunkBuffers, FusedForward
from shadow_reader.shadow.model.fused_numbers import distance, reachable
from shadow_reader.shadow.model.layers import Rotary
from shadow_reader.shadow.model.parameters import Parameters

LONGEST: Final = 1024
"""Most ids of one graph; longer calls are read in parts."""
_PAGE_ROWS: Final = 512
_ALIGNED: Final = 32
"""Bytes every page is aligned to, or else it is copied."""

Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Hidden, rows, recurrent state, convolution state."""


class ChunkGraphs:
    """Reads ids of one model in graphs.

    Args:
        graphs: False launches the same kernels one by one, for tests and tracing.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        rotary: Rotary,
        *,
        device: torch.device,
        dtype: torch.dtype,
        graphs: bool = True,
    ) -> None:
        self._config = config
        self._parameters = parameters
        self._rotary = rotary
        self._device = device
        self._dtype = dtype
        self._use_graphs = graphs
        self._lock = threading.Lock()
        self._arena = Arena(device)
        self._sizes: dict[int, tuple[ChunkBuffers, FusedForward]] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._aside: torch.cuda.Stream | None = None
        self._pool: Any = None

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture the graphs of all lengths."""
        with self._lock:
            for n in range(QUERIES, LONGEST + 1, QUERIES):
                self._graph(n)

    @torch.inference_mode()
    def read(
        self,
        ids: torch.Tensor,
        *,
        position: int,
        past: Sequence[torch.Tensor],
        recurrent: torch.Tensor,
        conv: torch.Tensor,
        watch: Callable[[int, torch.Tensor], None] | None = None,
    ) -> Result:
        """Read ``ids`` [n] at ``position``; see ``Qwen35.forward``. All results are new.

        With ``watch`` the same kernels are launched one by one.
        """
        pages = paged(past, position, KEYS)
        whole, page = ids.shape[0] <= LONGEST, _rows_a_page(pages)
        step = LONGEST if whole or page > LONGEST else page
        hidden: list[torch.Tensor] = []
        rows: list[torch.Tensor] = []
        with self._lock:
            for start in range(0, ids.shape[0], step):
                part = ids[start : start + step]
                if start:
                    pages = paged([*pages, rows[-1]], position + start, KEYS)
                result = self._read(part, position + start, pages, recurrent, conv, watch)
                recurrent, conv = result[2:]
                hidden.append(result[0])
                rows.append(result[1])
        if len(rows) == 1:
            return hidden[0], rows[0], recurrent, conv
        return torch.cat(hidden), torch.cat(rows, dim=3), recurrent, conv

    def _read(
        self,
        ids: torch.Tensor,
        position: int,
        pages: Sequence[torch.Tensor],
        recurrent: torch.Tensor,
        conv: torch.Tensor,
        watch: Callable[[int, torch.Tensor], None] | None,
    ) -> Result:
        count = ids.shape[0]
        n = padded(count)
        graph = self._graph(n)
        b, forward = self._sizes[n]
        given = self._give(b, ids, position, pages, recurrent, conv)
        if watch is not None:
            forward.run(lambda layer: watch(layer, b.x[:count]))
        elif graph is None:
            forward.run()
        else:
            graph.replay()
        return b.hidden[:count].clone(), *given

    def _give(
        self,
        b: ChunkBuffers,
        ids: torch.Tensor,
        position: int,
        pages: Sequence[torch.Tensor],
        recurrent: torch.Tensor,
        conv: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Say in the buffers what to read; where the rows and the two states will be."""
        c, count = self._config, ids.shape[0]
        recurrent = recurrent if reachable(recurrent, b.told) else recurrent.clone()
        conv = conv if reachable(conv, b.x) else conv.clone()
        new_recurrent, new_conv = torch.empty_like(recurrent), torch.empty_like(conv)
        shape = c.full_layers, 2, c.kv_heads, count, c.head_dim
        rows = torch.empty(shape, dtype=self._dtype, device=self._device)
        numbers = [position, count, _rows_a_page(pages)]
        numbers += [distance(recurrent, b.told), distance(conv, b.x)]
        numbers += [distance(new_recurrent, b.told), distance(new_conv, b.x), distance(rows, b.x)]
        origin, size = b.x.data_ptr(), b.x.element_size()
        numbers += [(page.data_ptr() - origin) // size for page in pages]
        sent = torch.tensor(numbers, pin_memory=self._device.type == "cuda")
        b.numbers[: len(numbers)].copy_(sent, non_blocking=True)
        b.ids[:count].copy_(ids)
        return rows, new_recurrent, new_conv

    def _graph(self, n: int) -> torch.cuda.CUDAGraph | None:
        """The graph of padded length ``n``, captured now if it is not there."""
        if n not in self._sizes:
            if not self._sizes and n != LONGEST:
                self._size(LONGEST)
            self._size(n)
        if not self._use_graphs:
            return None
        if n not in self._graphs:
            self._graphs[n] = self._captured(n)
        return self._graphs[n]

    def _size(self, n: int) -> None:
        buffers = ChunkBuffers(self._config, n, self._dtype, self._arena)
        forward = FusedForward(self._config, self._parameters, self._rotary, buffers)
        self._sizes[n] = buffers, forward

    def _captured(self, n: int) -> torch.cuda.CUDAGraph:
        """Run once, so that everything is compiled and loaded, then capture."""
        buffers, forward = self._sizes[n]
        c = self._config
        heads = c.linear_layers, c.linear_value_heads, c.linear_key_dim, c.linear_value_dim
        columns = c.linear_layers, c.conv_dim, c.conv_kernel - 1
        recurrent = torch.zeros(heads, device=self._device)
        conv = torch.zeros(columns, device=self._device, dtype=self._dtype)
        ids = torch.zeros(n, device=self._device, dtype=torch.int64)
        given = self._give(buffers, ids, 0, (), recurrent, conv)
        with torch.cuda.device(self._device):
            if self._aside is None:
                # One for all: each stream has cuBLAS workspace of its own.
                self._aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
                self._pool = torch.cuda.graph_pool_handle()
            self._aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._aside):
                forward.run()
            torch.cuda.current_stream().wait_stream(self._aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._aside, capture_error_mode="thread_local"
            ):
                forward.run()
            torch.cuda.current_stream().synchronize()
            del recurrent, conv, given
        return graph


def padded(count: int) -> int:
    """The length of the graph that reads ``count`` ids, at most ``LONGEST``."""
    return -(-count // QUERIES) * QUERIES


def paged(past: Sequence[torch.Tensor], position: int, block: int) -> Sequence[torch.Tensor]:
    """``past`` as pages of one size that the kernels can walk: as it is, or copied into such.

    Pages must be contiguous, aligned, of one length that is a multiple of ``block``; only the last
    may be shorter. Both ways give the same bits: keys go by absolute position.
    """
    if not past or _walkable(past, block):
        return past
    whole = torch.cat(list(past), dim=3)
    layers, two, heads, _, dim = whole.shape
    count = -(-position // _PAGE_ROWS)
    pages = whole.new_zeros(count, layers, two, heads, _PAGE_ROWS, dim)
    for index, page in enumerate(pages):
        rows = whole[:, :, :, index * _PAGE_ROWS : (index + 1) * _PAGE_ROWS]
        page[:, :, :, : rows.shape[3]] = rows
    return list(pages)


def _walkable(past: Sequence[torch.Tensor], block: int) -> bool:
    shape = past[0].shape
    return shape[3] % block == 0 and all(
        page.shape == shape and page.is_contiguous() and not page.data_ptr() % _ALIGNED
        for page in past
    )


def _rows_a_page(pages: Sequence[torch.Tensor]) -> int:
    return pages[0].shape[3] if pages else _PAGE_ROWS
