"""What the API served, counted: requests, their times, the lines of feeds, errors.

Law: labels are bounded. A request is counted under its route's template, never under its path; a
path or a method that is not served counts as ``other``. An error counts under its code.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from shadow_reader.clock import Clock
from shadow_reader.errors import ShadowError
from shadow_reader.shadow.tally import Histogram

SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
METHODS: Final = frozenset(
    {hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_POST, hdrs.METH_DELETE, hdrs.METH_OPTIONS}
)
OTHER: Final = "other"
CUT: Final = "cut"
"""The status of a request that got no whole reply: its client went away, or was cut off."""


class Meter:
    """Counts for one application since its start.

    Attributes:
        requests: by method, route and status; ``cut`` stands for a reply that was not finished.
        seconds: from a request's head to the end of its handler, by route; of a feed or a stream
            that is all its life.
        lines: of feeds, answered. refused_lines: those among them that were refused.
        errors: replies and feed lines that said an error, by its code.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.requests: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self.seconds: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SECONDS))
        self.errors: defaultdict[str, int] = defaultdict(int)
        self.lines = 0
        self.refused_lines = 0

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count a request; the outermost of all, so nothing that is answered escapes it."""
        began = self._clock.monotonic()
        status = CUT
        try:
            response = await handler(request)
            status = str(response.status)
            return response
        finally:
            resource = request.match_info.route.resource
            route = resource.canonical if resource is not None else OTHER
            method = request.method if request.method in METHODS else OTHER
            self.requests[method, route, status] += 1
            self.seconds[route].observe(self._clock.monotonic() - began)

    def error(self, error: ShadowError) -> None:
        """A reply says this error."""
        self.errors[error.code] += 1

    def refused_line(self, error: ShadowError) -> None:
        """A line of a feed is answered with this error."""
        self.refused_lines += 1
        self.errors[error.code] += 1


METER: Final = web.AppKey("meter", Meter)
