"""Settings: one law each, and every refusal names its key and where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shadow_reader.config import ENV_KEYS, ENV_PREFIX, GIB, Settings, load_settings
from shadow_reader.errors import SettingsError


def toml(folder: Path, text: str) -> Path:
    file = folder / "shadow.toml"
    file.write_text(text, encoding="utf-8")
    return file


def problems(error: SettingsError) -> dict[str, str]:
    """Wrong key -> where it came from."""
    return {problem["key"]: problem["source"] for problem in error.details["problems"]}


def test_defaults_are_off_local_and_complete() -> None:
    settings = load_settings()
    assert settings == Settings()
    assert (settings.model, settings.model_spec()) == ("", "")
    assert (settings.host, settings.token) == ("127.0.0.1", None)
    assert settings.cap_bytes == 4 * GIB
    assert settings.grid_ids == 512


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1


def test_later_sources_win(tmp_path: Path) -> None:
    file = toml(tmp_path, 'port = 1000\ngrid_ids = 128\nburst_s = 1.5\nmodel = "from the file"\n')
    environ = {"QWEN38_SHADOW_PORT": "2000", "QWEN38_SHADOW_GRID": "256", "PATH": "/bin"}
    overrides: dict[str, Any] = {"port": 3000, "host": None, "token": None}
    settings = load_settings(file=file, environ=environ, overrides=overrides)
    assert (settings.port, settings.grid_ids, settings.burst_s) == (3000, 256, 1.5)
    assert settings.model == "from the file"
    assert (settings.host, settings.token) == ("127.0.0.1", None), "None was not given"
    assert load_settings(file=file, environ=environ).port == 2000
    assert load_settings(file=file).port == 1000


def test_every_variable_sets_its_setting() -> None:
    values = {
        "MODEL": ("random:tiny", "random:tiny"),
        "DIR": ("/models", Path("/models")),
        "GB": ("1.5", 1.5),
        "GRID": ("64", 64),
        "DISK": ("off", "off"),
        "DISK_GB": ("2", 2.0),
        "JOURNAL": ("/tmp/j.db", Path("/tmp/j.db")),
        "DURABILITY": ("full", "full"),
        "DEVICE": ("cpu", "cpu"),
        "THREADS": ("2", 2),
        "HOST": ("0.0.0.0", "0.0.0.0"),
        "PORT": ("0", 0),
        "TOKEN": (" secret ", "secret"),
    }
    assert values.keys() == ENV_KEYS.keys()
    settings = load_settings(environ={ENV_PREFIX + key: text for key, (text, _) in values.items()})
    for key, (_, value) in values.items():
        assert getattr(settings, ENV_KEYS[key]) == value
    assert set(ENV_KEYS.values()) <= Settings.model_fields.keys()


@pytest.mark.parametrize("name", ["QWEN38_SHADOW_PROT", "QWEN38_SHADOW_", "QWEN38_SHADOW_port"])
def test_an_unknown_variable_is_named(name: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(environ={name: "1", "OTHER": "x"})
    assert name in error.value.message
    assert problems(error.value) == {name: "environment"}


@pytest.mark.parametrize("text", ["prot = 1", "[shadow]\nport = 1", '"" = 1', "Port = 1"])
def test_an_unknown_key_of_the_file_is_named(tmp_path: Path, text: str) -> None:
    file = toml(tmp_path, text)
    with pytest.raises(SettingsError) as error:
        load_settings(file=file)
    ((key, source),) = problems(error.value).items()
    assert key in ("prot", "shadow", "", "Port")
    assert source == str(file)


def test_an_unknown_override_is_named() -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(overrides={"prot": 1})
    assert problems(error.value) == {"prot": "override"}


def test_everything_that_is_wrong_is_named_at_once_with_its_source(tmp_path: Path) -> None:
    file = toml(tmp_path, "grid_ids = 100\nburst_s = 0\nsessions = 5\nnonsense = 1\n")
    environ = {"QWEN38_SHADOW_PORT": "many", "QWEN38_SHADOW_NONSENSE": "1"}
    with pytest.raises(SettingsError) as error:
        load_settings(file=file, environ=environ, overrides={"sessions": 0})
    assert problems(error.value) == {
        "grid_ids": str(file),
        "burst_s": str(file),
        "nonsense": str(file),
        "port": "QWEN38_SHADOW_PORT",
        "QWEN38_SHADOW_NONSENSE": "environment",
        "sessions": "override",
    }
    for key in problems(error.value):
        assert key in error.value.message


OUT_OF_RANGE: list[tuple[str, list[Any]]] = [
    ("threads", [0, 257]),
    ("cap_gb", [0, -1, 1025, float("nan"), float("inf")]),
    ("grid_ids", [0, 32, 100, 8192]),
    ("pending_events", [63, 1_000_001]),
    ("pending_bytes", [1024**2 - 1, 16 * GIB + 1]),
    ("burst_s", [0, 61, float("nan")]),
    ("turn_timeout_s", [0, 86_401, float("inf")]),
    ("ask_timeout_s", [0, -3, 3_601]),
    ("port", [-1, 65_536]),
    ("requests", [0, 65_537]),
    ("streams", [0, 65_537]),
    ("exports", [0, 65]),
    ("erasures", [0, 4097]),
    ("body_bytes", [1023, GIB + 1]),
    ("bodies_bytes", [1023, 64 * GIB + 1]),
    ("body_s", [0, -1, 3_601, float("nan")]),
    ("sessions", [0, 100_001]),
    ("recent_sessions", [-1, 4097]),
    ("status_sessions", [-1, 4097]),
    ("context_ids", [-1, 16_777_217]),
    ("question_ids", [0, 65_537]),
    ("open_questions", [0, 1025]),
    ("export_bytes", [1023]),
    ("durability", ["some", ""]),
    ("device", ["tpu"]),
    ("foreground", ["none"]),
]


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in OUT_OF_RANGE for v in values])
def test_out_of_range_stops_the_start(key: str, value: Any) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(overrides={key: value})
    assert problems(error.value) == {key: "override"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", "12.5"),
        ("port", 12.5),
        ("port", True),
        ("sessions", False),
        ("burst_s", True),
        ("model", 5),
        ("journal", 5),
        ("host", ["127.0.0.1"]),
        ("threads", "two"),
        ("threads", ""),
    ],
)
def test_malformed_stops_the_start(key: str, value: Any) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(overrides={key: value})
    assert problems(error.value) == {key: "override"}


def test_every_number_has_a_limit() -> None:
    """Nothing is unbounded: each number is refused when it is absurd."""
    numbers = {
        name
        for name, field in Settings.model_fields.items()
        if field.annotation in (int, float, int | None)
    }
    assert len(numbers) > 10
    for name in numbers:
        for absurd in (-1, 10**30):
            with pytest.raises(SettingsError) as error:
                load_settings(overrides={name: absurd})
            assert problems(error.value) == {name: "override"}


def test_the_budget_of_all_bodies_holds_one_at_least() -> None:
    mib = 1024**2
    assert load_settings(overrides={"body_bytes": mib, "bodies_bytes": mib}).bodies_bytes == mib
    with pytest.raises(SettingsError, match="less than body_bytes") as error:
        load_settings(overrides={"body_bytes": mib, "bodies_bytes": mib - 1})
    assert problems(error.value) == {"bodies_bytes": "override"}
    with pytest.raises(SettingsError) as error:
        load_settings(overrides={"body_bytes": GIB})
    assert problems(error.value) == {"bodies_bytes": "default"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert load_settings(overrides={"host": host}).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "example.org", "127.0.0.2", "LOCALHOST"])
@pytest.mark.parametrize("token", [None, "", "  "])
def test_any_other_host_needs_one(host: str, token: str | None) -> None:
    with pytest.raises(SettingsError, match="token"):
        load_settings(overrides={"host": host, "token": token})
    assert load_settings(overrides={"host": host, "token": "t"}).host == host


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    cases = {
        tmp_path / "missing.toml": "cannot read",
        tmp_path: "cannot read",
        toml(tmp_path, "port = = 1"): "is not TOML",
        tmp_path / "binary.toml": "is not TOML",
    }
    for file, said in cases.items():
        with pytest.raises(SettingsError, match=said) as error:
            load_settings(file=file)
        assert str(file) in error.value.message


def test_a_bare_model_name_is_looked_up_under_dir(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    models = tmp_path / "models"

    def spec(model: str, folder: Path | None = models) -> str:
        return Settings(model=model, dir=folder).model_spec()

    assert spec("qwen") == str(models / "qwen")
    assert spec("here") == "here"
    assert spec(str(tmp_path / "absolute")) == str(tmp_path / "absolute")
    assert spec("random:tiny") == "random:tiny"
    assert spec("qwen", None) == "qwen"
    assert spec("") == ""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert spec("~/model", None) == str(tmp_path / "model")
    assert Settings(dir=Path("~/models")).cache_dir == tmp_path / "models"
    assert Settings().cache_dir == tmp_path / ".cache" / "shadow-reader"


@given(st.dictionaries(st.text(max_size=12), st.none() | st.booleans() | st.text(max_size=5)))
def test_no_override_breaks_it_in_another_way(overrides: dict[str, Any]) -> None:
    given_keys = {key for key, value in overrides.items() if value is not None}
    wrong: dict[str, str] = {}
    try:
        settings = load_settings(overrides=overrides)
    except SettingsError as error:
        wrong = problems(error)
    else:
        assert given_keys <= settings.model_fields_set
    assert set(wrong) <= given_keys | {"token"}
