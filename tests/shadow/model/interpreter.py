"""Triton's interpreter on the CPU; to be imported before any kernel.

The interpreter is chosen when a kernel is defined. It turns a loaded number into an index through
numpy's conversion of arrays of one element, which newer numpy refuses: that one step is mended.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton")

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_index(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_with_index
