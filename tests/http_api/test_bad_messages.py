"""Every bad message gets a typed error that names field, limit and finding, and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.http_api.serving import OUTPUT, TURNS, Served

END = f"{TURNS}/t1/end"


FIRST = f"{TURNS}/t1/first_token"


ASK = "/v1/conductor/shadow/ask"


TOP = 248_319
LABEL = {"name": "done", "position": 3, "value": "yes"}
GOOD = {"question": "?", "choices": ["a", "b"]}


@dataclass(frozen=True)
class Case:
    """A request, and what must come of it; ``details`` must be among the error's details."""

    name: str
    path: str
    body: Any
    status: int
    code: str
    details: dict[str, Any]


def prompt(**fields: Any) -> dict[str, Any]:
    return {"turn": "t9", "ids": [1, 2], **fields}


def output(**fields: Any) -> dict[str, Any]:
    return {"offset": 2, "ids": [9], **fields}


CASES = [
    # ids
    Case("outside the vocabulary", TURNS, prompt(ids=[1, TOP + 1]), 422, "invalid_input",
         {"field": "ids", "index": 1, "limit": TOP, "found": str(TOP + 1)}),
    Case("negative id", TURNS, prompt(ids=[-1]), 422, "invalid_input",
         {"field": "ids", "index": 0, "found": "-1"}),
    Case("float id", TURNS, prompt(ids=[1.0]), 422, "invalid_input",
         {"field": "ids", "index": 0, "found": "1.0"}),
    Case("text id", TURNS, prompt(ids=["1"]), 422, "invalid_input", {"field": "ids", "index": 0}),
    Case("boolean id", TURNS, prompt(ids=[True]), 422, "invalid_input",
         {"field": "ids", "index": 0, "found": "True"}),
    Case("null id", OUTPUT, output(ids=[None]), 422, "invalid_input", {"field": "ids"}),
    Case("nested ids", OUTPUT, output(ids=[[1]]), 422, "invalid_input", {"field": "ids"}),
    Case("huge id", OUTPUT, output(ids=[2**40]), 422, "invalid_input",
         {"field": "ids", "found": str(2**40)}),
    Case("no list", TURNS, prompt(ids="1,2"), 422, "invalid_input",
         {"field": "ids", "found": "'1,2'"}),
    Case("an object for a list", OUTPUT, output(ids={"0": 1}), 422, "invalid_input",
         {"field": "ids"}),
    # prompts
    Case("empty prompt", TURNS, prompt(ids=[]), 422, "invalid_input", {"field": "ids", "limit": 1}),
    Case("prompt past the context", TURNS, prompt(ids=[1] * 4097), 413, "too_large",
         {"field": "ids", "limit": 4096, "found": 4097}),
    Case("keep past the known", TURNS, prompt(keep=8), 409, "conflict",
         {"field": "keep", "expected": 7, "found": 8}),
    Case("negative keep", TURNS, prompt(keep=-1), 422, "invalid_input",
         {"field": "keep", "limit": 0, "found": "-1"}),
    Case("keep as text", TURNS, prompt(keep="1"), 422, "invalid_input", {"field": "keep"}),
    Case("same turn, other prompt", TURNS, prompt(turn="t1", ids=[1]), 409, "conflict",
         {"field": "turn", "expected": 5, "found": 1}),
    Case("a turn of before", TURNS, prompt(turn="t0"), 409, "conflict", {"field": "turn"}),
    Case("empty turn name", TURNS, prompt(turn=""), 422, "invalid_input",
         {"field": "turn", "limit": 1}),
    Case("long turn name", TURNS, prompt(turn="t" * 201), 422, "invalid_input",
         {"field": "turn", "limit": 200}),
    Case("unprintable turn name", TURNS, prompt(turn="a\nb"), 422, "invalid_input",
         {"field": "turn"}),
    Case("long router", TURNS, prompt(router="r" * 201), 422, "invalid_input",
         {"field": "router", "limit": 200}),
    # outputs
    Case("unknown session", "/v1/sessions/none/turns/t1/output", output(), 404, "not_found",
         {"field": "session"}),
    Case("unknown turn", f"{TURNS}/none/output", output(), 404, "not_found",
         {"field": "turn", "found": "none"}),
    Case("gap", OUTPUT, output(offset=3), 409, "conflict",
         {"field": "offset", "expected": 2, "found": 3}),
    Case("contradiction", OUTPUT, output(offset=0, ids=[6, 8]), 409, "conflict",
         {"field": "ids", "index": 1, "expected": 7, "found": 8, "known": 2}),
    Case("negative offset", OUTPUT, output(offset=-1), 422, "invalid_input",
         {"field": "offset", "limit": 0}),
    Case("huge offset", OUTPUT, output(offset=2**63), 409, "conflict", {"field": "offset"}),
    Case("offset is true", OUTPUT, output(offset=True), 422, "invalid_input", {"field": "offset"}),
    Case("offset is a float", OUTPUT, output(offset=2.0), 422, "invalid_input",
         {"field": "offset", "found": "2.0"}),
    Case("output past the context", OUTPUT, output(ids=[1] * 4090), 413, "too_large",
         {"field": "ids", "limit": 4096, "found": 4097}),
    Case("output of an ended turn", f"{TURNS}/t0/output", output(), 409, "conflict",
         {"field": "turn", "found": "t0"}),
    Case("first token of an ended turn", f"{TURNS}/t0/first_token", {}, 409, "conflict",
         {"field": "turn"}),
    Case("first token of an unknown turn", f"{TURNS}/x/first_token", {}, 404, "not_found",
         {"field": "turn"}),
    Case("end of an unknown turn", f"{TURNS}/x/end", {}, 404, "not_found", {"field": "turn"}),
    Case("unknown reason", END, {"reason": "done"}, 422, "invalid_input", {"field": "reason"}),
    Case("our own reason", END, {"reason": "superseded"}, 422, "invalid_input",
         {"field": "reason", "found": "'superseded'"}),
    Case("negative count", END, {"produced": -1}, 422, "invalid_input", {"field": "produced"}),
    # shapes
    Case("missing field", OUTPUT, {"ids": [9]}, 422, "invalid_input",
         {"field": "offset", "problem": "is missing"}),
    Case("empty body", OUTPUT, {}, 422, "invalid_input", {"field": "offset"}),
    Case("unknown field", OUTPUT, output(id=[9]), 422, "invalid_input",
         {"field": "id", "problem": "is not a known field"}),
    Case("a field for nothing", FIRST, {"at": 1}, 422, "invalid_input", {"field": "at"}),
    Case("null for a number", OUTPUT, output(offset=None), 422, "invalid_input",
         {"field": "offset"}),
    # questions
    Case("question to an unknown session", ASK,
         {"session": "none", "question": "?", "choices": ["a", "b"]}, 404, "not_found",
         {"field": "session"}),
    *(
        Case(f"choices: {name}", ASK, {"session": "s1", "question": "?", "choices": choices}, 422,
             "invalid_input", {"field": "choices", **details})
        for name, choices, details in (
            ("none", [], {"found": 0, "limit": 26}),
            ("one", ["a"], {"found": 1, "limit": 26}),
            ("27", [str(i) for i in range(27)], {"found": 27, "limit": 26}),
            ("empty", ["a", " "], {"index": 1}),
            ("twice", ["a", "b", "a"], {"index": 2, "found": "a"}),
            ("twice but for blanks", ["a", "a "], {"index": 1}),
            ("long", ["a", "b" * 1001], {"index": 1, "limit": 1000}),
        )
    ),
    Case("choices that are no text", ASK, {"session": "s1", "question": "?", "choices": [1, 2]},
         422, "invalid_input", {"field": "choices.0"}),
    Case("unknown probe", ASK, {"session": "s1", "probe": "mood"}, 404, "not_found",
         {"field": "probe", "found": "mood"}),
    Case("probe without a name", ASK, {"session": "s1", "probe": ""}, 422, "invalid_input",
         {"field": "probe"}),
    *(
        Case(f"probe and {name}", ASK, {"session": "s1", "probe": "mood", name: value}, 422,
             "invalid_input", {"problem": f"a probe is asked by its name alone, without {name}"})
        for name, value in (
            ("choices", ["a", "b"]), ("question", "?"), ("question_ids", [1]), ("calibrate", True),
        )
    ),
    Case("no question", ASK, {"session": "s1", "choices": ["a", "b"]}, 422, "invalid_input",
         {"field": "body"}),
    Case("two questions", ASK,
         {"session": "s1", "question": "?", "question_ids": [1], "choices": ["a", "b"]}, 422,
         "invalid_input", {"field": "body"}),
    Case("empty question", ASK, {"session": "s1", "question": " ", "choices": ["a", "b"]}, 422,
         "invalid_input", {"field": "question"}),
    Case("no question ids", ASK, {"session": "s1", "question_ids": [], "choices": ["a", "b"]}, 422,
         "invalid_input", {"field": "question_ids", "limit": 1}),
    Case("bad question ids", ASK,
         {"session": "s1", "question_ids": [TOP + 1], "choices": ["a", "b"]}, 422,
         "invalid_input", {"field": "question_ids", "index": 0, "limit": TOP}),
    Case("a question past its limit", ASK,
         {"session": "s1", "question_ids": [1] * 513, "choices": ["a", "b"]}, 413, "too_large",
         {"field": "question", "found": 513, "limit": 512}),
    Case("a question that does not fit", ASK,
         {"session": "full", "question_ids": [1] * 9, "choices": ["a", "b"]}, 413, "too_large",
         {"field": "question", "found": 9, "limit": 8}),
    Case("unknown wait", ASK,
         {"session": "s1", "question": "?", "choices": ["a", "b"], "wait": "later"}, 422,
         "invalid_input", {"field": "wait"}),
    Case("no time at all", ASK,
         {"session": "s1", "question": "?", "choices": ["a", "b"], "timeout_s": 0}, 422,
         "invalid_input", {"field": "timeout_s"}),
    Case("too much time", ASK,
         {"session": "s1", "question": "?", "choices": ["a", "b"], "timeout_s": 3601}, 422,
         "invalid_input", {"field": "timeout_s", "limit": 3600}),
    *(
        Case(f"labels: {name}", "/v1/labels", {"session": "s1", "labels": labels}, 422,
             "invalid_input", details)
        for name, labels, details in (
            ("none", [], {"field": "labels", "found": 0, "limit": 1000}),
            ("too many", [LABEL] * 1001, {"field": "labels", "found": 1001}),
            ("beyond the known ids", [LABEL, {**LABEL, "position": 8}],
             {"field": "position", "index": 1, "found": 8, "limit": 7}),
            ("no number", [{**LABEL, "position": "3"}], {"field": "labels.0.position"}),
            ("below zero", [{**LABEL, "position": -1}], {"field": "labels.0.position"}),
            ("no name", [{**LABEL, "name": ""}], {"field": "labels.0.name"}),
            ("a long value", [{**LABEL, "value": "x" * 201}], {"field": "labels.0.value"}),
            ("a line break", [LABEL, {**LABEL, "value": "a\nb"}], {"field": "value", "index": 1}),
            ("more", [{**LABEL, "more": 1}], {"field": "labels.0.more"}),
        )
    ),
    Case("labels of an unknown session", "/v1/labels", {"session": "none", "labels": [LABEL]}, 404,
         "not_found", {"field": "session"}),
    Case("a position past the known ids", ASK,
         {"session": "s1", "question": "?", "choices": ["a", "b"], "wait": "position",
          "position": 8}, 422, "invalid_input", {"field": "position", "found": 8, "limit": 7}),
    *(
        Case(f"position: {name}", ASK,
             {"session": "s1", "question": "?", "choices": ["a", "b"], **about}, 422,
             "invalid_input", {"field": field})
        for name, about, field in (
            ("none", {"wait": "position"}, "body"),
            ("with fresh", {"position": 3}, "body"),
            ("below zero", {"wait": "position", "position": -1}, "position"),
            ("no number", {"wait": "position", "position": "3"}, "position"),
        )
    ),
    Case("calibrate is no text", ASK,
         {"session": "s1", "question": "?", "choices": ["a", "b"], "calibrate": "yes"}, 422,
         "invalid_input", {"field": "calibrate"}),
    *(
        Case(f"questions: {name}", f"{ASK}/many", {"session": "s1", "questions": questions}, code,
             kind, details)
        for name, questions, code, kind, details in (
            ("none", [], 422, "invalid_input", {"field": "questions"}),
            ("17", [GOOD] * 17, 422, "invalid_input",
             {"field": "questions", "found": 17, "limit": 16}),
            ("without choices", [GOOD, {"question": "?"}], 422, "invalid_input",
             {"field": "questions.1"}),
            ("a choice twice", [GOOD, {"question": "?", "choices": ["a", "a"]}], 422,
             "invalid_input", {"field": "choices", "index": 1, "question": 1}),
            ("too long", [{"question_ids": [1] * 513, "choices": ["a", "b"]}, GOOD], 413,
             "too_large", {"field": "question", "found": 513, "question": 0}),
            ("with a session of its own", [{**GOOD, "session": "s1"}], 422, "invalid_input",
             {"field": "questions.0.session"}),
        )
    ),
]  # fmt: skip


RAW = [
    ("nothing but space", b" ", 400, "field", "body"),
    ("half an object", b'{"offset": 2, "ids": [9', 400, "field", "body"),
    ("an array", b"[1]", 400, "found", "array"),
    ("a number", b"7", 400, "found", "number"),
    ("null", b"null", 400, "found", "null"),
    ("text", b'"x"', 400, "found", "string"),
    ("NaN", b'{"offset": NaN, "ids": [9]}', 400, "field", "body"),
    ("Infinity", b'{"offset": 2, "ids": [Infinity]}', 400, "field", "body"),
    ("two objects", b'{"offset": 2, "ids": [9]} {}', 400, "field", "body"),
    ("a comment", b'{"offset": 2, /* so */ "ids": [9]}', 400, "field", "body"),
    ("a comma too many", b'{"offset": 2, "ids": [9],}', 400, "field", "body"),
    ("a byte order mark", b'\xef\xbb\xbf{"offset": 2, "ids": [9]}', 400, "field", "body"),
    ("UTF-16", '{"offset": 2, "ids": [9]}'.encode("utf-16"), 400, "field", "body"),
    ("broken UTF-8", b'{"offset": 2, "ids": [9], "\xff": 1}', 400, "field", "body"),
    ("half a surrogate", b'{"offset": 2, "ids": [9], "\\ud800": 1}', 400, "field", "body"),
    ("a key twice", b'{"offset": 2, "ids": [9], "offset": 2}', 400, "field", "offset"),
    ("a key twice, spelled otherwise", b'{"ids": [9], "offset": 2, "\\u006fffset": 2}', 400,
     "field", "offset"),
    ("a key twice, deep inside", b'{"offset": 2, "ids": [{"a": 1, "a": 1}]}', 400, "field", "a"),
    ("deep nesting", b'{"ids": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "field", "body"),
    ("nesting that can be read", b'{"offset": 2, "ids": ' + b"[" * 900 + b"]" * 900 + b"}", 422,
     "field", "ids"),
    ("nesting and a key twice", b'{"a": ' + b"[" * 1000 + b"]" * 1000 + b', "a": 1}', 400,
     "field", "body"),
    ("an integer of 200 digits", b'{"ids": [9], "offset": ' + b"9" * 200 + b"}", 422, "field",
     "offset"),
    ("such an integer, and a key twice",
     b'{"ids": [9], "offset": ' + b"9" * 200 + b', "offset": 1}', 400, "field", "offset"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_bad_message(fed: Served, case: Case) -> None:
    before = await fed.everything()
    status, body = await fed.call("POST", case.path, case.body)
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"code", "message", "details"}
    assert (status, error["code"]) == (case.status, case.code), error
    assert case.details.items() <= error["details"].items(), error
    assert await fed.everything() == before


@pytest.mark.parametrize(("raw", "status", "key", "value"), [c[1:] for c in RAW],
                         ids=[c[0] for c in RAW])  # fmt: skip
async def test_bad_json(fed: Served, raw: bytes, status: int, key: str, value: str) -> None:
    before = await fed.everything()
    found, body = await fed.call("POST", OUTPUT, raw=raw)
    code = "bad_request" if status == 400 else "invalid_input"
    assert (found, body["error"]["code"]) == (status, code), body
    assert body["error"]["details"][key] == value, body
    assert await fed.everything() == before


async def test_every_problem_of_a_body_is_listed(fed: Served) -> None:
    status, body = await fed.call("POST", OUTPUT, {"ids": 7, "id": 1})
    assert status == 422
    fields = [problem["field"] for problem in body["error"]["details"]["problems"]]
    assert sorted(fields) == ["id", "ids", "offset"]


@pytest.mark.parametrize("number", [b"1e999", b"9" * 5000, b"-" + b"9" * 5000])
async def test_numbers_past_every_range(fed: Served, number: bytes) -> None:
    """Whether the parser or the model refuses them, is the parser's business."""
    before = await fed.everything()
    status, body = await fed.call("POST", OUTPUT, raw=b'{"ids": [9], "offset": ' + number + b"}")
    assert status in (400, 422), body
    assert await fed.everything() == before
