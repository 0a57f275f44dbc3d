"""Prompts that do not go on where the last one ended, as people reported them.

The numbers are those of the list of reported faults. Each goes through a whole service.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from shadow_reader.cli.status import session_view
from shadow_reader.events import types as t
from tests.cases.service import (
    CHOICES,
    GRID,
    QUESTION,
    assert_like_fresh,
    chunks_read,
    events,
    ids,
    lines,
    read_to_the_end,
    served,
    turn,
    until,
)
from tests.shadow.models import MINIMAL, Fake, small_model

THINK, END_THINK = 250, 251


@pytest.mark.parametrize("left_over", [[], [THINK, END_THINK]], ids=["dropped", "empty pair"])
async def test_case_01_earlier_reasoning_is_dropped_from_the_next_prompt(
    tmp_path: Path, left_over: list[int]
) -> None:
    model = small_model()
    prompt, said = ids(1_200, 1, model), ids(300, 3, model)
    thought = [THINK, *ids(700, 2, model), END_THINK]
    second = [*prompt, *left_over, *said, *ids(400, 4, model)]
    cut = 1_200 + len(left_over[:1])
    async with served(tmp_path, model) as shadow:
        await turn(shadow, "s", "t1", prompt, [*thought, *said])
        await assert_like_fresh(shadow, "s", [*prompt, *thought, *said], model)
        chunks_read(model)
        await turn(shadow, "s", "t2", second)
        await assert_like_fresh(shadow, "s", second, model)
        assert await events(shadow, "s", "rewind") == [t.Rewind(cut, 1_024, cut - 1_024)]
        assert chunks_read(model) == lines(1_024, len(second))
    async with served(tmp_path, small_model()) as again:
        await assert_like_fresh(again, "s", second, model)


@pytest.mark.parametrize(
    ("prompt_ends", "back_to"),
    [
        ((8_000, 20_000, 32_300, 60_000, 90_000, 111_000), 32_256),
        ((8_000, 20_000, 40_000, 60_000, 90_000, 111_000), 19_968),
        ((8_000, 40_000, 50_000, 60_000, 70_000, 90_000, 111_000), 0),
    ],
    ids=["a checkpoint just below", "the newest one that holds", "none that holds"],
)
async def test_case_02_a_111k_session_that_agrees_only_up_to_32379(
    tmp_path: Path, prompt_ends: tuple[int, ...], back_to: int
) -> None:
    """Real sizes, the model's arithmetic faked. While the turn runs nothing is read at all."""
    model = Fake()
    whole = ids(111_000, 1, model)
    stripped = [*whole[:32_379], *ids(10_000, 2, model)]
    async with served(tmp_path, model) as shadow:
        for number, end in enumerate(prompt_ends):
            await turn(shadow, "s", f"t{number}", whole[:end])
            await read_to_the_end(shadow, "s")
        assert chunks_read(model) == lines(0, 111_000)
        await shadow.prompt("s", stripped, turn="last")

        async def waits() -> bool:
            status = await shadow.session_status("s")
            return status.note.startswith("waits while turns run")

        await until(waits)
        assert chunks_read(model) == []
        await shadow.end("s", "last")
        await assert_like_fresh(shadow, "s", stripped, model)
        assert chunks_read(model) == lines(back_to, len(stripped))


@pytest.mark.parametrize(
    ("system", "output"), [(0, 0), (1_000, 100)], ids=["308 ids in all", "above a checkpoint"]
)
async def test_case_03_a_tool_round_rendered_differently(
    tmp_path: Path, system: int, output: int
) -> None:
    """263 of 308 ids agree: once as reported, once on top of a system prompt, where it bites."""
    model = small_model()
    before = ids(system, 7, model)
    round_one = ids(308 + output, 1, model)
    first = [*before, *round_one]
    second = [*before, *round_one[:263], (round_one[263] + 1) % 256, *ids(900, 2, model)]
    async with served(tmp_path, model) as shadow:
        if system:
            await turn(shadow, "s", "t0", before)
        await turn(shadow, "s", "t1", first[: system + 199], first[system + 199 :])
        await assert_like_fresh(shadow, "s", first, model)
        chunks_read(model)
        await turn(shadow, "s", "t2", second)
        await assert_like_fresh(shadow, "s", second, model)
        held = len(first) // GRID * GRID
        back_to = held if held <= system + 263 else system // GRID * GRID
        rewinds = await events(shadow, "s", "rewind")
        assert bool(rewinds) == (held > system + 263)
        assert chunks_read(model) == lines(back_to, len(second))


def shown(view: RenderableType) -> str:
    """What people see of it, in one line."""
    console = Console(file=io.StringIO(), width=400)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


async def test_case_04_a_nonce_early_in_the_prompt_changes_every_turn(tmp_path: Path) -> None:
    """Real sizes, the model's arithmetic faked; the id at position 40 is another one each turn.

    It is read again from the start, once a turn and no more; the status says why; a session
    beside it is answered before all of that is read.
    """
    model = Fake()
    body, other = ids(60_000, 1, model), ids(3_000, 2, model)

    def prompt(number: int) -> list[int]:
        return [*body[:40], number, *body[41:]]

    async with served(tmp_path, model, burst_s=0.02) as shadow:
        for number in range(3):
            await turn(shadow, "s", f"t{number}", prompt(number))
            await assert_like_fresh(shadow, "s", prompt(number), model)
            assert chunks_read(model) == lines(0, 60_000)
        assert (await shadow.session_status("s")).fresh
        for number in range(3, 20):
            await turn(shadow, "s", f"t{number}", prompt(number))
            status = await shadow.session_status("s")
            if status.rewritten:
                break
        assert "the newest 40 of 60000 ids" in status.rewritten
        assert "40 of 60000" in shown(session_view(status))
        await turn(shadow, "other", "t1", other)
        reply = await shadow.ask("other", QUESTION, CHOICES)
        assert (reply.position, reply.behind) == (len(other), 0)
        status = await shadow.session_status("s")
        assert status.behind > 0, "the other one was answered first"
        assert not status.fresh
        assert not (await shadow.session_status("other")).rewritten
        last = prompt(number)
        await assert_like_fresh(shadow, "s", last, model)
        await turn(shadow, "s", "grown", [*last, *ids(700, 3, model)])
        assert not (await shadow.session_status("s")).rewritten, "this one went on"


async def test_case_08_the_same_text_in_other_ids_is_a_rewind(tmp_path: Path) -> None:
    """Decoding and encoding again is not the identity: ids are compared, never text."""
    model = small_model(config=MINIMAL)
    before, after = ids(1_300, 1, model), ids(600, 2, model)
    streamed = [*before, 53_122, 316, *after]
    rendered = [*before, 393, 30_002, *after]
    async with served(tmp_path, model) as shadow:
        await turn(shadow, "s", "t1", before, streamed[1_300:])
        await assert_like_fresh(shadow, "s", streamed, model)
        chunks_read(model)
        await turn(shadow, "s", "t2", rendered)
        await assert_like_fresh(shadow, "s", rendered, model)
        assert await events(shadow, "s", "rewind") == [t.Rewind(1_300, 1_024, 276)]
        assert chunks_read(model) == lines(1_024, len(rendered))


async def test_case_09_ids_missing_from_the_stream_make_the_turn_unsure(tmp_path: Path) -> None:
    """A tool parser swallowed 9 ids; the next prompt has them, and it decides."""
    model = small_model()
    prompt, output = ids(1_100, 1, model), ids(900, 2, model)
    streamed = [*output[:200], *output[209:]]
    assert output[200] != streamed[200]
    second = [*prompt, *output, *ids(50, 3, model)]
    async with served(tmp_path, model) as shadow:
        await turn(shadow, "s", "t1", prompt, streamed, produced=len(output))
        status = await shadow.session_status("s")
        assert (status.unsure, status.output) == (True, len(streamed))
        await assert_like_fresh(shadow, "s", [*prompt, *streamed], model)
    async with served(tmp_path, model) as again:
        status = await read_to_the_end(again, "s")
        assert (status.unsure, status.committed) == (True, 1_536), "journaled"
        await again.prompt("s", second, turn="t2")
        await again.end("s", "t2", produced=0)
        assert not (await again.session_status("s")).unsure
        await assert_like_fresh(again, "s", second, model)
        assert await events(again, "s", "rewind") == [t.Rewind(1_300, 1_024, 276)]
