"""Small records as each tool writes them, for the tests of the importers."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

T0 = 1_767_345_600  # 2026-01-02T09:20:00Z


def iso(seconds: float) -> str:
    """A moment ``seconds`` after T0, as agents in JavaScript write it."""
    minutes, rest = divmod(20 * 60 + seconds, 60)
    return f"2026-01-02T{9 + int(minutes) // 60:02d}:{int(minutes) % 60:02d}:{rest:06.3f}Z"


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ms(seconds: float) -> int:
    """Milliseconds since 1970 of a moment ``seconds`` after T0."""
    return round((T0 + seconds) * 1000)


def opencode_message(number: int, at: float, **info: Any) -> dict[str, Any]:
    """An answer sent at ``at``: 1 s to the first id, a tool from 3 s to 9 s, completed at 9.1 s."""
    tokens = {"input": 100, "output": 40, "reasoning": 60, "cache": {"read": 800, "write": 100}}
    return {
        "info": {
            "id": f"msg_{number}",
            "sessionID": "ses_1",
            "role": "assistant",
            "time": {"created": ms(at), "completed": ms(at + 9.1)},
            "tokens": {**tokens, "total": 1100},
            **info,
        },
        "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "time": {"start": ms(at + 1), "end": ms(at + 2)}},
            {"type": "text", "time": {"start": ms(at + 2), "end": ms(at + 2.5)}},
            {"type": "tool", "state": {"time": {"start": ms(at + 3), "end": ms(at + 9)}}},
            {"type": "step-finish", "tokens": tokens},
        ],
    }


def opencode_export(*messages: dict[str, Any], **info: Any) -> dict[str, Any]:
    """An export of these messages."""
    return {"info": {"id": "ses_1", **info}, "messages": list(messages)}


def opencode_store(folder: Path, export: dict[str, Any]) -> Path:
    """The same session in the JSON store."""
    storage = folder / "storage"
    session = export["info"]["id"]
    files = {f"session/project/{session}": export["info"]}
    for message in export["messages"]:
        name = message["info"]["id"]
        files[f"message/{session}/{name}"] = message["info"]
        for number, part in enumerate(message["parts"]):
            files[f"part/{name}/prt_{number:03d}"] = part
    for name, value in files.items():
        path = storage / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    return folder


def opencode_database(file: Path, export: dict[str, Any]) -> Path:
    """The same session in the SQLite store, in WAL mode, closed."""
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE session (id TEXT, parent_id TEXT)")
        database.execute(
            "CREATE TABLE message (id TEXT, session_id TEXT, time_created INTEGER, data TEXT)"
        )
        database.execute("CREATE TABLE part (id TEXT, message_id TEXT, session_id TEXT, data TEXT)")
        write_opencode_rows(database, export)
    return file


def write_opencode_rows(database: sqlite3.Connection, export: dict[str, Any]) -> None:
    """Insert an export's session; its ids stand in the columns alone."""
    session = export["info"]["id"]
    database.execute("INSERT INTO session VALUES (?, ?)", (session, export["info"].get("parentID")))
    for message in export["messages"]:
        info = {k: v for k, v in message["info"].items() if k not in ("id", "sessionID")}
        name = message["info"]["id"]
        created = info["time"]["created"]
        database.execute(
            "INSERT INTO message VALUES (?, ?, ?, ?)", (name, session, created, json.dumps(info))
        )
        for number, part in enumerate(message["parts"]):
            row = (f"prt_{name}_{number:03d}", name, session, json.dumps(part))
            database.execute("INSERT INTO part VALUES (?, ?, ?, ?)", row)
    database.commit()


def claude_line(uuid: str, kind: str, at: float, **fields: Any) -> dict[str, Any]:
    """One conversation line."""
    message = {"role": kind, "content": fields.pop("content", "hi"), **fields.pop("message", {})}
    return {
        "type": kind,
        "uuid": uuid,
        "parentUuid": fields.pop("parent", None),
        "sessionId": fields.pop("session", "cc"),
        "timestamp": iso(at),
        "isSidechain": False,
        "message": message,
        **fields,
    }


def claude_block(
    uuid: str, at: float, answer: str, *, output: int = 1, stop: str | None = None, **fields: Any
) -> dict[str, Any]:
    """One block of an answer: 900 characters, a prompt of 5,000 ids."""
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 990,
        "cache_read_input_tokens": 4000,
        "output_tokens": output,
    }
    message = {"id": answer, "stop_reason": stop, "usage": usage, **fields.pop("message", {})}
    content = [{"type": "text", "text": "x" * 900}]
    return claude_line(uuid, "assistant", at, content=content, message=message, **fields)


def codex_line(at: float, kind: str, **payload: Any) -> dict[str, Any]:
    """One line of a rollout."""
    return {"timestamp": iso(at), "type": kind, "payload": payload}


def codex_count(at: float, last: dict[str, int] | None, total: dict[str, int]) -> dict[str, Any]:
    """A ``token_count`` event."""
    info = {"total_token_usage": total} | ({"last_token_usage": last} if last else {})
    return codex_line(at, "event_msg", type="token_count", info=info)


def qwen_event(at: float, name: str = "qwen-code.api_response", **event: Any) -> dict[str, Any]:
    """One ``ui_telemetry`` line."""
    return {
        "uuid": f"u{at}",
        "parentUuid": None,
        "sessionId": "qw",
        "timestamp": iso(at),
        "type": "system",
        "subtype": "ui_telemetry",
        "systemPayload": {"uiEvent": {"event.name": name, "event.timestamp": iso(at), **event}},
    }
