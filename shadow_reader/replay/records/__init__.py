"""Readers of recorded agent sessions: from a file to the messages that its prompts held."""

from shadow_reader.replay.records.detect import read_recording
from shadow_reader.replay.records.recording import Message, Recording, ToolCall

__all__ = ["Message", "Recording", "ToolCall", "read_recording"]
