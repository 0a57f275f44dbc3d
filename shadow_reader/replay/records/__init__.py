"""Recorded agent sessions, one module a tool."""
