from __future__ import annotations

import asyncio
import gc

import pytest

from asyncopd.engines.lifeline import Lifeline
from asyncopd.seams import DeadlineExceeded, EngineDied


class Work:
    """Waits for ever, and notes that it was cancelled."""

    def __init__(self) -> None:
        self.cancelled = False

    async def __call__(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True


async def answer() -> int:
    return 7


async def fail() -> None:
    raise OSError("its own")


async def test_an_answer_and_a_failure_pass_through() -> None:
    lifeline = Lifeline("student-0")
    assert await lifeline.hold(answer(), asyncio.get_running_loop().time() + 1) == 7
    with pytest.raises(OSError, match="its own"):
        await lifeline.hold(fail())


async def test_a_deadline_cancels_the_work_and_says_who_waited() -> None:
    work = Work()
    with pytest.raises(DeadlineExceeded, match="somebody waited"):
        await Lifeline("student-0").hold(work(), asyncio.get_running_loop().time() + 0.01, lambda: "somebody waited")
    assert work.cancelled


async def test_death_ends_running_and_new_waits_with_the_first_reason() -> None:
    lifeline, work = Lifeline("student-0"), Work()
    waiting = asyncio.create_task(lifeline.hold(work()))
    await asyncio.sleep(0)
    lifeline.sever("died: first")
    lifeline.sever("died: second")
    for wait in (waiting, lifeline.hold(Work()())):
        with pytest.raises(EngineDied, match="engine student-0 died: first"):
            await wait
    assert work.cancelled


async def test_giving_up_cancels_the_work() -> None:
    work = Work()
    waiting = asyncio.create_task(Lifeline("student-0").hold(work()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.cancelled


async def test_what_given_up_work_raises_in_the_end_is_not_reported_as_lost() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("on its way out")

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    with pytest.raises(DeadlineExceeded):
        await Lifeline("student-0").hold(stubborn(), asyncio.get_running_loop().time() + 0.01)
    gc.collect()
    assert reported == []
