"""Answering one question: the fork, and the answer on its way through the journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from shadow_reader.clock import Clock
from shadow_reader.errors import ShadowError
from shadow_reader.events.view import SessionView
from shadow_reader.shadow import jobs
from shadow_reader.shadow.engine import Engine
from shadow_reader.shadow.logbook import Logbook
from shadow_reader.shadow.question_line import QuestionLine
from shadow_reader.shadow.questions import OpenQuestion, make_reply
from shadow_reader.shadow.residency import Residency
from shadow_reader.shadow.roster import Roster
from shadow_reader.shadow.served_probe import ServedProbe
from shadow_reader.shadow.sessions import Sessions

MAX_PRIORS: Final = 1024
"""Questions whose priors are remembered, the newest: a few kB each."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Questions that were asked together, while they are answered in one go.

    Attributes:
        done: question -> its answer, which came out of another one's forward.
    """

    questions: Sequence[OpenQuestion]
    done: dict[str, jobs.Forked] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answering:
    """Answers questions for the reader, which holds the lease meanwhile.

    Attributes:
        priors: by the question's ids and letters; they hold for this engine.
    """

    sessions: Sessions
    engine: Engine
    clock: Clock
    roster: Roster
    line: QuestionLine
    residency: Residency
    priors: dict[tuple[bytes, tuple[int, ...]], tuple[float, ...]] = field(default_factory=dict)

    def wanted(self, asked: OpenQuestion, view: SessionView) -> bool:
        """Whether the question still waits, about the session that it was asked of: one that was
        erased, or opened anew, must not get a state from it."""
        newest = self.roster.known(view.session)
        there = newest is not None and newest.opened_at == view.opened_at
        return there and self.line.is_open(asked.event.question)

    async def fork(
        self, asked: OpenQuestion, view: SessionView, book: Logbook, batch: Batch
    ) -> jobs.Forked | None:
        """The fork's result; None where it failed, which was told, or where there is none yet."""
        done = batch.done.pop(asked.event.question, None)
        if done is not None:
            return done
        seen = self.sessions.messages
        try:
            if asked.probe is not None:
                forked = await self._see(asked, asked.probe, view, book, batch)
                if forked is not None:
                    book.rewind(view, forked.aligned)
                return forked
            prior = await self._prior(asked, view, book) if asked.calibrate else None
            if asked.calibrate and (prior is None or self.residency.wanted()):
                return None
            if not self.wanted(asked, view):
                return None
            job = partial(
                jobs.fork,
                self.engine,
                self.clock,
                view.session,
                view.known,
                question=asked.event.ids,
                closing=asked.closing,
                letters=asked.letters,
                wait=asked.waiting.wait,
                about=asked.waiting.position,
            )
            forked = await self.residency.run(view.session, job, book)
        except RuntimeError as error:
            await self.residency.fail(view.session, error, book, seen)
            return None
        except ShadowError as error:
            self.line.fail(asked.event.question, error)
            return None
        if forked is None:
            return None
        book.rewind(view, forked.aligned)
        return replace(forked, prior=prior)

    async def _see(
        self,
        asked: OpenQuestion,
        probe: ServedProbe,
        view: SessionView,
        book: Logbook,
        batch: Batch,
    ) -> jobs.Forked | None:
        """What a probe makes of one forward, and in ``batch`` what the others that read it do."""
        others = [
            (one.event.question, one.probe)
            for one in batch.questions
            if one.probe is not None
            and one.probe.reads == probe.reads
            and self.line.is_open(one.event.question)
        ]
        layers = sorted({other.layer for _, other in others})
        job = partial(
            jobs.see,
            self.engine,
            self.clock,
            view.session,
            view.known,
            suffix=probe.suffix,
            layers=layers,
            last=probe.last,
            wait=asked.waiting.wait,
            about=asked.waiting.position,
        )
        seen = await self.residency.run(view.session, job, book)
        if seen is None:
            return None
        if seen.vectors is None:
            return jobs.Forked(seen.aligned, None, seen.position, seen.forward_ms)
        for question, other in others:
            found = other.classify(seen.vectors[layers.index(other.layer)])
            batch.done[question] = jobs.Forked(seen.aligned, found, seen.position, seen.forward_ms)
        return batch.done.pop(asked.event.question)

    async def _prior(
        self, asked: OpenQuestion, view: SessionView, book: Logbook
    ) -> tuple[float, ...] | None:
        """What the question alone gives, remembered; None where there is no room for it yet."""
        key = (asked.event.ids.to_bytes(), asked.letters)
        found = self.priors.get(key)
        if found is None:
            job = partial(jobs.prior, self.engine, asked.event.ids, asked.letters)
            found = await self.residency.run(view.session, job, book)
            if found is not None:
                self.priors[key] = found
                if len(self.priors) > MAX_PRIORS:
                    del self.priors[next(iter(self.priors))]
        return found

    async def hand_over(self, asked: OpenQuestion, view: SessionView, forked: jobs.Forked) -> None:
        """Journal the answer, if there is one; whoever asked gets it when it is committed."""
        if forked.probabilities is None:
            return
        newest = self.roster.known(view.session) or view
        event, reply = make_reply(
            asked,
            forked.probabilities,
            position=forked.position,
            known=len(newest.known),
            lag_ms=1000 * (self.clock.monotonic() - asked.waiting.asked_s),
            forward_ms=forked.forward_ms,
            prior=forked.prior,
        )
        try:
            if asked.beside is None:
                receipt = await self.sessions.record(view.session, event)
            else:
                beside = asked.beside.event_of(event)
                receipt = await self.sessions.record(
                    view.session, event, beside, turn=asked.beside.turn
                )
            if receipt is not None:
                await receipt
                self.line.answer(event.question, reply)
        except ShadowError as error:
            self.line.fail(event.question, error)
