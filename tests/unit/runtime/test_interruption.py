"""Whoever asks a run to stop is heard; what ends, ends whole."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from asyncopd.runtime.interruption import Interruption


async def _ask_soon(interruption, times=1):
    for _ in range(times):
        await asyncio.sleep(0.01)
        interruption.ask()


async def test_asked_once_in_a_patient_block_the_work_goes_on_to_its_own_end():
    interruption = Interruption()

    async def work():
        with interruption.patiently():
            await interruption.asked.wait()
            await asyncio.sleep(0.01)
        return "saved"

    asking = asyncio.create_task(_ask_soon(interruption))
    assert await interruption.run(work()) == "saved"
    await asking


@pytest.mark.parametrize("patient", [True, False], ids=["twice in a patient block", "once elsewhere"])
async def test_it_is_cancelled_at_once_and_its_cleaning_up_is_not_disturbed(patient):
    interruption = Interruption()
    cleaned = asyncio.Event()

    async def work():
        try:
            if patient:
                with interruption.patiently():
                    await asyncio.sleep(60)
            await asyncio.sleep(60)
        finally:
            interruption.ask()
            await asyncio.sleep(0.05)
            cleaned.set()

    asking = asyncio.create_task(_ask_soon(interruption, times=5))
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(interruption.run(work()), 5)
    assert cleaned.is_set()
    await asking


async def test_asked_before_it_begins_the_work_is_not_begun():
    interruption = Interruption()
    interruption.ask()
    began = asyncio.Event()

    async def work():
        began.set()

    with pytest.raises(asyncio.CancelledError):
        await interruption.run(work())
    assert not began.is_set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_ask(number):
    interruption = Interruption()

    async def work():
        os.kill(os.getpid(), number)
        await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(interruption.run(work()), 5)
