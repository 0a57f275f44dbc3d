"""What changes from call to call, as whole numbers on the device: one transfer before a launch.

Memory that was there before the graph, or is new with each call, is named by its distance, in
elements, from an anchor: a buffer of the same dtype that never moves. Kernels add the two. All
distances are multiples of 16 elements.
"""

from __future__ import annotations

from typing import Final

import torch

POSITION: Final = 0
COUNT: Final = 1
"""How many ids of the padded ones count."""
PAGE_ROWS: Final = 2
RECURRENT: Final = 3
CONV: Final = 4
"""The state before; both whole, all layers."""
NEW_RECURRENT: Final = 5
NEW_CONV: Final = 6
ROWS: Final = 7
"""Where the new rows go: [full_layers, 2, kv_heads, count, head_dim]."""
PAGES: Final = 8
"""From here on the pages, [full_layers, 2, kv_heads, rows a page, head_dim] each."""

STEP: Final = 16


def distance(tensor: torch.Tensor, anchor: torch.Tensor) -> int:
    """Elements from ``anchor`` to ``tensor``, both contiguous and of one dtype."""
    return (tensor.data_ptr() - anchor.data_ptr()) // anchor.element_size()


def reachable(tensor: torch.Tensor, anchor: torch.Tensor) -> bool:
    """Whether kernels can read ``tensor`` where it lies."""
    between = tensor.data_ptr() - anchor.data_ptr()
    return tensor.is_contiguous() and between % (STEP * anchor.element_size()) == 0
