"""A box of the strongest walls there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import get_args

import pytest
from support.boxes import SMALL, use, why_not

from asyncopd.sandbox import Sandbox, Strength, launch


@pytest.fixture
async def box(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sandbox]:
    for kind in get_args(Strength):
        if not why_not(kind, launch.INTERPRETER):
            use(kind, monkeypatch)
            async with Sandbox(SMALL) as opened:
                yield opened
            return
    pytest.skip("no sandbox can be built here")
