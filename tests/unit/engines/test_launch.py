"""A core that is killed while it starts is told from a model that vLLM refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asyncopd.config.engine import EngineSection
from asyncopd.engines.vllm import launch
from asyncopd.records import NO_DRAWS
from asyncopd.seams import EngineDied

FAILED = "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': %d}"


@pytest.mark.parametrize(("code", "raised"), [(-9, EngineDied), (1, RuntimeError)])
async def test_a_signal_is_no_refusal(monkeypatch: pytest.MonkeyPatch, code: int, raised: type[Exception]) -> None:
    def construct(*_: Any) -> None:
        raise RuntimeError(FAILED % code)

    monkeypatch.setattr(launch, "_construct", construct)
    with pytest.raises(RuntimeError) as failure:
        await launch.launch(Path(), EngineSection(), dtype="float32", threads=1, seed=0, draws=NO_DRAWS)
    assert type(failure.value) is raised
    assert ("killed by signal 9" in str(failure.value)) == (code < 0)
