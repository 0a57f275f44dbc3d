"""The chat that a question is put into; in it only special tokens have names."""

from __future__ import annotations

from typing import Final

CHAT: Final = (
    "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""A question as the user's next message, and the model's answer, which begins without a thought."""
