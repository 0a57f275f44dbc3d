"""Hidden vectors of a fork: what a probe reads instead of letters.

Law: a vector depends on the ids below it and on where its line lies, on nothing else. Rows are
copied as each layer leaves them; their mean is taken in float32 on the host, one row after another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray


class LastRows:
    """Keeps the last rows that chosen layers leave, of a forward that may come in parts.

    Args:
        layers: 0-based; ``final`` among them means what is left after the final norm.
        final: number of the model's layers. last: rows that are kept, at least one.
    """

    def __init__(self, layers: Sequence[int], *, final: int, last: int) -> None:
        assert last >= 1, f"the last {last} rows"
        assert layers, "no layer"
        assert all(0 <= layer <= final for layer in layers), f"{layers} of {final} layers"
        self._layers = tuple(layers)
        self._wanted = frozenset(layers) - {final}
        self._final = final
        self._last = last
        self._rows: dict[int, torch.Tensor] = {}

    @property
    def within(self) -> bool:
        """Whether a layer below the final norm is wanted, so that the forward must be watched."""
        return bool(self._wanted)

    def watch(self, layer: int, rows: torch.Tensor) -> None:
        """Copy what is wanted of ``rows`` [n, hidden], which follow those of the call before."""
        if layer in self._wanted:
            self._keep(layer, rows)

    def mean(self, hidden: torch.Tensor) -> NDArray[np.float32]:
        """[layers, hidden] float32, in the order asked for; ``hidden`` [n, hidden] is the final."""
        if self._final in self._layers:
            self._keep(self._final, hidden)
        means = {layer: _mean(rows) for layer, rows in self._rows.items()}
        return np.stack([means[layer] for layer in self._layers])

    def _keep(self, layer: int, rows: torch.Tensor) -> None:
        rows = rows[-self._last :]
        before = self._rows.get(layer)
        if before is None or len(rows) == self._last:
            self._rows[layer] = rows.clone()
        else:
            self._rows[layer] = torch.cat([before, rows])[-self._last :]


def _mean(rows: torch.Tensor) -> NDArray[np.float32]:
    """[hidden] float32: the mean over the rows, added in their order."""
    found: NDArray[np.float32] = rows.float().cpu().numpy()
    whole: NDArray[np.float32] = found[0].copy()
    for row in found[1:]:
        whole += row
    whole /= np.float32(len(found))
    return whole
