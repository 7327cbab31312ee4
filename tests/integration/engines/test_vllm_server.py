"""A real vLLM server of our own, against the learner's numbers, weights that change, deadlines and death."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import numpy as np
import psutil
import pytest
import pytest_asyncio
from support.tiny_models import ModelSource, learner_logp, make_model, mixed_logp, prompt, turn
from transformers import Qwen3ForCausalLM

from asyncopd.config.engine import EngineSection
from asyncopd.engines.server.engine import ServerEngine
from asyncopd.engines.start import start_engine
from asyncopd.records import DrawSpec, Generation, Version
from asyncopd.seams import DeadlineExceeded, EngineDied
from asyncopd.weights.shm import OwnedDirectory
from asyncopd.weights.sync import FileWeightSync

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SECTION = EngineSection(use="vllm_server", max_context=1024, kv_cache_mib=64)
DRAWS = DrawSpec(head=5, tail=3, iid=2)


@dataclass
class Served:
    """A server, and the models behind the versions it has served."""

    engine: ServerEngine
    sync: FileWeightSync
    models: dict[Version, Qwen3ForCausalLM]
    logs: Path

    @property
    def model(self) -> Qwen3ForCausalLM:
        return self.models[self.engine.version]

    @property
    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.engine._process.pid).children(recursive=True)

    async def publish(self) -> None:
        version = Version(1, max(self.models).step + 1)
        self.models[version] = make_model(version.step, tied=True)
        await self.sync.publish(version, ModelSource(self.models[version]))

    def check(self, prompt_ids: list[int], found: Generation) -> list[Version]:
        """Hold `found` against the models of its versions, which are returned in order."""
        starts = [0, *(np.flatnonzero(np.diff(found.version_R)) + 1)]
        versions = [Version.unpack(int(found.version_R[start])) for start in starts]
        spans = [(self.models[version], start) for version, start in zip(versions, starts, strict=True)]
        np.testing.assert_allclose(found.logp_R, mixed_logp(spans, prompt_ids, found.ids_R), atol=2e-3)
        return versions


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(checkpoints: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    logs = tmp_path_factory.mktemp("logs")
    directory = checkpoints(0, tied=True)
    engine = await start_engine(
        "student-0",
        directory,
        SECTION,
        dtype="float32",
        threads=1,
        seed=0,
        version=Version(1, 0),
        draws=DRAWS,
        logs=logs,
    )
    assert isinstance(engine, ServerEngine)
    sync = FileWeightSync(lambda: [engine.receiver], OwnedDirectory(Path("/dev/shm")), SECTION.update_timeout_s)
    yield Served(engine, sync, {Version(1, 0): make_model(0, tied=True)}, logs)
    sync.close()
    await engine.close()
    assert not engine._process.socket.parent.exists()
    assert not await left_with(engine._process.key)


async def left_with(key: str) -> list[psutil.Process]:
    """Return the processes of the server with that key which do not end within ten seconds."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("VLLM_API_KEY") == key:
                found.append(process)
    return (await asyncio.to_thread(psutil.wait_procs, found, 10))[1]


async def unfinished(engine: ServerEngine) -> int:
    """Return how many requests the server's worker still has."""
    (counts,) = await engine._control.call("progress")
    return len(counts)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_log_probs_are_the_learners(served: Served, temperature: float) -> None:
    turns = [
        turn(prompt(length, length), temperature=temperature, max_tokens=40, seed=length)
        for length in (1, 7, 127, 128, 129, 300)
    ]
    for request, found in zip(turns, await asyncio.gather(*map(served.engine.generate, turns)), strict=True):
        expected_R = learner_logp(served.model, request.prompt_ids, found.ids_R, temperature)
        np.testing.assert_allclose(found.logp_R, expected_R, atol=1e-3)
        assert (found.version_R == served.engine.version.pack()).all()
        assert not found.mixed_kv_R.any()
        assert (len(found.ids_R), found.stop_reason) == (40, "length")


@pytest.mark.parametrize("draws", [DrawSpec(head=5), DRAWS, DrawSpec(iid=2)])
async def test_draws_come_with_each_token_as_they_were_ordered(served: Served, draws: DrawSpec) -> None:
    request = msgspec.structs.replace(turn(prompt(9)), draws=draws)
    found = await served.engine.generate(request)
    assert found.undrawn_R is None
    assert found.draws is not None
    for ids_RN, logp_RN, width in (
        (found.draws.head_ids_RK, found.draws.head_logp_RK, draws.head),
        (found.draws.tail_ids_RM, found.draws.tail_logp_RM, draws.tail),
        (found.draws.iid_ids_RM, found.draws.iid_logp_RM, draws.iid),
    ):
        assert (0 if ids_RN is None else ids_RN.shape[1]) == width
        for column in range(width):
            ids_R = found.ids_R.copy()
            ids_R[-1] = ids_RN[-1, column]
            expected = learner_logp(served.model, request.prompt_ids, ids_R)[-1]
            assert logp_RN[-1, column] == pytest.approx(expected, abs=1e-3)


async def test_a_turn_resumes_after_the_tokens_it_has(served: Served) -> None:
    ids = prompt(20)
    start = (await served.engine.generate(turn(ids, max_tokens=10))).ids_R.tolist()
    rest = await served.engine.generate(turn(ids, max_tokens=25, resume_ids=start))
    assert len(rest.ids_R) == 15
    served.check(ids + start, rest)
    stopped = await served.engine.generate(turn(ids, max_tokens=30, stop_ids=(start[5],)))
    assert stopped.stop_reason == "stop"
    assert stopped.ids_R.tolist() == start[: start.index(start[5]) + 1]


async def test_requests_in_flight_go_on_with_exactly_the_versions_that_sampled_them(served: Served) -> None:
    """Told by the server at the end, and by the workers' counts at each commit, should there be no end."""
    turns = [turn(prompt(30, seed), max_tokens=600, seed=seed) for seed in range(8)]
    first = served.engine.version
    generating = [asyncio.create_task(served.engine.generate(request)) for request in turns]
    for _ in range(2):
        await asyncio.sleep(0.3)
        await served.publish()
    answers = list(served.engine._answers.values())
    counted = [list(answer._starts) for answer in answers]
    for request, found in zip(turns, await asyncio.gather(*generating), strict=True):
        assert served.check(request.prompt_ids, found) == [Version(1, first.step + offset) for offset in range(3)]
        assert (found.mixed_kv_R == (found.version_R != first.pack())).all()
    assert len(answers) == 8
    assert counted == [answer._starts for answer in answers]


async def test_later_requests_reuse_no_prefix_of_older_weights(served: Served) -> None:
    for _ in range(2):
        request = turn(prompt(400), max_tokens=20)
        served.check(request.prompt_ids, await served.engine.generate(request))
        await served.publish()


@pytest.mark.parametrize("wait_s", [0.02, 0.3])
async def test_a_deadline_ends_the_request_on_the_server_too(served: Served, wait_s: float) -> None:
    with pytest.raises(DeadlineExceeded, match=r"request \d+ of trajectory \d+ waited on engine student-0 past"):
        await served.engine.generate(turn(prompt(5), max_tokens=900, within_s=wait_s))
    async with asyncio.timeout(5):
        while await unfinished(served.engine):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.02)
    request = turn(prompt(6))
    served.check(request.prompt_ids, await served.engine.generate(request))


async def test_only_its_owner_reaches_the_server(served: Served) -> None:
    process = served.engine._process
    connections = [c for child in served.processes for c in child.net_connections("inet")]
    assert {c.laddr.ip for c in connections} <= {"127.0.0.1"}  # the core's own, within itself
    assert process.socket.parent.stat().st_mode & 0o077 == 0
    assert not any(process.key in word for child in served.processes for word in child.cmdline())
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(process.socket))) as stranger:
        answer = await stranger.post("http://server/inference/v1/generate", json={})
    assert answer.status_code == 401


async def test_the_event_loop_stays_free_at_64_concurrent_requests(served: Served) -> None:
    """The least of three, because a busy machine adds to the lag and nothing takes from it."""
    lags = [await loop_lag(served.engine) for _ in range(3)]
    assert min(lags) < 0.05


async def loop_lag(engine: ServerEngine) -> float:
    """Return the 99th percentile of what sleeps of 2 ms took too long, in seconds."""
    loop, lags = asyncio.get_running_loop(), []

    async def measure() -> None:
        while True:
            start = loop.time()
            await asyncio.sleep(0.002)
            lags.append(loop.time() - start - 0.002)

    measuring = asyncio.create_task(measure())
    turns = [turn(prompt(50, seed), max_tokens=100, seed=seed) for seed in range(64)]
    await asyncio.gather(*map(engine.generate, turns))
    measuring.cancel()
    return float(np.quantile(lags, 0.99))


async def more_tokens(engine: ServerEngine, turns: int) -> None:
    """Wait until each of `turns` has got some more tokens."""
    async with asyncio.timeout(60):
        while len(engine._answers) < turns:  # noqa: ASYNC110 - as they enter
            await asyncio.sleep(0.01)
        answers = [(answer, len(answer._ids) + 20) for answer in engine._answers.values()]
        while any(len(answer._ids) < enough for answer, enough in answers):  # noqa: ASYNC110 - as they come
            await asyncio.sleep(0.01)


async def test_the_tokens_of_a_killed_server_are_kept_with_their_versions(served: Served) -> None:
    """The last test of this server: it kills it."""
    turns = [turn(prompt(30, seed), max_tokens=950, seed=seed) for seed in range(24)]
    first = served.engine.version
    generating = [asyncio.create_task(served.engine.generate(request)) for request in turns]
    await more_tokens(served.engine, len(turns))
    await served.publish()
    await more_tokens(served.engine, len(turns))
    (core,) = [child for child in served.processes if "EngineCore" in child.name()]
    os.kill(core.pid, signal.SIGKILL)
    for request, wait in zip(turns, generating, strict=True):
        with pytest.raises(EngineDied, match="engine student-0 died") as death:
            await asyncio.wait_for(wait, 30)
        partial = death.value.partial
        assert partial is not None
        assert partial.stop_reason == "aborted"
        assert len(partial.ids_R) > 10
        assert served.check(request.prompt_ids, partial) == [first, served.engine.version]
    with pytest.raises(EngineDied, match="engine student-0 died"):
        await served.engine.probe()
    with pytest.raises(EngineDied, match="engine student-0 died"):
        await served.engine.receiver.freeze()


async def test_a_server_that_cannot_start_says_why(checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineDied, match=r"(?s)its server ended with code 1; the last lines of .*student-1\.log:\n."):
        await start_engine("student-1", tmp_path, SECTION, dtype="float32", threads=1, seed=0, logs=tmp_path / "logs")


async def test_a_start_that_takes_too_long_leaves_nothing(
    checkpoints: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncopd.engines.server.process.secrets.token_urlsafe", lambda _: "of-the-slow-one")
    section = SECTION.model_copy(update={"start_timeout_s": 1.5})
    with pytest.raises(DeadlineExceeded, match=r"engine student-2 did not start within 1\.5 s"):
        await start_engine("student-2", checkpoints(0, tied=True), section, dtype="float32", threads=1, seed=0)
    assert not await left_with("of-the-slow-one")
