"""A coding session made from this project's own sources, for when there is no recorded one.

What the tools return is real: ``workbench.py`` runs them over the sources. What the person and the
model say is scripted around it, and names only what the tools have shown. The same sources and
seed give the same session, so a fresh prefill elsewhere can be compared with it.
"""

from __future__ import annotations

import importlib.resources
import random
import re
from collections import Counter
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from shadow_reader.errors import RecordError
from shadow_reader.replay.dialogue import Dialogue
from shadow_reader.replay.records import Recording
from shadow_reader.replay.workbench import LINE_CHARS, TOOLS, Function, Workbench

SOURCE = "made"

_READ_LINES = 170
_LEAST_FILES = 4
_SYSTEM = f"""\
You are the coding assistant of a small Python project. Somebody works with you in a terminal.

How you work:
- Look before you answer: list, search and read, and say only what you have seen.
- Name files with their path and functions with their line, so that they can be found.
- Change as little as possible. Keep the style of the file that you change.
- Run the checks after every change, and say plainly when they fail. Lines have at most
  {LINE_CHARS} characters.
- Several tools may be called at once when none needs the result of another.
- Keep answers short. No praise, no promises, no lists of what could be done besides.

The sources lie in memory below the folder that list_files shows. Edits change them for this
session only; nothing is written to the disk of the person you work with."""


def make_recording(root: Path | None = None, *, seed: int = 1) -> Recording:
    """Make a session: seven user messages, about thirty turns, over 12,000 ids when rendered.

    Args:
        root: a folder with Python sources; None for this package's own, also when installed.
        seed: picks the files and functions that the session is about.

    Raises:
        RecordError: ``root`` is no folder or has fewer than four files long enough to talk about.
    """
    folder: Traversable = importlib.resources.files("shadow_reader") if root is None else root
    if not folder.is_dir():
        raise RecordError(f"{root} is no folder with Python sources", path=str(root))
    script = _Script(Workbench(folder), seed, where=str(root or "shadow_reader"))
    script.get_to_know()
    script.find_errors()
    script.add_a_note()
    script.find_the_longest()
    script.rename_a_helper()
    script.write_a_test()
    script.sum_up()
    return Recording(
        session=f"made-{seed}",
        source=SOURCE,
        system=_SYSTEM,
        tools=TOOLS,
        messages=tuple(script.messages),
    )


class _Script(Dialogue):
    """Plays the session; each method is one message of the person and the work it asks for."""

    def __init__(self, bench: Workbench, seed: int, where: str) -> None:
        super().__init__(bench)
        self._changes: list[str] = []
        talkable = [
            path
            for path, text in bench.files.items()
            if text.startswith('"""') and 60 <= text.count("\n") <= 400 and bench.functions(path)
        ]
        if len(talkable) < _LEAST_FILES:
            raise RecordError(
                f"{where} has {len(talkable)} Python files of 60 to 400 lines with a docstring and "
                f"a function, at least {_LEAST_FILES} are needed to make a session",
                limit=_LEAST_FILES,
                found=len(talkable),
            )
        chance = random.Random(seed)
        by_length = sorted(talkable, key=lambda path: (-bench.files[path].count("\n"), path))
        self._picks = chance.sample(by_length[: max(_LEAST_FILES, len(by_length) // 2)], k=4)

    def get_to_know(self) -> None:
        first, second, *_ = self._picks
        self.ask(
            "I have just checked this project out. What is it made of? Read two of the longer "
            "files and tell me what they are for."
        )
        self.act(
            "I know nothing about the project yet. The list of files shows the parts and where "
            "most of the code is; then I can choose two files that are worth reading in full.",
            "Let me see what there is.",
            ("list_files", {}),
        )
        parts = Counter(path.split("/")[1] for path in self.bench.files if path.count("/") > 1)
        named = ", ".join(f"{part} ({count} files)" for part, count in parts.most_common(5))
        self.act(
            f"There are {len(self.bench.files)} files. The biggest folders are {named or 'none'}. "
            f"{first} and {second} are long enough to show how things are done here. Neither read "
            "needs the other's result, so I do both at once.",
            f"I read {first} and {second}.",
            ("read_file", {"path": first, "first": 1, "last": _READ_LINES}),
            ("read_file", {"path": second, "first": 1, "last": _READ_LINES}),
        )
        self.act(
            "Both begin with a docstring that states what the file holds to. Before I answer I "
            "want to know how the parts depend on each other: the imports tell.",
            "",
            ("search", {"pattern": r"^from \w+\.\w+(\.\w+)* import \w+$"}),
        )
        self.say(
            "The docstrings say it best; I quote their first sentences and point to the folders.",
            f"The project has {len(self.bench.files)} files; its parts are {named or 'flat'}.\n\n"
            f"- `{first}`: {self._opening(first)}\n- `{second}`: {self._opening(second)}\n\n"
            "Imports inside the package go by full name, so you can search for a module's path "
            "to see who uses it.",
        )

    def find_errors(self) -> None:
        self.ask("Where does it raise errors, and which kind most often? Show me that class.")
        self.act(
            "A search for raise statements with a capitalised name gives the places. The kinds can "
            "be counted from there.",
            "",
            ("search", {"pattern": r"\braise [A-Z]\w+"}),
        )
        raised = Counter(
            re.findall(r"raise ([A-Z]\w+)", line)[0]
            for _, _, line in self.bench.hits(r"\braise [A-Z]\w+")
        )
        kind, count = raised.most_common(1)[0] if raised else ("ValueError", 0)
        pattern = rf"^class {kind}\b"
        self.act(
            f"{kind} is raised {count} times, more often than any other. Where is it defined?",
            f"`{kind}` leads with {count} places. I look for its definition.",
            ("search", {"pattern": pattern}),
        )
        place = next(self.bench.hits(pattern), None)
        if place is None:
            self.say(
                "The search found nothing, so the class comes from outside.",
                f"`{kind}` is raised {count} times; it is not defined in these files.",
            )
            return
        path, line, _ = place
        self.act(
            f"It stands in {path} at line {line}. Its neighbours are probably errors as well, so I "
            "read a good part of that file.",
            "",
            ("read_file", {"path": path, "first": max(1, line - 40), "last": line + 60}),
        )
        others = ", ".join(f"{name} ({n})" for name, n in raised.most_common(5)[1:])
        self.say(
            "",
            f"`{kind}` is raised {count} times and defined in `{path}`, line {line}. "
            f"The next ones are {others or 'none'}.",
        )

    def add_a_note(self) -> None:
        path = self._picks[2]
        self.ask(
            f"Add a note to the docstring of {path}: how many functions the file has, and that "
            "the number was counted by hand. Then run the checks."
        )
        self.act(
            f"I have to see the docstring of {path} as it is, and the functions to count.",
            "First the file and its outline.",
            ("read_file", {"path": path, "first": 1, "last": _READ_LINES}),
            ("outline", {"path": path}),
        )
        count = len(self.bench.functions(path))
        opening = self.bench.files[path].split("\n", 1)[0]
        note = f"This file has {count} functions; somebody counted them by hand in the outline"
        long_note = f"{note}, so do not expect the number to stay right when it is changed."
        self.act(
            f"The outline has {count} entries. The first line of the docstring stands only once "
            "in the file, so it is a safe anchor for the edit.",
            "",
            self._noted(path, opening, long_note),
        )
        self.act("The edit went through. Now the checks.", "", ("run_checks", {}))
        self.act(
            f"The new line has {len(long_note)} characters, and {LINE_CHARS} are allowed. I break "
            "it in two and leave the rest alone.",
            "The note is too long for one line. I wrap it.",
            ("edit_file", {"path": path, "old": f"{note}, so", "new": f"{note},\nso"}),
            ("run_checks", {}),
        )
        self._changes.append(f"note in {path} how many functions it has")
        self.say(
            "The problem with that line is gone.",
            f"Done: the docstring of `{path}` now says that it has {count} functions. "
            "My first version broke the limit on line length; the second one keeps it.",
        )

    def find_the_longest(self) -> None:
        longest = self._longest()
        self.ask("Which function is the longest of all, and where would you cut it in two?")
        self.act(
            "The tools measure one file at a time. Definitions in all files give me an idea, and "
            "the outlines of the long files give the numbers.",
            "I compare the outlines of the longer files.",
            *(("outline", {"path": path}) for path in dict.fromkeys([longest.path, *self._picks])),
        )
        self.act(
            f"{longest.name} in {longest.path} has {longest.lines} lines, lines {longest.first} to "
            f"{longest.last}. To propose a cut I have to read it, with what is around it.",
            "",
            (
                "read_file",
                {
                    "path": longest.path,
                    "first": max(1, longest.first - 30),
                    "last": longest.last + 30,
                },
            ),
        )
        middle = (longest.first + longest.last) // 2
        self.say(
            "I have seen its body. A cut belongs where the variables that cross it are fewest; "
            "without running it I can only point to the middle and say what to look at.",
            f"`{longest.name}` in `{longest.path}` is the longest: {longest.lines} lines "
            f"({longest.first} to {longest.last}). I would look near line {middle} for a place "
            "that few local variables cross, and move what is below into a helper of its own. I "
            "have not changed it.",
        )

    def rename_a_helper(self) -> None:
        helper = self._helper()
        better = f"{helper.name}_of" if not helper.name.endswith("_of") else f"{helper.name}_it"
        word = rf"\b{helper.name}\b"
        self.ask(
            f"Rename {helper.name} in {helper.path} to {better}, with everything that calls it."
        )
        self.act(
            "Before I rename anything I need every place that has the name, also in other files.",
            "",
            ("search", {"pattern": word}),
        )
        paths = list(dict.fromkeys(path for path, _, _ in self.bench.hits(word)))
        self.act(
            f"The name stands in {len(paths)} files. I read the definition once more, so that I "
            "do not rename part of a longer name.",
            f"The definition is at line {helper.first} of {helper.path}.",
            (
                "read_file",
                {"path": helper.path, "first": max(1, helper.first - 15), "last": helper.last + 45},
            ),
        )
        edits = [
            (
                "edit_file",
                {"path": path, "old": f"{helper.name}(", "new": f"{better}(", "everywhere": True},
            )
            for path in paths
            if f"{helper.name}(" in self.bench.files[path]  # elsewhere it is only spoken of
        ]
        self.act("Definition and calls are both followed by a bracket.", "", *edits)
        self.act(
            "Now I look for what is left of the old name, and whether all still parses.",
            "",
            ("search", {"pattern": word}),
            ("run_checks", {}),
        )
        left = len(list(self.bench.hits(word)))
        self._changes.append(f"rename {helper.name} to {better} in {helper.path}")
        self.say(
            f"{left} lines still hold the old name."
            if left
            else "Nothing of the old name is left.",
            f"`{helper.name}` is now `{better}`. "
            + (f"{left} lines name it without calling it; I left them." if left else "None left."),
        )

    def write_a_test(self) -> None:
        path = self._picks[3]
        function = next((f for f in self.bench.functions(path) if f.top_level), None)
        name = function.name if function else self.bench.functions(path)[0].name
        module = path.removesuffix(".py").replace("/", ".")
        self.ask(f"There should be a test that {path} imports and still offers {name}. Write it.")
        self.act(
            f"I read {path} first: a test should look at what the function is given and returns.",
            f"I read {path}.",
            ("read_file", {"path": path, "first": 1, "last": _READ_LINES}),
        )
        root = path.split("/", 1)[0]
        test_path = f"{root}/test_{path.rsplit('/', 1)[1]}"
        test = (
            f'"""{module} keeps offering what others use."""\n\nimport {module} as module\n\n\n'
            f"def test_{name.strip('_')}_is_still_there() -> None:\n"
            f'    assert "{name}" in dir(module)\n'
            f"    assert module.__doc__\n"
        )
        self.act(
            f"{name} is what was asked for. The test only needs the module's names, so it stays "
            "right when the signature changes.",
            "",
            ("write_file", {"path": test_path, "text": test}),
            ("run_checks", {}),
        )
        self._changes.append(f"test that {path} offers {name}")
        self.say(
            "The checks have read the new file as well.",
            f"The test is in `{test_path}`. It fails if `{name}` disappears or the docstring does.",
        )

    def sum_up(self) -> None:
        self.ask("Sum up what changed as a commit message.")
        lines = "\n".join(f"- {change}" for change in self._changes)
        self.say(
            f"Three things changed: {'; '.join(self._changes)}. The longest function was only "
            "looked at, so it does not belong into the message.",
            f"Note, rename and test\n\n{lines}",
        )

    def _opening(self, path: str) -> str:
        return self.bench.files[path].split("\n", 1)[0].strip('"').strip()

    def _longest(self) -> Function:
        everything = [f for path in self.bench.files for f in self.bench.functions(path)]
        return max(everything, key=lambda f: (f.lines, f.path, f.first))

    def _helper(self) -> Function:
        """A private top-level function, of a picked file if one has it; else any function."""
        paths = [*self._picks, *self.bench.files]
        functions = [f for path in paths for f in self.bench.functions(path)]
        private = [f for f in functions if f.top_level and f.name.startswith("_")]
        return (private or functions)[0]

    @staticmethod
    def _noted(path: str, opening: str, note: str) -> tuple[str, dict[str, Any]]:
        one_line = opening.endswith('"""') and len(opening) > 3
        new = f'{opening[:-3]}\n\n{note}\n"""' if one_line else f"{opening}\n\n{note}"
        return "edit_file", {"path": path, "old": opening, "new": new}
