"""What is durable of a run: scheduler state by its journal, payloads, and where to go on from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from asyncopd.errors import UserError
from asyncopd.runtime.journal import Journal
from asyncopd.runtime.payloads import FilePayloadStore
from asyncopd.runtime.prepare import Prepared
from asyncopd.runtime.run_directory import RunDirectory
from asyncopd.scheduler import events
from asyncopd.scheduler.scheduler import Scheduler


@dataclass(frozen=True)
class Record:
    """What is durable of a run: scheduler state, journal, payloads, and where to go on from."""

    scheduler: Scheduler
    journal: Journal
    payloads: FilePayloadStore
    checkpoint: Path | None
    timeline: int
    step: int

    @property
    def resumed(self) -> bool:
        """Whether there was a run before: each resumption begins a timeline."""
        return self.timeline > 0


@asynccontextmanager
async def open_record(prepared: Prepared, directory: RunDirectory, *, resume: bool) -> AsyncIterator[Record]:
    """Open the durable part of a new run, or of an interrupted one by replaying its journal."""
    config = prepared.config
    scheduler = Scheduler(
        config.scheduler,
        steps=config.run.steps,
        task_count=len(prepared.world.train),
        seed=config.run.seed,
        max_concurrent=config.rollout.max_concurrent,
        checkpoint_every=config.run.checkpoint_every,
    )
    journal, past = Journal.reopen(directory.journal) if resume else (Journal(directory.journal), [])
    _replay(scheduler, past, directory.journal)
    payloads = FilePayloadStore(directory.payloads, needed=scheduler.payloads)
    checkpoint = directory.latest_checkpoint() if resume else None
    timelines = [event.timeline for event in past if isinstance(event, events.RolledBack)]
    try:
        yield Record(
            scheduler=scheduler,
            journal=journal,
            payloads=payloads,
            checkpoint=checkpoint,
            timeline=max(timelines, default=0) + 1 if resume else 0,
            step=int(checkpoint.name.removeprefix("step-")) if checkpoint else 0,
        )
    finally:
        await journal.close()
        await payloads.close()


def _replay(scheduler: Scheduler, past: Sequence[events.AnyEvent], journal: Path) -> None:
    for number, event in enumerate(past, 1):
        try:
            scheduler.apply(event)
        except AssertionError as error:
            raise UserError(
                f"{journal}:{number}", f"does not follow from the events before it ({error})", "start a new run"
            ) from None
