"""The configurations on the page of engines are right, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from asyncopd.config.loading import validate
from asyncopd.config.root import TrainConfig
from asyncopd.runtime.prepare import prepare

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("engines.md", "profiling.md")]
PAGE = PAGES[0].read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    return {
        **below,
        **{
            name: _merged(below.get(name, {}), value) if isinstance(value, dict) else value
            for name, value in above.items()
        },
    }


@pytest.mark.parametrize("block", BLOCKS, ids=[" ".join(block.split())[:40] for block in BLOCKS])
async def test_each_configuration_on_the_page_passes_all_checks_before_a_run(block: str) -> None:
    quickstart = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text(encoding="utf-8"))
    prepared = await prepare(validate(_merged(quickstart, yaml.safe_load(block)), TrainConfig))
    assert prepared.prompts


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
