"""Triton's interpreter on the CPU (chosen in ``tests/conftest.py``); imported before any kernel.

It turns a loaded number into an index through numpy's conversion of arrays of one element, which
newer numpy refuses: that one step is mended.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("on a device test_cuda.py runs the kernels", allow_module_level=True)

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_index(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_with_index
