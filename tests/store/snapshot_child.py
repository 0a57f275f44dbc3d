"""A process that spills a few sessions again and again until it is killed.

    python -m tests.store.snapshot_child ROOT SEED CAP

Each line of its output is a snapshot whose head was written: the session, ``spilled``, its seq.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from tests.store.snapshot_samples import opened, sample, spill

VERSIONS = {
    session: [
        sample(session, pages, seq=seq, rows=60)
        for seq, pages in enumerate(["a", "ab", "abc", "xbc", "xy"], 1)
    ]
    for session in ("one", "two", "three")
}


def main(root: Path, seed: int, cap: int) -> None:
    """Spill until killed."""
    choices = random.Random(seed)
    store = opened(root, cap=cap)
    while True:
        session = choices.choice(list(VERSIONS))
        version = choices.choice(VERSIONS[session])
        spill(store, version)
        os.write(1, f"{session} spilled {version.manifest.seq}\n".encode())
        if choices.random() < 0.1:
            store.erase(session)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
