"""Snapshots of sessions as folders of safetensors files. Knows named bytes, never a model."""
