"""Which tool wrote a path is told by what it holds; what was tried stands in the error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from shadow_reader.errors import RecordError
from shadow_reader.replay.ledger.imports import (
    claude_code,
    codex,
    opencode,
    opencode_stores,
    pi,
    proxies,
    qwen_code,
)
from shadow_reader.replay.ledger.imports.opencode_stores import Progress
from shadow_reader.replay.ledger.imports.requests import Imported, Intake
from shadow_reader.replay.records.claude_code import is_transcript
from shadow_reader.replay.records.detect import json_lines, load_text, whole_value
from shadow_reader.replay.records.fields import as_object
from shadow_reader.replay.records.opencode import is_export
from shadow_reader.replay.records.pi import is_session

TRIED: Final = (
    "opencode (export, JSON store folder, SQLite database), Claude Code, Codex, Pi and qwen-code "
    "session files, LiteLLM spend logs, vLLM multi-turn benchmark statistics"
)
UNKNOWN: Final = "files of an unknown format"

_LOOK_LINES: Final = 50
_ENDINGS: Final = (".json", ".jsonl")

Rows = Sequence[tuple[int, dict[str, Any]]]


def import_records(paths: Sequence[Path], progress: Progress | None = None) -> Imported:
    """Read records of any known format into turns.

    Args:
        paths: files, opencode's storage folder, or folders whose ``.json``, ``.jsonl`` and
            ``opencode.db`` files are all looked at.
        progress: told how many files (of a store, sessions) are done, and how many there are.

    Raises:
        RecordError: a path cannot be read, is of no known format (the error lists those tried), or
            holds no request. In a folder a file of no known format is counted as left out.
    """
    intake = Intake()
    steps: list[tuple[Path, bool]] = []
    for path in paths:
        if not path.exists():
            raise RecordError(f"{path} does not exist", path=str(path))
        if path.is_dir() and not opencode_stores.is_store(path):
            found = [file for file in sorted(path.rglob("*")) if _may_be(file)]
            if not found:
                raise RecordError(f"{path} holds no file to import; tried: {TRIED}", path=str(path))
            steps += [(file, True) for file in found]
        else:
            steps.append((path, False))
    for number, (path, among_others) in enumerate(steps, start=1):
        inside = progress if progress is not None and len(steps) == 1 else _silent
        _take(intake, path, inside, among_others)
        if progress is not None and len(steps) > 1:
            progress(number, len(steps))
    try:
        return intake.done()
    except RecordError as error:
        unknown = error.details.get("left_out", {}).get(UNKNOWN, 0)
        tried = f"; tried: {TRIED}" if unknown else ""
        raise RecordError(error.message + tried, **error.details) from error


def _silent(_done: int, _total: int) -> None:
    """A part of several reports nothing of its own."""


def _may_be(file: Path) -> bool:
    return file.is_file() and (file.suffix in _ENDINGS or file.name == "opencode.db")


def _take(intake: Intake, path: Path, progress: Progress, among_others: bool) -> None:
    if path.is_dir():
        intake.source(opencode.SOURCE)
        opencode_stores.take_store(intake, path, progress)
    elif _magic(path) == opencode_stores.SQLITE_MAGIC:
        intake.source(opencode.SOURCE)
        opencode_stores.take_database(intake, path, progress)
    else:
        try:
            known = _take_text(intake, load_text(path))
        except RecordError as error:
            raise RecordError(f"{path}: {error.message}", path=str(path)) from error
        if not known and among_others:
            intake.leave_out(UNKNOWN)
        elif not known:
            raise RecordError(f"{path}: format unknown; tried: {TRIED}", path=str(path))


def _magic(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(opencode_stores.SQLITE_MAGIC))
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordError(f"{path} cannot be read: {reason}", path=str(path)) from error


def _take_text(intake: Intake, text: str) -> bool:
    """Take a file's requests; False if its format is unknown."""
    if not text.strip():
        raise RecordError("the file is empty")
    whole = whole_value(text)
    if is_export(whole):
        intake.source(opencode.SOURCE)
        opencode.take_export(intake, whole)
        return True
    rows = _table(whole) if whole is not None else _lines(intake, text)
    found = _reader(rows)
    if found is None:
        return False
    source, take = found
    intake.source(source)
    take(intake, rows)
    return True


def _table(whole: Any) -> Rows:
    """The rows of a JSON array, or of one under a name; a lone object is the only row."""
    if isinstance(whole, dict):
        lists = [whole[name] for name in ("data", "per_request", "rows") if name in whole]
        whole = lists[0] if lists and isinstance(lists[0], list) else [whole]
    if not isinstance(whole, list):
        raise RecordError(f"must hold objects, found {type(whole).__name__}")
    return [(n, as_object(row, f"row {n}")) for n, row in enumerate(whole, start=1)]


def _lines(intake: Intake, text: str) -> Rows:
    try:
        return json_lines(text)
    except RecordError:
        above, _, last = text.rpartition("\n")
        if not last.strip() or not above.strip():
            raise
        rows = json_lines(above)  # whoever writes the file is in the middle of its last line
        intake.leave_out("half-written last lines")
        return rows


def _reader(rows: Rows) -> tuple[str, Callable[[Intake, Rows], None]] | None:
    looked = [row for _, row in rows[:_LOOK_LINES]]
    if not looked:
        return None
    if is_session(looked[0]):
        return pi.SOURCE, pi.take_session
    if all(map(proxies.is_spend_log, looked)):
        return proxies.LITELLM, proxies.take_spend_logs
    if all(map(proxies.is_request_stats, looked)):
        return proxies.VLLM, proxies.take_request_stats
    if any(map(qwen_code.is_chat, looked)):
        return qwen_code.SOURCE, qwen_code.take_chat
    if any(map(is_transcript, looked)):
        return claude_code.SOURCE, claude_code.take_transcript
    if any(map(codex.is_rollout, looked)):
        return codex.SOURCE, codex.take_rollout
    return None
