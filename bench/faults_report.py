"""What a run found out: one object for programs, a table for people."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bench.faults_book import Finding
from bench.faults_kills import is_kill
from bench.faults_world import World

NOT_EXACT: Final = "not exact"
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of a run found.

    Attributes:
        faults: what was done to the service, and how often.
        proved: states that were compared with a fresh prefill. checkpoints: journaled digests.
        peak_bytes: the most memory that a server said it took; its cap was never passed.
        stuck: what did not happen in time; empty when everything did.
    """

    acknowledged: int
    faults: Mapping[str, int]
    findings: tuple[Finding, ...]
    proved: int
    checkpoints: int
    peak_bytes: int = 0
    stuck: str = ""

    @classmethod
    def of(cls, world: World, stuck: str = "") -> Part:
        """What a world found."""
        tally = world.tally
        faults = {what: count for what, count in tally.faults.items() if count}
        refused = {f"refused: {code}": count for code, count in tally.refusals.items()}
        return cls(
            acknowledged=tally.acknowledged,
            faults={**faults, **refused, "erasure": tally.erasures},
            findings=tuple(tally.findings),
            proved=world.proved,
            checkpoints=world.checkpoints,
            peak_bytes=world.peak_bytes,
            stuck=stuck,
        )

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Part:
        """Read ``asdict`` of one."""
        findings = tuple(Finding(**finding) for finding in body["findings"])
        return cls(**{**body, "findings": findings})


@dataclass(slots=True)
class Report:
    """Everything together."""

    parts: list[Part] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nothing was lost, doubled, strange or stuck, and something was proved."""
        found = any(part.findings or part.stuck for part in self.parts)
        return not found and any(part.proved for part in self.parts)

    @property
    def faults(self) -> Counter[str]:
        """All of them."""
        total: Counter[str] = Counter()
        for part in self.parts:
            total.update(part.faults)
        return total

    def to_json(self) -> dict[str, Any]:
        """The one object."""
        findings = [finding for part in self.parts for finding in part.findings]
        kinds = Counter(finding.kind for finding in findings)
        inexact = sum(finding.what.startswith(NOT_EXACT) for finding in findings)
        proved = sum(part.proved for part in self.parts)
        return {
            "kills": sum(count for what, count in self.faults.items() if is_kill(what)),
            "acknowledged": sum(part.acknowledged for part in self.parts),
            "lost": kinds["lost"],
            "duplicated": kinds["duplicated"],
            "strange": kinds["strange"] - inexact,
            "exact": inexact == 0 and proved > 0,
            "states_proved": proved,
            "checkpoints_proved": sum(part.checkpoints for part in self.parts),
            "peak_bytes": max((part.peak_bytes for part in self.parts), default=0),
            "faults": dict(sorted(self.faults.items())),
            "findings": [asdict(finding) for finding in findings[:_SHOWN]],
            "stuck": [part.stuck for part in self.parts if part.stuck],
            "seconds": round(self.seconds, 1),
        }


def print_table(report: Report) -> None:
    """For people; the last thing printed is the verdict."""
    body = report.to_json()
    for what, count in body["faults"].items():
        print(f"{what:<44} {count:>8,}")
    for name in ("acknowledged", "states_proved", "checkpoints_proved", "lost", "duplicated"):
        print(f"{name.replace('_', ' '):<44} {body[name]:>8,}")
    for finding in body["findings"]:
        print(f"{finding['kind'].upper()}: {finding['session']}: {finding['what']}")
    for stuck in body["stuck"]:
        print(f"STUCK: {stuck}", file=sys.stderr)
    verdict = "nothing lost, nothing doubled, every state exact" if report.good else "NOT GOOD"
    print(f"{body['kills']} kills in {body['seconds']:,} s: {verdict}")
