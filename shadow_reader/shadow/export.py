"""A whole state as one safetensors file, for comparing two states bit by bit.

Law: the file says what decided its bits, and its digest is taken from the bytes it holds, never
from what is remembered of them.
"""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import torch
from safetensors.torch import save

from shadow_reader.errors import TooLargeError
from shadow_reader.events.ids import ID_BYTES
from shadow_reader.shadow.engine import EngineIdentity
from shadow_reader.shadow.state import SessionState


def export_state(
    state: SessionState, identity: EngineIdentity, *, row_shape: tuple[int, ...], limit_bytes: int
) -> bytes:
    """The state at its committed grid line.

    Tensors: ``rows`` [full_layers, 2, kv_heads, committed, head_dim], ``recurrent``, ``conv``
    (as in ``RecurrentState``), ``ids`` uint32 [committed]. Metadata, all text: the identity's
    fields, ``position``, ``digest``.

    Args:
        row_shape: shape of one page.
        limit_bytes: the tensors' bytes may not pass this.

    Raises:
        TooLargeError: they would; nothing was copied.
    """
    now = state.recurrent_state()
    committed = state.committed
    shape = *row_shape[:3], committed, row_shape[4]
    ids_bytes = committed * ID_BYTES
    found = math.prod(shape) * now.conv.itemsize + now.recurrent.nbytes + now.conv.nbytes
    if found + ids_bytes > limit_bytes:
        raise TooLargeError(
            f"the state takes {found + ids_bytes} bytes; export_bytes allows {limit_bytes}",
            field="export_bytes",
            found=found + ids_bytes,
            limit=limit_bytes,
        )
    rows = torch.empty(shape, dtype=now.conv.dtype)
    for index, page in enumerate(state.pages):
        grid = page.rows.shape[3]
        rows[:, :, :, index * grid : (index + 1) * grid].copy_(page.rows)
    tensors = {
        "rows": rows,
        "recurrent": now.recurrent.cpu(),
        "conv": now.conv.cpu(),
        "ids": torch.from_numpy(np.array(state.ids.array())),
    }
    digest = state.digest(recompute=True)
    metadata = {key: str(value) for key, value in asdict(identity).items()}
    metadata |= {"position": str(committed), "digest": digest}
    return save(tensors, metadata=metadata)
