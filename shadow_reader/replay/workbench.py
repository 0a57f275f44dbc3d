"""Tools of a small coding agent over Python sources. They really run, on a copy in memory.

Nothing is written to disk and no source is executed: an edit changes the copy, a check parses it.
The same sources give the same answers everywhere, also out of an installed wheel.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

MAX_FILES = 400
MAX_FILE_BYTES = 200_000
MAX_HITS = 30
LINE_CHARS = 100


class Function(NamedTuple):
    """A function or method of the sources; ``first`` and ``last`` are line numbers."""

    path: str
    name: str
    first: int
    last: int
    top_level: bool

    @property
    def lines(self) -> int:
        """How long it is."""
        return self.last - self.first + 1


class Workbench:
    """Sources by path, and what can be done with them.

    Args:
        root: a folder; every ``*.py`` below it is taken, in order of path, at most ``MAX_FILES``
            of at most ``MAX_FILE_BYTES`` each.
    """

    def __init__(self, root: Traversable) -> None:
        self.files: dict[str, str] = {}
        for path, node in sorted(_sources(root, root.name), key=lambda found: found[0]):
            data = node.read_bytes()
            if len(data) <= MAX_FILE_BYTES and len(self.files) < MAX_FILES:
                self.files[path] = data.decode(errors="replace").replace("\r\n", "\n")

    def run(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """What the tool ``tool`` prints; a mistake of the caller is told in words, as agents do."""
        tools: dict[str, Callable[..., str]] = {
            "list_files": self.list_files,
            "read_file": self.read_file,
            "search": self.search,
            "outline": self.outline,
            "edit_file": self.edit_file,
            "write_file": self.write_file,
            "run_checks": self.run_checks,
        }
        path = arguments.get("path")
        if tool in ("read_file", "outline", "edit_file") and path not in self.files:
            return f"error: no file {path!r}"
        return tools[tool](**arguments)

    def list_files(self) -> str:
        """Every file with its length."""
        return "\n".join(f"{text.count(chr(10)):5} {path}" for path, text in self.files.items())

    def read_file(self, path: str, first: int = 1, last: int = 200) -> str:
        """Numbered lines, ``first`` to ``last``."""
        lines = self.files[path].split("\n")
        shown = lines[first - 1 : last]
        numbered = "\n".join(f"{n:4}  {line}".rstrip() for n, line in enumerate(shown, first))
        more = len(lines) - first + 1 - len(shown)
        return numbered + (f"\n({more} more lines)" if more > 0 else "")

    def search(self, pattern: str) -> str:
        """Every line that matches a regular expression, the first ``MAX_HITS`` in full."""
        hits = list(self.hits(pattern))
        shown = [f"{path}:{number}: {line.strip()[:200]}" for path, number, line in hits[:MAX_HITS]]
        where = f"{len(hits)} lines in {len({path for path, _, _ in hits})} files"
        return "\n".join([*shown, f"({where})"])

    def hits(self, pattern: str) -> Iterator[tuple[str, int, str]]:
        """Path, line number and text of every matching line."""
        wanted = re.compile(pattern)
        for path, text in self.files.items():
            for number, line in enumerate(text.split("\n"), start=1):
                if wanted.search(line):
                    yield path, number, line

    def outline(self, path: str) -> str:
        """Classes and functions of one file with their lines."""
        found = [
            f"{f.first:4}-{f.last:<4} {f.lines:3} lines  {f.name}" for f in self.functions(path)
        ]
        return "\n".join(found) or "no functions"

    def functions(self, path: str) -> list[Function]:
        """Functions and methods of one file, in order; none if it does not parse."""
        return [Function(path, *found) for found in _functions(self.files[path])]

    def edit_file(self, path: str, old: str, new: str, everywhere: bool = False) -> str:
        """Replace ``old``, which must stand there once, or ``everywhere``."""
        count = self.files[path].count(old)
        if count != 1 and not (everywhere and count):
            return f"error: the old text stands {count} times in {path}, nothing was changed"
        self.files[path] = self.files[path].replace(old, new)
        return f"{path}: {count} place{'s' if count > 1 else ''} changed"

    def write_file(self, path: str, text: str) -> str:
        """A new file, or another text for one."""
        known = path in self.files
        self.files[path] = text
        return f"{path}: {'rewritten' if known else 'created'}, {len(text)} characters"

    def run_checks(self) -> str:
        """Parse every file and measure every line."""
        problems: list[str] = []
        functions = 0
        for path, text in self.files.items():
            if _parse(text) is None:
                problems.append(f"{path}: does not parse")
            functions += len(self.functions(path))
            for number, line in enumerate(text.split("\n"), start=1):
                if len(line) > LINE_CHARS:
                    found = f"line has {len(line)} characters, the limit is {LINE_CHARS}"
                    problems.append(f"{path}:{number}: {found}")
                if line != line.rstrip():
                    problems.append(f"{path}:{number}: blanks at the end of the line")
        verdict = f"FAILED, {len(problems)} problems" if problems else "passed"
        summary = f"{len(self.files)} files, {functions} functions checked: {verdict}"
        return "\n".join([*problems[:MAX_HITS], summary])


def _sources(node: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for child in node.iterdir():
        if child.is_dir() and child.name != "__pycache__" and not child.name.startswith("."):
            yield from _sources(child, f"{path}/{child.name}")
        elif child.name.endswith(".py"):
            yield f"{path}/{child.name}", child


@functools.lru_cache(maxsize=2 * MAX_FILES)
def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


@functools.lru_cache(maxsize=2 * MAX_FILES)
def _functions(text: str) -> tuple[tuple[str, int, int, bool], ...]:
    """Name, first line, last line, and whether it stands at the top level."""
    tree = _parse(text)
    if tree is None:
        return ()
    found = [
        (node.name, node.lineno, node.end_lineno or node.lineno, node in tree.body)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return tuple(sorted(found, key=lambda function: function[1]))


def _tool(name: str, does: str, required: tuple[str, ...] = (), **kinds: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    function = {"name": name, "description": does, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS: tuple[dict[str, Any], ...] = (
    _tool("list_files", "List every source file with its number of lines."),
    _tool(
        "read_file",
        "Read numbered lines of one file. Without first and last: the first 200 lines.",
        ("path",),
        path="string",
        first="integer",
        last="integer",
    ),
    _tool(
        "search",
        f"Find a Python regular expression in all files; shows at most {MAX_HITS} lines.",
        ("pattern",),
        pattern="string",
    ),
    _tool("outline", "List the functions of a file with their lines.", ("path",), path="string"),
    _tool(
        "edit_file",
        "Replace a text that stands in the file exactly once, or everywhere if told so.",
        ("path", "old", "new"),
        path="string",
        old="string",
        new="string",
        everywhere="boolean",
    ),
    _tool(
        "write_file",
        "Create a file with this text.",
        ("path", "text"),
        path="string",
        text="string",
    ),
    _tool("run_checks", "Parse all files and run the style checks over them."),
)
"""The schemas of the tools, in the form in which a chat template shows them."""
