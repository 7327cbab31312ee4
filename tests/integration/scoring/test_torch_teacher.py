"""A teacher in its own process: it answers, dies, comes back, and never stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from asyncopd.config.scoring import ScoringSection
from asyncopd.config.teacher import TeacherSection
from asyncopd.errors import UserError
from asyncopd.records import ScoreRequest, Scores, Support, SupportKind, Trajectory
from asyncopd.scoring.service import ScoringService
from asyncopd_teachers.torch import TorchTeacher

# One process for all tests: it takes seconds to start.
pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TOPK = Support(kind=SupportKind.TEACHER_TOPK, width=16)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def teacher(tiny_model: Path) -> AsyncIterator[TorchTeacher]:
    teacher = TorchTeacher(tiny_model, TeacherSection(model="x"), threads=1)
    yield teacher
    await teacher.close()


def same(one: list[Scores | None], other: list[Scores | None]) -> bool:
    return all(
        a is not None
        and b is not None
        and np.array_equal(a.ids_RK, b.ids_RK)
        and a.logp_RK.tobytes() == b.logp_RK.tobytes()
        for a, b in zip(one, other, strict=True)
    )


def close_to_full_logits(directory: Path, request: ScoreRequest, scores: Scores) -> bool:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        logits_CV = model(torch.tensor(request.context_ids_C[None].astype(np.int64))).logits[0]
    full_RV = torch.log_softmax(logits_CV.double(), dim=-1).numpy()[request.row_map_R - 1]
    asked_RK = np.take_along_axis(full_RV, scores.ids_RK.astype(np.int64), 1)
    return bool(np.abs(asked_RK - scores.logp_RK).max() < 1e-5)


async def test_a_killed_process_is_replaced_and_the_batch_asked_again(
    teacher: TorchTeacher, lived: Callable[[int], Trajectory], tiny_model: Path, gone
) -> None:
    requests = teacher.view(lived(0), TOPK)
    before = await teacher.score(requests)
    assert all(close_to_full_logits(tiny_model, *pair) for pair in zip(requests, before, strict=True))
    assert teacher._worker is not None
    first = teacher._worker.pid
    os.kill(first, signal.SIGINT)
    assert same(await teacher.score(requests), before)
    assert teacher._worker.pid == first, "an interrupt reached the teacher's process"
    os.kill(first, signal.SIGKILL)
    assert same(await teacher.score(requests), before)
    assert teacher._worker.pid != first
    await gone([first])


async def test_closing_ends_the_process_and_the_next_request_starts_one(
    teacher: TorchTeacher, lived: Callable[[int], Trajectory], gone
) -> None:
    await teacher.start()
    assert teacher._worker is not None
    pid = teacher._worker.pid
    await teacher.close()
    await gone([pid])
    assert len(await teacher.score(teacher.view(lived(0), TOPK))) == 2


async def test_a_caller_that_gives_up_leaves_no_queue_behind(
    teacher: TorchTeacher, lived: Callable[[int], Trajectory], gone
) -> None:
    await teacher.start()
    assert teacher._worker is not None
    pid = teacher._worker.pid
    os.kill(pid, signal.SIGSTOP)
    requests = teacher.view(lived(0), TOPK)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await teacher.score(requests)
    await gone([pid])
    assert len(await teacher.score(requests)) == 2


async def test_what_the_model_cannot_answer_is_refused(tiny_model: Path, lived: Callable[[int], Trajectory]) -> None:
    teacher = TorchTeacher(tiny_model, TeacherSection(model="x"), threads=1)
    with pytest.raises(UserError, match=r"objective.width 97: the teacher's vocabulary has 96 tokens; lower the width"):
        await teacher.score(teacher.view(lived(0), Support(kind=SupportKind.TEACHER_TOPK, width=97)))
    (request, _) = teacher.view(lived(0), TOPK)
    long = ScoreRequest(
        context_ids_C=np.zeros(129, np.int32),
        scored_ids_R=request.scored_ids_R,
        row_map_R=request.row_map_R,
        support=TOPK,
    )
    with pytest.raises(UserError, match="reads 128 tokens, a segment has 129"):
        await teacher.score([long])
    assert teacher._worker is None, "a refusal needs no process"


def workers() -> set[int]:
    """Return the pids of this process's living workers."""
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return {child.pid for child in alive if "spawn_main" in " ".join(child.cmdline())}


async def test_a_model_that_cannot_be_loaded_is_the_users_error(tiny_model: Path, tmp_path: Path, gone) -> None:
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    teacher = TorchTeacher(tmp_path, TeacherSection(model="x"), threads=1)
    before = workers()
    with pytest.raises(UserError, match="cannot be loaded"):
        await teacher.start()
    await gone(list(workers() - before))


PARENT = """
    import asyncio, os, sys
    from pathlib import Path
    from asyncopd.config.teacher import TeacherSection
    from asyncopd_teachers.torch import TorchTeacher

    async def main():
        teacher = TorchTeacher(Path(sys.argv[1]), TeacherSection(model="x"), threads=1)
        await teacher.start()
        print(teacher._worker.pid, flush=True)
        await asyncio.sleep(60)

    if __name__ == "__main__":
        asyncio.run(main())
"""


async def test_the_process_ends_with_a_killed_parent(tiny_model: Path, tmp_path: Path, gone) -> None:
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), str(tiny_model)), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    parent.kill()
    await parent.wait()
    await gone([pid])


async def test_a_run_goes_on_without_its_killed_cache_and_finds_it_again(
    teacher: TorchTeacher, lived: Callable[[int], Trajectory], embedded, tmp_path: Path, caplog
) -> None:
    async with embedded(tmp_path) as store:
        service = ScoringService(teacher, store, ScoringSection(), TOPK)
        before = await service.score(lived(0), 0)
        os.killpg(store.pid, signal.SIGKILL)
        assert same(await service.score(lived(0), 0), before)
        assert len(await service.score(lived(1), 0)) == 2
        assert service.stats.hits == 0 and service.stats.store_errors >= 1
        async with asyncio.timeout(20):
            while not service.stats.hits:
                assert same(await service.score(lived(0), 0), before)
                await asyncio.sleep(0.1)
        await service.close()
    assert caplog.text.count("segments are scored without it") == 1
    assert caplog.text.count("the score cache answers again") == 1


async def test_the_next_run_pays_for_nothing_and_gets_the_same_bits(
    teacher: TorchTeacher, lived: Callable[[int], Trajectory], embedded, tmp_path: Path, tiny_model: Path
) -> None:
    async with embedded(tmp_path) as store:
        service = ScoringService(teacher, store, ScoringSection(), TOPK)
        first = [await service.score(lived(number), number) for number in range(5)]
        await service.close()
    again = TorchTeacher(tiny_model, TeacherSection(model="x"), threads=1)
    async with embedded(tmp_path) as store:
        service = ScoringService(again, store, ScoringSection(), TOPK)
        second = await asyncio.gather(*(service.score(lived(number), number) for number in range(5)))
        await service.close()
    assert all(map(same, first, second))
    assert (service.stats.hits, service.stats.teacher_tokens) == (10, 0)
    assert again._worker is None
