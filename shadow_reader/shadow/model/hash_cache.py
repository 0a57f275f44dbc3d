"""Remembers the hash of a model folder by its files' names, sizes and times.

A cache and nothing more: what cannot be understood is hashed again. Bounded in entries.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shadow_reader.errors import ModelError
from shadow_reader.shadow.model.config import ModelConfig

FILE = "weights-hashes.json"
_SCHEME = 1
_ENTRIES = 64


class HashCache:
    """Hashes by key in one JSON file of ``folder``, which is made when first needed."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE

    def get(self, key: str) -> str | None:
        """The hash kept under ``key``, if any."""
        found = self._load().get(key)
        return found if isinstance(found, str) else None

    def put(self, key: str, digest: str) -> None:
        """Keep ``digest``; the oldest entries go when there are too many.

        Raises:
            ModelError: the folder cannot be written.
        """
        entries = {**self._load(), key: digest}
        kept = dict(list(entries.items())[-_ENTRIES:])
        fresh = self._file.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps(kept, indent=1))
            fresh.replace(self._file)
        except OSError as error:
            raise ModelError(
                f"the weights-hash cache {self._file} cannot be written: {error}",
                path=str(self._file),
            ) from error

    def _load(self) -> dict[str, Any]:
        try:
            loaded = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return {}
        return loaded if isinstance(loaded, dict) else {}


def files_key(config: ModelConfig, files: Sequence[Path]) -> str:
    """Key of these files as they are now: full name, size, and time in ns of each.

    Raises:
        ModelError: a file is gone.
    """
    facts = []
    for file in files:
        try:
            stat = file.stat()
        except OSError as error:
            raise ModelError(f"{file} cannot be read: {error}", path=str(file)) from error
        facts.append([str(file.resolve()), stat.st_size, stat.st_mtime_ns])
    told = json.dumps([_SCHEME, config.to_json(), facts], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()
