"""Ask ``/healthz`` at a steady pace until standard input ends, then print the latencies (ms).

A process of its own, so that what it measures is the server's event loop and not the bench's.

    python -m bench.health_sampler HOST PORT
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time

EVERY_S = 0.02


def main() -> None:
    """Sample until told to stop."""
    connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=30)
    latencies: list[float] = []
    due = time.perf_counter()
    while True:
        began = time.perf_counter()
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        latencies.append((time.perf_counter() - began) * 1e3)
        due = max(due + EVERY_S, time.perf_counter())
        readable, _, _ = select.select([sys.stdin], [], [], max(0.0, due - time.perf_counter()))
        if readable:
            break
    print(json.dumps(latencies))


if __name__ == "__main__":
    main()
