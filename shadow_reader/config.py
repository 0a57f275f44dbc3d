"""Settings: frozen, every one with a limit, read once at the start.

Law: a key that is unknown, malformed or out of range stops the start; the error names every such
key and where it came from. Nothing is ignored. Sources, the later wins: defaults, ``shadow.toml``,
``QWEN38_SHADOW_*`` variables, explicit overrides (command line, library).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from shadow_reader.errors import SettingsError
from shadow_reader.profiles import Profile, ShadowProfile

GIB: Final = 1024**3
MAX_PROFILES: Final = 64
ENV_PREFIX: Final = "QWEN38_SHADOW_"
ENV_KEYS: Final[Mapping[str, str]] = {
    "MODEL": "model",
    "DIR": "dir",
    "GB": "cap_gb",
    "GRID": "grid_ids",
    "DISK": "disk",
    "DISK_GB": "disk_gb",
    "JOURNAL": "journal",
    "DURABILITY": "durability",
    "DEVICE": "device",
    "THREADS": "threads",
    "HOST": "host",
    "PORT": "port",
    "TOKEN": "token",
}
"""Environment variable (without its prefix) -> setting."""


LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class Settings(BaseModel):
    """All settings of one service.

    Attributes:
        model: a model folder, a name under ``dir``, or ``random:tiny|0.8B|2B|4B``. Empty: no model
            is loaded, torch is not imported, sessions are only journaled.
        dir: folder of model folders. Also holds the cache of weight hashes.
        device: where the model runs; auto takes CUDA when there is one.
        threads: CPU threads of the model; without it all cores but one, which is the event
            loop's. Part of what makes two states comparable bit for bit.
        cap_gb: GiB that pages, states and checkpoints may take; checked before allocating.
        grid_ids: ids a chunk.
        journal: the journal's file.
        disk: where states go that leave memory: a folder; auto: beside the journal, under its name
            with ``-snapshots`` behind; off: nowhere, they are read again from the journal.
        disk_gb: GiB that the snapshots may take; the least recently used go first.
        disk_ttl_h: hours that a snapshot is kept.
        durability: normal: a commit survives the process; full: a power loss too.
        pending_events: events queued for the journal before senders wait.
        pending_bytes: the same for their bytes.
        foreground: turns: while any turn runs the reader keeps to its ration; lease: only a request
            that holds or waits for the lease counts (a shadow with a device of its own).
        burst_s: longest time the reader keeps the lease.
        turn_share: of the time since a turn's first token that the reader may use in its rounds.
        slice_s: most that it uses in one round.
        narrator_share: the same for the narrator, beside the reader's.
        summary_ids: most that a summary has. summaries: written at once.
        rounds: streamed: each piece of output that comes is a round, for engines that cannot pause;
            called: only those that the engine calls. A turn whose rounds are called has no others.
        idle_poll_s: idle windows are looked for so often; 0: as soon as one begins.
        box_lock: a file that programs lock which want the GPU of this box to themselves; the
            reader takes it for each idle burst. None: there is none.
        hold_s: longest that a hold may last. holds: holds at once.
        turn_timeout_s: a turn without news for this long is taken as ended.
        ask_timeout_s: longest a question waits when the caller names no time.
        host, port, token: where the API listens; another host than loopback needs a token.
        requests: requests served at once, open feeds and streams among them.
        streams: feeds and event streams open at once.
        exports: states handed out at once; each is held whole until its client has taken it.
        erasures: sessions being erased at once.
        body_bytes: largest request body (a feed's single line, too).
        bodies_bytes: bytes of all request bodies in memory at once, at least body_bytes; what is
            parsed out of a body takes several times as much as it does.
        body_s: longest a whole request body may take to arrive; a feed may take for ever.
        sessions: most sessions kept in view at once.
        recent_sessions: sessions read again after a start, those last heard of; at most
            ``sessions``.
        status_sessions: sessions that the status shows one by one; its sums are over all.
        context_ids: longest prompt + output; 0 takes the model's own.
        question_ids: longest question.
        open_questions: unanswered questions a session.
        router_questions: of the router's, that are open at once.
        branches: lines of talk kept beside a session's first, for prompts under its name that go on
            with none of them, at most ``sessions`` - 1; 0: such a prompt replaces what was known.
        branch_min_ids: most ids that such a prompt replaces without beginning a line of its own.
        export_bytes: largest state that is handed out as a file.
        profiles: what turns can say of themselves, by name (in TOML ``[profiles.NAME.shadow]``);
            a turn that names none has the one called ``default``, if there is one, else it is read.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=True, validate_default=True
    )

    model: str = ""
    dir: Path | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Field(ge=1, le=256)] | None = None
    cap_gb: Annotated[float, Field(gt=0, le=1024)] = 4.0
    grid_ids: Annotated[int, Field(ge=64, le=4096, multiple_of=64)] = 512
    journal: Path = Path("shadow.db")
    disk: Annotated[str, Field(min_length=1)] = "auto"
    disk_gb: Annotated[float, Field(gt=0, le=65_536)] = 32.0
    disk_ttl_h: Annotated[float, Field(gt=0, le=8_760)] = 48.0
    durability: Literal["normal", "full"] = "normal"
    pending_events: Annotated[int, Field(ge=64, le=1_000_000)] = 8192
    pending_bytes: Annotated[int, Field(ge=1024**2, le=16 * GIB)] = 64 * 1024**2
    foreground: Literal["turns", "lease"] = "turns"
    burst_s: Annotated[float, Field(gt=0, le=60)] = 2.0
    turn_share: Annotated[float, Field(ge=0, le=1)] = 0.02
    slice_s: Annotated[float, Field(gt=0, le=60)] = 0.15
    narrator_share: Annotated[float, Field(ge=0, le=1)] = 0.03
    summary_ids: Annotated[int, Field(ge=1, le=4096)] = 128
    summaries: Annotated[int, Field(ge=1, le=256)] = 4
    rounds: Literal["streamed", "called"] = "streamed"
    idle_poll_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    box_lock: Path | None = None
    hold_s: Annotated[float, Field(gt=0, le=86_400)] = 3_600.0
    holds: Annotated[int, Field(ge=1, le=1024)] = 64
    turn_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    ask_timeout_s: Annotated[float, Field(gt=0, le=3_600)] = 30.0
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8765
    token: Annotated[str, Field(min_length=1)] | None = None
    requests: Annotated[int, Field(ge=1, le=65_536)] = 1024
    streams: Annotated[int, Field(ge=1, le=65_536)] = 256
    exports: Annotated[int, Field(ge=1, le=64)] = 2
    erasures: Annotated[int, Field(ge=1, le=4096)] = 64
    body_bytes: Annotated[int, Field(ge=1024, le=GIB)] = 16 * 1024**2
    bodies_bytes: Annotated[int, Field(ge=1024, le=64 * GIB)] = 256 * 1024**2
    body_s: Annotated[float, Field(gt=0, le=3_600)] = 30.0
    sessions: Annotated[int, Field(ge=1, le=4096)] = 1024
    recent_sessions: Annotated[int, Field(ge=0, le=4096)] = 32
    status_sessions: Annotated[int, Field(ge=0, le=4096)] = 100
    context_ids: Annotated[int, Field(ge=0, le=16_777_216)] = 0
    question_ids: Annotated[int, Field(ge=1, le=65_536)] = 4096
    open_questions: Annotated[int, Field(ge=1, le=1024)] = 16
    router_questions: Annotated[int, Field(ge=1, le=4096)] = 256
    branches: Annotated[int, Field(ge=0, le=16)] = 3
    branch_min_ids: Annotated[int, Field(ge=0, le=1_048_576)] = 1024
    export_bytes: Annotated[int, Field(ge=1024, le=1024 * GIB)] = GIB
    profiles: dict[Annotated[str, Field(min_length=1, max_length=200)], Profile] = Field(
        default_factory=dict, max_length=MAX_PROFILES
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_setting_is_a_switch(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("true and false mean nothing here")
        return value

    @field_validator("journal", "dir", "box_lock", mode="before")
    @classmethod
    def _a_path_has_a_name(cls, value: Any) -> Any:
        if value == "":
            raise ValueError("an empty path names nothing")
        return value

    @field_validator("token")
    @classmethod
    def _token_for_open_binds(cls, value: str | None, info: ValidationInfo) -> str | None:
        host = info.data.get("host", "")
        if host not in LOOPBACK and not value and "host" in info.data:
            raise ValueError(f"host {host!r} is not loopback: set a token")
        return value

    @field_validator("bodies_bytes")
    @classmethod
    def _one_body_fits(cls, value: int, info: ValidationInfo) -> int:
        one = info.data.get("body_bytes", 0)
        if value < one:
            raise ValueError(f"{value} is less than body_bytes ({one}): no such body could come")
        return value

    @property
    def wants_model(self) -> bool:
        """Whether to load a model: one is named, and some profile, if there are any, reads."""
        modes = [profile.shadow.mode for profile in self.profiles.values()]
        return bool(self.model) and (not modes or "on" in modes)

    @property
    def narrated(self) -> dict[str, ShadowProfile]:
        """The profiles whose thoughts are told of, by name."""
        shadows = {name: profile.shadow for name, profile in self.profiles.items()}
        return {name: shadow for name, shadow in shadows.items() if shadow.narrator == "on"}

    @property
    def routed(self) -> dict[str, ShadowProfile]:
        """The profiles whose turns are classified, by name."""
        shadows = {name: profile.shadow for name, profile in self.profiles.items()}
        return {name: shadow for name, shadow in shadows.items() if shadow.router == "shadow"}

    @property
    def cap_bytes(self) -> int:
        """The memory cap in bytes."""
        return int(self.cap_gb * GIB)

    @property
    def snapshot_dir(self) -> Path | None:
        """Where snapshots lie; None without a disk."""
        if self.disk == "off":
            return None
        if self.disk != "auto":
            return Path(self.disk).expanduser()
        journal = self.journal.expanduser()
        return journal.with_name(f"{journal.name}-snapshots")

    @property
    def cache_dir(self) -> Path:
        """Where weight hashes are kept between starts."""
        return (self.dir or Path.home() / ".cache" / "shadow-reader").expanduser()

    def model_spec(self) -> str:
        """``model`` with a bare name resolved under ``dir``; empty when there is none."""
        if not self.model or self.model.startswith("random:"):
            return self.model
        path = Path(self.model).expanduser()
        if self.dir is not None and not path.is_absolute() and not path.exists():
            return str(self.dir.expanduser() / path)
        return str(path)


def load_settings(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the settings from all sources.

    Args:
        file: a TOML file; None reads none.
        environ: the process's environment; None reads none.
        overrides: setting -> value; None values count as not given.

    Raises:
        SettingsError: names every key that is wrong, and where it came from.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    problems: list[dict[str, str]] = []
    for source, key, value in _given(file, environ or {}, overrides or {}, problems):
        values[key] = value
        sources[key] = source
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        problems += _problems(error, sources)
    if problems:
        text = "; ".join(f"{p['key']} ({p['source']}): {p['problem']}" for p in problems)
        raise SettingsError(f"bad settings: {text}", problems=problems)
    return settings


def _given(
    file: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, Any],
    problems: list[dict[str, str]],
) -> Iterator[tuple[str, str, Any]]:
    """(source, setting, value), the later wins; variables that name no setting are problems."""
    if file is not None:
        for key, value in _from_file(file).items():
            yield str(file), key, value
    for name, value in environ.items():
        if not name.startswith(ENV_PREFIX):
            continue
        setting = ENV_KEYS.get(name.removeprefix(ENV_PREFIX))
        if setting is not None:
            yield name, setting, value
            continue
        known = ", ".join(ENV_PREFIX + known for known in ENV_KEYS)
        unknown = f"unknown variable; known are {known}"
        problems.append({"key": name, "source": "environment", "problem": unknown})
    for key, value in overrides.items():
        if value is not None:
            yield "override", key, value


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}", file=str(file)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not TOML: {error}", file=str(file)) from error


def _problems(error: ValidationError, sources: Mapping[str, str]) -> Iterator[dict[str, str]]:
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        key = ".".join(map(str, item["loc"]))
        yield {
            "key": key,
            "source": sources.get(str(item["loc"][0]), "default"),
            "problem": _plain(item["type"], item["msg"]),
        }


def _plain(kind: str, message: str) -> str:
    """What pydantic found, without its own words."""
    if kind == "extra_forbidden":
        return "is not a known setting"
    return message.removeprefix("Value error, ").replace("Input should be", "should be")
