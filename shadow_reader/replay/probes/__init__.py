"""Probes, trained and measured on what a journal holds."""
