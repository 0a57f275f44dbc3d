"""One error tree. Every error the world can cause is a ShadowError; our own bugs are assertions.

Each class fixes a stable ``code`` (the API's ``error.code``) and an HTTP ``status``.
``details`` is plain JSON and names the field, the limit and what was found.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ShadowError(Exception):
    """Base of all errors that callers may see.

    Args:
        message: one sentence for a person; names the field, the limit and what was found.
        details: the same facts for a program; JSON values only.
    """

    code: ClassVar[str] = "shadow_error"
    status: ClassVar[int] = 500

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details


class BadRequestError(ShadowError):
    """The request cannot be read at all: broken JSON, not an object."""

    code = "bad_request"
    status = 400


class InvalidInputError(ShadowError):
    """A field has a wrong type, value or range, or is unknown."""

    code = "invalid_input"
    status = 422


class TooLargeError(ShadowError):
    """A body, prompt, question or session passes a limit of the settings."""

    code = "too_large"
    status = 413


class NotFoundError(ShadowError):
    """No such session, turn or question."""

    code = "not_found"
    status = 404


class ConflictError(ShadowError):
    """The message contradicts what the journal holds; ``details`` says what was expected."""

    code = "conflict"
    status = 409


class ForbiddenError(ShadowError):
    """A missing or wrong token, or a Host header that is not ours."""

    code = "forbidden"
    status = 403


class BusyError(ShadowError):
    """A bound is reached (sessions, forks in flight, queue); try again later."""

    code = "busy"
    status = 503


class OutOfRoomError(ShadowError):
    """The memory cap leaves no room for the next page, state or checkpoint; nothing changed."""

    code = "out_of_room"
    status = 507


class ForkError(ShadowError):
    """The forward of a question failed; the session's state is as it was."""

    code = "fork_failed"


class AskTimeoutError(ShadowError):
    """The answer did not come within the caller's ``timeout_s``."""

    code = "timeout"
    status = 504


class ShutDownError(ShadowError):
    """The runtime is closing; nothing new is taken."""

    code = "shut_down"
    status = 503


class UnreachableError(ShadowError):
    """A client's own error: no shadow reader answers at the address, or the line broke."""

    code = "unreachable"
    status = 502


class SettingsError(ShadowError):
    """A setting is unknown, malformed or out of range. Stops the start."""

    code = "bad_settings"


class ModelError(ShadowError):
    """A model folder that is missing, incomplete, of another architecture or shape; no model."""

    code = "bad_model"
    status = 503


class ProbeError(ShadowError):
    """A probe that may not be asked: retired, another model's, damaged, or not shown to beat the
    constant; ``details`` names it and says which."""

    code = "probe_refused"
    status = 409


class TrainingError(InvalidInputError):
    """Labels that no probe can be learned from: too few, too few sessions, one class, too many;
    ``details`` has the counts by class."""

    code = "cannot_train"


class MissingExtraError(ShadowError):
    """A package of an optional extra is not installed; names both."""

    code = "missing_extra"


class VocabularyError(ShadowError):
    """No tokenizer for this model, or text was given where only ids can be used."""

    code = "no_vocabulary"
    status = 422


class RecordError(ShadowError):
    """A recorded session that cannot be read: unknown format, broken line, nothing to feed."""

    code = "bad_record"


class LedgerError(RecordError):
    """A usage ledger, or a line of it, that is refused; names line and field."""

    code = "bad_ledger"


class JournalError(ShadowError):
    """The journal cannot be opened or written."""

    code = "journal_error"
    status = 503


class JournalLockedError(JournalError):
    """Another process has this journal open for writing."""

    code = "journal_locked"


class JournalFormatError(JournalError):
    """Not a journal, a damaged one, or one written by a newer version."""

    code = "journal_format"


class JournalFullError(JournalError):
    """The disk is full: nothing of the append was kept."""

    code = "journal_full"
    status = 507


class UnknownEventError(JournalFormatError):
    """An event kind or version this build does not know. Never skipped."""

    code = "unknown_event"


class SnapshotError(ShadowError):
    """A snapshot that is refused, or cannot be read or written; names file and finding."""

    code = "snapshot_refused"


class SnapshotFullError(SnapshotError):
    """The disk cap or the disk itself leaves no room; nothing of the new snapshot was kept."""

    code = "snapshot_full"
    status = 507
