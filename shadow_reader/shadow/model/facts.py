"""What is known of a model before it is loaded, and before torch is: its shape and its sizes."""

from __future__ import annotations

import math
from pathlib import Path

from shadow_reader.shadow.model.config import ModelConfig
from shadow_reader.shadow.model.names import tensor_shapes
from shadow_reader.shadow.model.published import PREFIX, published_config
from shadow_reader.shadow.model.weights_file import WeightsFile


def checked_config(spec: str) -> ModelConfig:
    """The shape of the model that ``spec`` names, a folder's files checked by their headers.

    Raises:
        ModelError: no such model; a folder that is missing, incomplete, broken, or of another
            architecture or shape.
    """
    return published_config(spec) if spec.startswith(PREFIX) else WeightsFile(Path(spec)).config


def weights_bytes(config: ModelConfig, itemsize: int) -> int:
    """Bytes of all weights at ``itemsize`` an element, about: a few are kept in float32."""
    return itemsize * sum(math.prod(shape) for shape in tensor_shapes(config).values())


def least_bytes(config: ModelConfig, itemsize: int, grid: int) -> int:
    """The smallest cap under which a chunk can be read: its page, its rows, two states."""
    rows = grid * config.row_bytes(itemsize)
    return 2 * rows + 2 * config.state_bytes(itemsize)
