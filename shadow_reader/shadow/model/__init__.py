"""The Qwen3.5 dense text model in plain torch."""

from __future__ import annotations

from shadow_reader.shadow.model.config import ModelConfig
from shadow_reader.shadow.model.load import load_model
from shadow_reader.shadow.model.qwen35 import Qwen35, RecurrentState, Step

__all__ = ["ModelConfig", "Qwen35", "RecurrentState", "Step", "load_model"]
