"""A learner in this process, for work with nothing to overlap.

Invariant: its calls run one after another, in one thread of its own, so the event loop stays free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch

from asyncopd.learner.learner import Learner
from asyncopd.records import Batch, SendOrder, StepReport, WeightFile
from asyncopd.seams import DeadlineExceeded
from asyncopd.tensors.sender import Sender

Result = TypeVar("Result")


class LearnerThread:
    """Drives a learner, and is its `WeightSource`."""

    def __init__(self, threads: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._executor = ThreadPoolExecutor(1, "learner", initializer=torch.set_num_threads, initargs=(threads,))
        self._learner: Learner | None = None
        self._sender = Sender()

    @classmethod
    async def start(cls, build: Callable[[], Learner], threads: int, timeout_s: float) -> LearnerThread:
        """Build a learner in a new thread with `threads` compute threads. Raises what building raises.

        A call that takes over `timeout_s` seconds raises `DeadlineExceeded`; the thread cannot be used after that.
        """
        thread = cls(threads, timeout_s)
        try:
            thread._learner = await thread._call(build)
        except BaseException:
            thread.close()
            raise
        return thread

    @property
    def steps(self) -> int:
        """Optimizer steps behind the weights."""
        return self._built.step_count

    async def step(self, batch: Batch) -> StepReport:
        """Take an optimizer step. Raises `NonFiniteLoss`."""
        return await self._call(lambda: self._built.step(batch))

    async def send(self, order: SendOrder) -> WeightFile:
        """Send the weights as ordered."""
        assert self.steps == order.version.step, f"asked for version {order.version} at step {self.steps}"
        return await self._call(lambda: self._sender.send(order, self._built.named_tensors()))

    async def save(self, directory: Path) -> None:
        """Write a checkpoint."""
        await self._call(lambda: self._built.save(directory))

    async def export(self, directory: Path) -> None:
        """Write an ordinary Hugging Face checkpoint."""
        await self._call(lambda: self._built.export(directory))

    def close(self) -> None:
        """Let no other call begin."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def _built(self) -> Learner:
        assert self._learner is not None, "the learner was called before it was built"
        return self._learner

    async def _call(self, function: Callable[[], Result]) -> Result:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._executor, function)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the learner took over {self._timeout_s:g} s (learner.timeout_s)") from error
