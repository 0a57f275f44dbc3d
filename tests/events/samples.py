"""One event of every kind and version, with values that show every field's place."""

from __future__ import annotations

from typing import Final

from shadow_reader.events import types as t
from shadow_reader.events.ids import Ids

SAMPLES: Final[dict[tuple[str, int], t.Event]] = {
    ("session.opened", 1): t.SessionOpened(),
    ("session.erased", 1): t.SessionErased(event_count=12, id_count=3456),
    ("prompt", 1): t.Prompt(keep=512, ids=Ids.of([0, 1, 248_319, 2**32 - 1]), router="kéy/low"),
    ("prompt", 2): t.Prompt(512, Ids.of([0, 1]), "low", "coding"),
    ("prompt", 3): t.Prompt(512, Ids.of([0, 1]), "low", "coding", decided=False),
    ("router.answer", 1): t.RouterAnswer(
        "q1", "low", 0.75, "high", decided=True, agree=False, position=96, behind=12, lag_ms=20.5
    ),
    ("label", 1): t.Label("done", 640, "nö", "a person"),
    ("summary", 1): t.Summary(640, 655, Ids.of([9, 8]), "turn ended", 3, 120.5, 60.25),
    ("ration.used", 1): t.RationUsed(310.5, 17_400.25, 4),
    ("hold", 1): t.HoldBegun("h1", "a benchmark", 60.0),
    ("hold.ended", 1): t.HoldEnded("h1", "expired"),
    ("first_token", 1): t.FirstToken(),
    ("output", 1): t.Output(offset=7, ids=Ids.of([42])),
    ("turn.ended", 1): t.TurnEnded("superseded", unsure=True),
    ("rewind", 1): t.Rewind(cut=1300, to=1024, reread=276),
    ("read", 1): t.Read(start=1024, stop=2048, window="ration", ms=12.5),
    ("checkpoint", 1): t.Checkpoint(position=2048, digest="d1-9f", engine="tiny@cpu"),
    ("shared", 1): t.Shared(position=1024),
    ("spill", 1): t.Spill(position=1536, written=4096, ms=7.25, kept=False),
    ("restore", 1): t.Restore(position=0, read=512, ms=1.5, refused="digest of page.0 is 1"),
    ("dropped", 1): t.Dropped("cap", committed=1536),
    ("question", 1): t.Question("q1", "router", 99, Ids.of([5, 6]), ("low", "high")),
    ("answer", 1): t.Answer("q1", "low", (0.75, 0.25), 99, 3, lag_ms=20.25, forward_ms=5.5),
    ("question", 2): t.Question("q1", "text", 99, Ids.of([5]), ("low", "high"), 64),
    ("answer", 2): t.Answer("q1", "low", (0.75, 0.25), 64, 35, 20.25, 5.5, (0.5, 0.5)),
    ("question", 3): t.Question(
        "q1", "probe", 99, Ids.of([5]), ("low", "high"), 64, "mood", probe_version=3
    ),
    ("question.ended", 1): t.QuestionEnded("q1", "cancelled"),
    ("engine.loaded", 1): t.EngineLoaded(
        engine="tiny@cpu",
        model="random:tiny",
        weights="ab12",
        grid=512,
        dtype="float32",
        device="cpu",
        build="torch-2.13",
        layout=1,
    ),
    ("engine.released", 1): t.EngineReleased("tiny@cpu", "asked"),
    ("probe.trained", 1): t.ProbeTrained(
        name="möod",
        version=3,
        digest="9f3c",
        weights="ab12",
        grid=512,
        layer=18,
        classes=("bad", "good"),
        source="label mood",
        labels=120,
        sessions=7,
        accuracy=0.875,
        macro_f1=0.8125,
        calibration_error=0.0625,
        constant=0.75,
        low=0.03125,
        high=0.25,
        forced=True,
    ),
    ("probe.retired", 1): t.ProbeRetired("mood", 3),
    ("engine.stopped", 1): t.EngineStopped("closed"),
}
