"""A summary as it is written: lines of JSON, each with a piece of text, the last with the reply.

Law: a client that goes away ends the summary. What goes wrong before the first piece has its error
body; later it cuts the reply off.
"""

from __future__ import annotations

from contextlib import aclosing

import orjson
from aiohttp import web

from shadow_reader.http.api import NDJSON, Api, body_of
from shadow_reader.http.bodies import SummaryBody
from shadow_reader.http.errors import cut_on_error
from shadow_reader.http.replies import SummaryLine
from shadow_reader.http.streaming import begin_stream, write_block
from shadow_reader.profiles import NARRATE


async def post_summary(api: Api, request: web.Request) -> web.StreamResponse:
    """Summarise the last thought of the session's last turn."""
    async with body_of(api, request, SummaryBody) as body:
        session, prompt, timeout_s = body.session, body.prompt or NARRATE, body.timeout_s
    with api.streams.one():
        async with api.closing.interruptible():
            summary = await api.runtime.summary(session, prompt=prompt, timeout_s=timeout_s)
        async with aclosing(aiter(summary)) as pieces:
            async with api.closing.interruptible():
                first = await anext(pieces, None)
            response = await begin_stream(request, NDJSON)
            with cut_on_error(request):
                async with api.closing.interruptible():
                    if first is not None:
                        await write_block(response, _line(SummaryLine(first)))
                    async for piece in pieces:
                        await write_block(response, _line(SummaryLine(piece)))
                    reply = await summary.reply()
                    await write_block(response, _line(SummaryLine("", reply)))
                await response.write_eof()
    return response


def _line(line: SummaryLine) -> bytes:
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
