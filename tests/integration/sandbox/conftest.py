"""Boxes of each strength that this machine can build."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.boxes import SMALL, use

from asyncopd.sandbox import Sandbox, Strength


@pytest.fixture(params=["bubblewrap", "namespaces", "rlimits"])
def any_strength(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Strength:
    return use(request.param, monkeypatch)


@pytest.fixture(params=["bubblewrap", "namespaces"])
def walls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Strength:
    return use(request.param, monkeypatch)


@pytest.fixture
async def any_box(any_strength: Strength) -> AsyncIterator[Sandbox]:
    async with Sandbox(SMALL) as opened:
        yield opened


@pytest.fixture
async def walled(walls: Strength) -> AsyncIterator[Sandbox]:
    async with Sandbox(SMALL) as opened:
        yield opened
