"""The Qwen3.5 dense text model in plain torch. Its shapes alone (``config``, ``names``,
``published``) do not import torch."""
