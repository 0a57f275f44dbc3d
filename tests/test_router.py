"""The router's question in shadow mode: beside the turn, journaled beside the router's class."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shadow_reader.config import Settings, load_settings
from shadow_reader.errors import InvalidInputError, SettingsError
from shadow_reader.events import types as t
from shadow_reader.profiles import Profile, ShadowProfile
from shadow_reader.runtime import Runtime
from shadow_reader.shadow.router import LINE_QUESTIONS, RouterStatus
from tests.fakes import GRID, FakeEngine, fake_vocabulary
from tests.runtimes import entries, runtime, until

IM_END = fake_vocabulary().special.im_end
CLASSES = {"code_edit": "changes to code", "chat": "", "debug": "finding a fault"}
LETTERS = [ord("A"), ord("B"), ord("C")]


def profiles(**changes: Any) -> dict[str, Profile]:
    shadow = {
        "mode": "on",
        "router": "shadow",
        "router_min_tokens": 2 * GRID,
        "router_classes": CLASSES,
        **changes,
    }
    return {"coding": Profile(shadow=ShadowProfile(**shadow)), "chat": Profile()}


def prompt(count: int, end: int, seed: int = 0) -> list[int]:
    """So many ids, of which the one at ``end`` ends the last message."""
    found = [(7 * i + seed) % 200 for i in range(count)]
    found[end] = IM_END
    return found


async def status(shadow: Runtime) -> RouterStatus:
    found = (await shadow.status()).router
    assert found is not None
    return found


async def answered(shadow: Runtime, count: int) -> None:
    async def enough() -> bool:
        return (await status(shadow)).answered == count

    await until(enough)


async def router_answers(shadow: Runtime) -> list[t.RouterAnswer]:
    found = [entry.event for entry in await entries(shadow, kinds=["router.answer"])]
    return [event for event in found if isinstance(event, t.RouterAnswer)]


async def test_it_is_asked_where_the_last_message_ends_and_journaled_beside_the_class(
    tmp_path: Path,
) -> None:
    ids = prompt(5 * GRID + 6, 5 * GRID + 1)
    async with runtime(tmp_path, profiles=profiles()) as shadow:
        await shadow.prompt("s", ids, turn="t1", profile="coding", router="chat", decided=True)
        await shadow.output("s", "t1", offset=0, ids=[3] * 40)
        await shadow.end("s", "t1")
        await answered(shadow, 1)
        (question,) = await entries(shadow, kinds=["question"])
        assert isinstance(question.event, t.Question)
        assert (question.event.kind, question.event.about) == ("router", 5 * GRID + 2)
        assert question.event.choices == tuple(CLASSES)
        text = fake_vocabulary().decode(list(question.event.ids))
        assert "A. code_edit: changes to code\nB. chat\nC. debug: finding a fault" in text
        (found,) = await entries(shadow, kinds=["router.answer"])
        event = found.event
        assert isinstance(event, t.RouterAnswer)
        # The message that the prompt leaves closed but for its line break gets that first.
        asked = [*ids[: 5 * GRID + 2], ord("\n"), *question.event.ids]
        expected = FakeEngine.answer_to(asked, LETTERS)
        label = list(CLASSES)[expected.index(max(expected))]
        assert (event.label, event.probability) == (label, max(expected))
        assert (event.router, event.decided, event.agree) == ("chat", True, label == "chat")
        assert (event.position, event.behind, found.turn) == (5 * GRID + 2, 0, "t1")
        (answer,) = [e.event for e in await entries(shadow, kinds=["answer"])]
        assert isinstance(answer, t.Answer)
        assert (answer.question, answer.probabilities) == (event.question, expected)
        shown = await status(shadow)
        assert (shown.asked, shown.answered, shown.open, shown.compared) == (1, 1, 0, 1)
        assert shown.agreed == (label == "chat")
        assert [(reply.turn, reply.label) for reply in shown.last] == [("t1", label)]


async def test_nothing_of_the_turn_changes(tmp_path: Path) -> None:
    """What is known, read and set aside is the same with the question as without."""
    seen: list[Any] = []
    for shadowed in (profiles(), {"coding": Profile(shadow=ShadowProfile(mode="on"))}):
        folder = tmp_path / str(len(seen))
        folder.mkdir()
        async with runtime(folder, profiles=shadowed) as shadow:
            for turn in range(3):
                ids = prompt((5 + turn) * GRID + 6, (5 + turn) * GRID + 3)
                for earlier in range(turn):  # each prompt goes on with the one before
                    ids[(5 + earlier) * GRID + 3] = IM_END
                await shadow.prompt("s", ids, turn=f"t{turn}", profile="coding")
                await shadow.end("s", f"t{turn}")
                if shadow.settings.routed:
                    await answered(shadow, turn + 1)  # the next prompt replaces its last id
                await shadow.wait_fresh("s")
            found = await shadow.session_status("s")
            seen.append((found.known, found.committed, found.checkpoints, found.rewinds))
            seen.append(await shadow.digest("s"))
    assert seen[:2] == seen[2:]


async def test_without_a_class_of_the_router_s_there_is_nothing_to_agree_with(
    tmp_path: Path,
) -> None:
    async with runtime(tmp_path, profiles=profiles()) as shadow:
        for turn, router in (("t1", None), ("t2", "a class of its own")):
            await shadow.prompt(
                "s", prompt(3 * GRID, 3), turn=turn, profile="coding", router=router
            )
            await shadow.end("s", turn)
        await answered(shadow, 2)
        assert [event.agree for event in await router_answers(shadow)] == [None, False]
        shown = await status(shadow)
        assert (shown.compared, shown.agreed) == (1, 0)


async def test_turns_that_are_not_asked_about_are_counted(tmp_path: Path) -> None:
    async with runtime(tmp_path, profiles=profiles()) as shadow:
        for session, ids, profile in (
            ("short", prompt(2 * GRID - 1, 3), "coding"),
            ("other", prompt(3 * GRID, 3), "chat"),
            ("none", prompt(3 * GRID, 3), None),
            ("endless", [1] * 3 * GRID, "coding"),
        ):
            await shadow.prompt(session, ids, turn="t1", profile=profile)
            await shadow.end(session, "t1")
        await shadow.wait_fresh("endless")

        async def both() -> bool:
            return sum((await status(shadow)).skipped.values()) == 2

        await until(both)
        shown = await status(shadow)
        assert shown.skipped == {
            "shorter than router_min_tokens": 1,
            "no message ends in the prompt": 1,
        }
        assert (shown.asked, shown.open) == (0, 0)
        assert not await entries(shadow, kinds=["question"])
        with pytest.raises(InvalidInputError, match="give router"):
            await shadow.prompt("x", [1], turn="t", decided=True)


async def test_how_far_behind_the_reader_was_when_the_turn_began(tmp_path: Path) -> None:
    async with runtime(tmp_path, profiles=profiles()) as shadow:
        hold = shadow.hold("the test", 60.0)
        ids = prompt(6 * GRID, 3)
        await shadow.prompt("s", ids, turn="t1", profile="coding")
        await shadow.output("s", "t1", offset=0, ids=[3] * 10)
        await shadow.end("s", "t1")
        await shadow.prompt("s", [*ids, *[3] * 10, IM_END, 4], turn="t2", profile="coding")
        await shadow.end("s", "t2")
        assert (await status(shadow)).open == 2
        shadow.end_hold(hold.hold)
        await answered(shadow, 2)
        behind = {
            entry.turn: entry.event.behind
            for entry in await entries(shadow, kinds=["router.answer"])
            if isinstance(entry.event, t.RouterAnswer)
        }
        assert behind == {"t1": 0, "t2": 6 * GRID + 10}


async def test_of_one_line_only_the_newest_questions_stay(tmp_path: Path) -> None:
    async with runtime(tmp_path, profiles=profiles()) as shadow:
        hold = shadow.hold("the test", 60.0)
        ids = prompt(3 * GRID, 3)
        for turn in range(LINE_QUESTIONS + 2):
            ids = [*ids, IM_END, turn]
            await shadow.prompt("s", ids, turn=f"t{turn}", profile="coding")
            await shadow.end("s", f"t{turn}")

        async def enough() -> bool:
            return (await status(shadow)).open == LINE_QUESTIONS

        await until(enough)
        shadow.end_hold(hold.hold)
        await answered(shadow, LINE_QUESTIONS)
        turns = [entry.turn for entry in await entries(shadow, kinds=["router.answer"])]
        assert turns == [f"t{turn}" for turn in range(2, LINE_QUESTIONS + 2)]


async def test_a_prompt_that_replaces_it_and_an_erasure_end_it(tmp_path: Path) -> None:
    async with runtime(tmp_path, profiles=profiles()) as shadow:
        hold = shadow.hold("the test", 60.0)
        for session in ("replaced", "erased"):
            ids = prompt(3 * GRID, 2 * GRID + 3)
            await shadow.prompt(session, ids, turn="t1", profile="coding")
            await shadow.end(session, "t1")
        await shadow.prompt("replaced", [*ids[:GRID], *[1] * GRID], turn="t2", profile="coding")
        await shadow.end("replaced", "t2")

        async def one() -> bool:
            return (await status(shadow)).open == 1

        await until(one)
        await shadow.erase("erased")
        shadow.end_hold(hold.hold)

        async def none() -> bool:
            return (await status(shadow)).open == 0

        await until(none)
        shown = await status(shadow)
        assert shown.skipped["conflict"] == 1
        assert shown.skipped["not_found"] == 1
        ends = [e.event for e in await entries(shadow, kinds=["question.ended"])]
        assert [end.reason for end in ends if isinstance(end, t.QuestionEnded)] == ["failed"]
        assert (await shadow.session_status("replaced")).open_questions == 0


async def test_after_a_restart_it_is_asked_again_only_if_it_was_not_answered(
    tmp_path: Path,
) -> None:
    changes: dict[str, Any] = {"profiles": profiles(), "foreground": "lease"}
    async with runtime(tmp_path, **changes) as shadow:
        await shadow.prompt("done", prompt(3 * GRID, 3), turn="t1", profile="coding")
        await answered(shadow, 1)
        shadow.hold("the test", 60.0)
        await shadow.prompt("open", prompt(3 * GRID, 3), turn="t1", profile="coding")
        assert (await status(shadow)).open == 1
    async with runtime(tmp_path, **changes) as shadow:
        await shadow.output("done", "t1", offset=0, ids=[1])
        await shadow.end("open", "t1")
        await answered(shadow, 1)
        shown = await status(shadow)
        assert (shown.asked, shown.answered) == (1, 1)
        found = await entries(shadow, kinds=["router.answer"])
        assert [entry.session for entry in found] == ["done", "open"]


async def test_where_too_many_are_open_the_turn_is_counted_and_goes_on(tmp_path: Path) -> None:
    async with runtime(tmp_path, profiles=profiles(), router_questions=2) as shadow:
        hold = shadow.hold("the test", 60.0)
        for session in "abc":
            await shadow.prompt(session, prompt(3 * GRID, 3), turn="t1", profile="coding")
            await shadow.end(session, "t1")
        limits = {limit.name: limit for limit in (await shadow.status()).limits}
        assert limits["router_questions"].used == limits["router_questions"].limit == 2
        shadow.end_hold(hold.hold)
        await answered(shadow, 2)
        assert (await status(shadow)).skipped == {"too many are open": 1}


def gate(shadow: Runtime) -> asyncio.Event:
    """The model is on its way until the event is set, as the router sees it."""
    router = shadow._running().router
    assert router is not None
    event = asyncio.Event()
    router.ready = event.wait
    return event


async def test_of_a_session_s_lines_the_one_with_the_turn_is_asked(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"branches": 2, "branch_min_ids": 16}
    async with runtime(tmp_path, profiles=profiles(), **changes) as shadow:
        loaded = gate(shadow)
        for turn, seed in (("t1", 0), ("t2", 99)):
            ids = prompt(4 * GRID, 4 * GRID - 1, seed)
            await shadow.prompt("s", ids, turn=turn, profile="coding")
            await shadow.end("s", turn)
        assert len({e.session for e in await entries(shadow, kinds=["prompt"])}) == 2
        loaded.set()
        await answered(shadow, 2)
        found = await entries(shadow, kinds=["router.answer"])
        assert {e.turn: e.session for e in found} == {"t1": "s", "t2": "s~branch1"}


async def test_a_prompt_that_came_while_the_model_was_loaded_is_not_asked_in_its_place(
    tmp_path: Path,
) -> None:
    async with runtime(tmp_path, profiles=profiles()) as shadow:
        loaded = gate(shadow)
        for turn, seed in (("t1", 0), ("t2", 99)):
            ids = prompt(4 * GRID, 4 * GRID - 1, seed)
            await shadow.prompt("s", ids, turn=turn, profile="coding")
            await shadow.end("s", turn)
        loaded.set()
        await answered(shadow, 1)
        (found,) = await entries(shadow, kinds=["router.answer"])
        assert found.turn == "t2"
        assert (await status(shadow)).skipped == {"conflict": 1}


async def test_a_session_opened_anew_under_its_name_is_asked_about(tmp_path: Path) -> None:
    async with runtime(tmp_path, profiles=profiles()) as shadow:
        for count in (1, 2):
            await shadow.prompt("s", prompt(3 * GRID, 3), turn="t1", profile="coding")
            await shadow.end("s", "t1")
            await answered(shadow, count)
            await shadow.erase("s")


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('router = "shadow"', "two router_classes"),
        ('router = "shadow"\nrouter_classes = {a = "x"}', "two router_classes"),
        ('mode = "off"\nrouter = "shadow"\nrouter_classes = {a = "", b = ""}', "mode = on"),
        ('router_chat = "no place"', "{question}, once"),
        ('router_chat = "{question} {question}"', "{question}, once"),
        ("router_min_tokens = 0", "greater than or equal to 1"),
        ("router_timeout_s = 0", "greater than 0"),
        ("router_classes = {" + ", ".join(f'c{i} = ""' for i in range(27)) + "}", "26"),
        ('router_classes = {" " = "", b = ""}', "1 character"),
    ],
)
def test_settings_that_cannot_be_meant_stop_the_start(tmp_path: Path, toml: str, said: str) -> None:
    file = tmp_path / "shadow.toml"
    mode = "" if "mode =" in toml else 'mode = "on"\n'
    file.write_text(f"[profiles.a.shadow]\n{mode}{toml}\n")
    with pytest.raises(SettingsError, match=r"profiles\.a\.shadow") as caught:
        load_settings(file=file)
    assert said in str(caught.value)


def test_settings_as_a_person_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "shadow.toml"
    file.write_text(
        """
        [profiles.coding.shadow]
        mode = "on"
        router = "shadow"
        router_min_tokens = 4096
        router_question = "Which is it?"
        [profiles.coding.shadow.router_classes]
        code_edit = "changes to code"
        chat = ""
        """
    )
    routed = load_settings(file=file).routed
    assert list(routed) == ["coding"]
    assert routed["coding"].router_classes == {"code_edit": "changes to code", "chat": ""}
    assert not Settings().routed
