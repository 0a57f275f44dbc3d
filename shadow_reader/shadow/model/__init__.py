"""The Qwen3.5 dense text model in plain torch."""
