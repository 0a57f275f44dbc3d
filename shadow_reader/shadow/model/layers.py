"""Small pieces every layer uses: norms, rotary embedding, causal convolution.

Sums and scales are float32 whatever the model dtype; nothing here writes to its inputs.
"""

from __future__ import annotations

import torch
from torch.nn.functional import silu


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm over the last dimension.

    Args:
        x: [..., d], model dtype.
        weight: [d] float32, the whole factor (a zero-centred stored weight plus one).

    Returns:
        [..., d], dtype of ``x``, in the memory order of ``x``.
    """
    norm: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).mul_(weight).to(x.dtype)


class Rotary:
    """Rotary embedding of the first ``dim`` of each head's elements, in two halves.

    Args:
        dim: elements that turn; even.
        theta: base of the frequencies.
    """

    def __init__(self, dim: int, theta: float, device: torch.device) -> None:
        steps = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        self._frequencies = (1.0 / theta**steps).to(device)
        self.dim = dim

    def angles(
        self, position: int, n: int, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine at ``position .. position + n``: two [n, dim] of ``dtype``.

        The sine's first half is negated: ``x * cos + swap(x) * sin`` is then the rotation.
        """
        device = self._frequencies.device
        positions = torch.arange(position, position + n, device=device, dtype=torch.float32)
        angle = positions[:, None] * self._frequencies
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def angles_at(self, position: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``angles`` in float32, of a ``position`` [] that lies on the device."""
        steps = torch.arange(n, device=self._frequencies.device, dtype=torch.float32)
        angle = (steps + position)[:, None] * self._frequencies
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def turn(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotate ``x`` [heads, n, head_dim] in place; the caller owns ``x``."""
        half = self.dim // 2
        part = x[..., : self.dim]
        swapped = torch.cat((part[..., half:], part[..., :half]), dim=-1)
        part.mul_(cos).add_(swapped.mul_(sin))


def causal_conv(columns: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Depthwise causal convolution with SiLU, as shifted multiply-adds.

    Args:
        columns: [kernel - 1 + n, channels], model dtype: the last inputs before, then the new.
        weight: [kernel, channels] float32; the last row meets the newest input.

    Returns:
        [n, channels] float32.
    """
    kernel = weight.shape[0]
    n = columns.shape[0] - kernel + 1
    total = columns[:n] * weight[0]
    for tap in range(1, kernel):
        total.addcmul_(columns[tap : tap + n], weight[tap])
    return silu(total, inplace=True)
