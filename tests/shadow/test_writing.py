"""Writing on a fork: the likeliest ids, on scratch that goes away, and text in whole characters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shadow_reader.errors import OutOfRoomError
from shadow_reader.events.ids import Ids
from shadow_reader.shadow.model.load import load_model
from shadow_reader.shadow.pieces import Pieces
from shadow_reader.shadow.torch_engine import TorchEngine
from tests.fakes import fake_vocabulary
from tests.shadow.model.oracle import VOCAB, text_oracle
from tests.shadow.models import small_model
from tests.shadow.states import GIB, make_ids, read_all, same_bits, tensors

GRID = 64


def engine_of(cap: int = GIB) -> TorchEngine:
    return TorchEngine(small_model(), grid=GRID, cap_bytes=cap)


def test_against_hf_greedy_ids_are_the_likeliest_ones(tmp_path: Path) -> None:
    hf = text_oracle()
    hf.save_pretrained(tmp_path)
    model = load_model(str(tmp_path), device="cpu", dtype=torch.float32)
    engine = TorchEngine(model, grid=GRID, cap_bytes=GIB)
    known, prompt = make_ids(2 * GRID + 9, 1, VOCAB), make_ids(11, 2, VOCAB)
    read_all(engine, "s", known)
    writing = engine.write("s", tail=Ids.of(known.array(2 * GRID)), prompt=prompt, most=40)
    found = writing.next(40, ())
    writing.release()
    ids = torch.tensor([[*known, *prompt]])
    with torch.inference_mode():
        theirs = hf.generate(
            ids, do_sample=False, max_new_tokens=40, eos_token_id=None, pad_token_id=0
        )
    assert list(found) == theirs[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("line", [None, 0, 2 * GRID])
def test_slices_change_nothing_and_nothing_is_left(line: int | None) -> None:
    engine = engine_of()
    known, prompt = make_ids(4 * GRID + 5, 1), make_ids(7, 2)
    read_all(engine, "s", known.take(2 * GRID))
    engine.checkpoint("s")
    read_all(engine, "s", known)
    before, held = tensors(engine, "s"), engine.stats().bytes
    tail = Ids.of(known.array(4 * GRID if line is None else line))
    written = []
    for sizes in ([24], [1] * 24, [3, 8, 13]):
        writing = engine.write("s", tail=tail, prompt=prompt, most=24, line=line)
        assert engine.stats().bytes > held
        ids: list[int] = []
        for size in sizes:
            ids += writing.next(size, ())
        assert len(ids) == 24
        assert writing.next(1, ()) == (), "that was all it may write"
        writing.release()
        writing.release()
        written.append(ids)
        assert engine.stats().bytes == held
        assert same_bits(tensors(engine, "s"), before)
    assert written[0] == written[1] == written[2]
    stop = written[0][9]
    first = written[0].index(stop)
    writing = engine.write("s", tail=tail, prompt=prompt, most=24, line=line)
    assert list(writing.next(24, {stop})) == written[0][:first]
    assert writing.next(5, {stop}) == ()
    writing.release()


def test_case_28_it_goes_on_whatever_becomes_of_its_session() -> None:
    """Half-way the session reads on, goes back, or is dropped: the same ids are written."""
    known, prompt = make_ids(3 * GRID, 1), make_ids(7, 2)

    def written(meanwhile: str) -> list[int]:
        engine = engine_of()
        read_all(engine, "s", known)
        writing = engine.write("s", tail=Ids.of([]), prompt=prompt, most=12)
        ids = list(writing.next(4, ()))
        if meanwhile == "reads on":
            read_all(engine, "s", known.extend(make_ids(GRID, 3)))
        elif meanwhile == "goes back":
            read_all(engine, "s", make_ids(2 * GRID, 4))
        elif meanwhile == "is dropped":
            engine.drop("s", erased=True)
        ids += writing.next(8, ())
        writing.release()
        engine.drop("s", erased=True)
        assert engine.stats().bytes == 0
        return ids

    first = written("")
    assert all(written(what) == first for what in ("reads on", "goes back", "is dropped"))


def test_one_that_does_not_fit_under_the_cap_is_refused_and_takes_nothing() -> None:
    engine = engine_of()
    read_all(engine, "s", make_ids(GRID, 1))
    held = engine.stats().bytes
    with pytest.raises(OutOfRoomError, match="writing 2000000 ids above 3"):
        engine.write("s", tail=Ids.of([]), prompt=make_ids(3, 1), most=2_000_000)
    assert engine.stats().bytes == held


# -- text --------------------------------------------------------------------------------------


def test_case_13_a_character_split_across_ids_is_held_back() -> None:
    words = fake_vocabulary()  # a byte an id
    for text in ("\U0001fae0", "\u9f9c", "a\U0001fae0b\u9f9cc"):
        pieces = Pieces(words)
        said = [pieces.push([one]) for one in words.encode(text, special=False)]
        assert "".join(said) == text
        assert not any("\ufffd" in piece for piece in said)
        assert all(len(piece) <= 1 for piece in said)


@given(st.lists(st.one_of(st.text(max_size=6), st.binary(max_size=3)), max_size=8), st.data())
def test_no_piece_ever_holds_a_broken_character(
    parts: list[str | bytes], data: st.DataObject
) -> None:
    words = fake_vocabulary()
    raw = b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    ids = list(raw)
    pieces = Pieces(words)
    said = ""
    while ids:
        cut = data.draw(st.integers(1, len(ids)))
        said += pieces.push(ids[:cut])
        ids = ids[cut:]
        assert "\ufffd" not in said
    whole = raw.decode(errors="ignore")
    if all(isinstance(part, str) for part in parts):
        assert said == whole.replace("\ufffd", "")


def test_special_ids_are_no_text() -> None:
    words = fake_vocabulary()
    pieces = Pieces(words)
    assert pieces.push([*b"a", words.special.think, *b"b"]) == "ab"
