"""A vLLM server that someone else started: what it is asked before it is used, and whose weights it serves."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from support.tiny_models import ModelSource, learner_logp, make_model, prompt, save_checkpoint, turn

from asyncopd.config.engine import EngineSection
from asyncopd.engines.server.engine import ServerEngine
from asyncopd.engines.server.process import server_arguments, server_command
from asyncopd.engines.start import start_engine
from asyncopd.engines.vllm.cpu_build import cpu_build_variables
from asyncopd.engines.vllm.launch import vllm_variables
from asyncopd.errors import UserError
from asyncopd.leash import leashed
from asyncopd.records import DrawSpec, Manifest, Version
from asyncopd.seams import DeadlineExceeded, EngineDied
from asyncopd.weights.protocol import PublishFailed
from asyncopd.weights.shm import OwnedDirectory
from asyncopd.weights.sync import FileWeightSync

pytestmark = pytest.mark.integration

SECTION = EngineSection(
    use="vllm_server",
    urls=["http://127.0.0.1:9"],  # each connection is told its own
    api_key_env="KEY_OF_A_TEST",
    max_context=512,
    kv_cache_mib=64,
)
SHARED_MEMORY = Path("/dev/shm")
KEY = "a-secret"


@dataclass
class Running:
    """A server of the model of seed 0, started as an error tells a user to."""

    url: str
    directory: Path
    process: subprocess.Popen[bytes]
    log: Path

    async def connect(
        self, section: EngineSection = SECTION, directory: Path | None = None, **more: object
    ) -> ServerEngine:
        arguments = {"dtype": "float32", "threads": 1, "seed": 0, **more}
        engine = await start_engine("student-0", directory or self.directory, section, url=self.url, **arguments)
        assert isinstance(engine, ServerEngine)
        return engine


@pytest.fixture(scope="module")
def running(checkpoints: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    directory = checkpoints(0, tied=True)
    arguments = server_arguments(directory, SECTION, dtype="float32", seed=0, draws=DrawSpec())
    command = [sys.executable, *server_command(arguments), "--host", "127.0.0.1", "--port", str(port)]
    variables = {**os.environ, **vllm_variables(1), "VLLM_SERVER_DEV_MODE": "1", "VLLM_API_KEY": KEY}
    log = tmp_path_factory.mktemp("log") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            leashed(command, 5),
            env=variables | cpu_build_variables(variables),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    running = Running(f"http://127.0.0.1:{port}", directory, process, log)
    try:
        wait_for(running)
        yield running
    finally:
        end(process)


def wait_for(running: Running) -> None:
    with httpx.Client(transport=httpx.HTTPTransport(retries=0)) as client:
        for _ in range(1200):
            assert running.process.poll() is None, running.log.read_text()[-3000:]
            try:
                if client.get(f"{running.url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
    raise AssertionError(running.log.read_text()[-3000:])


def end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_A_TEST", KEY)


async def test_a_wrong_key_is_told(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_A_TEST", "another")
    with pytest.raises(UserError, match=r"with 401: .*engine\.api_key_env names the variable that holds its key"):
        await running.connect()
    monkeypatch.delenv("KEY_OF_A_TEST")
    with pytest.raises(UserError, match=r"engine\.api_key_env: KEY_OF_A_TEST is not set"):
        await running.connect()


@pytest.mark.parametrize(
    ("section", "more", "problem"),
    [
        (
            {"max_context": 1024},
            {},
            "its max_model_len is 512, below 1024; start it with VLLM_SERVER_DEV_MODE=1 .*python -m",
        ),
        ({}, {"dtype": "bfloat16"}, "its dtype is float32, not bfloat16; .*--dtype bfloat16"),
        ({}, {"draws": DrawSpec(head=8)}, "its max_logprobs is 2, below 9; .*--max-logprobs 9"),
        ({}, {"draws": DrawSpec(iid=2)}, "its logits_processors are .*, without asyncopd.*; .*--logits-processors"),
    ],
)
async def test_a_server_that_cannot_do_what_is_needed_is_refused_with_the_command_for_one_that_can(
    running: Running, section: dict[str, object], more: dict[str, object], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        await running.connect(SECTION.model_copy(update=section), **more)


async def test_a_server_of_another_vocabulary_is_refused(running: Running, tmp_path: Path) -> None:
    for size, problem in ((95, "not of the student's 95 tokens"), (97, "not of the student's 97 tokens")):
        model = make_model(0, tied=True)
        model.resize_token_embeddings(size)
        save_checkpoint(model, tmp_path / str(size))
        with pytest.raises(UserError, match=problem):
            await running.connect(directory=tmp_path / str(size))


async def test_its_weights_are_ours_before_it_serves_anything(running: Running) -> None:
    engine = await running.connect()
    sync = FileWeightSync(lambda: [engine.receiver], OwnedDirectory(SHARED_MEMORY), 60)
    with pytest.raises(DeadlineExceeded):
        await engine.generate(turn(prompt(5), within_s=0.3))
    ours = make_model(5, tied=True)
    await sync.publish(Version(0, 0), ModelSource(ours))
    request = turn(prompt(9))
    found = await engine.generate(request)
    assert (found.version_R == Version(0, 0).pack()).all()
    np.testing.assert_allclose(found.logp_R, learner_logp(ours, request.prompt_ids, found.ids_R), atol=1e-3)
    sync.close()
    await engine.close()
    assert running.process.poll() is None


async def test_keys_and_values_are_computed_again_where_that_is_the_policy(running: Running) -> None:
    engine = await running.connect(SECTION.model_copy(update={"kv_policy": "recompute"}))
    sync = FileWeightSync(lambda: [engine.receiver], OwnedDirectory(SHARED_MEMORY), 60)
    models = [make_model(seed, tied=True) for seed in (5, 6)]
    await sync.publish(Version(0, 0), ModelSource(models[0]))
    turns = [turn(prompt(30, seed), max_tokens=450, seed=seed) for seed in range(16)]
    generating = [asyncio.create_task(engine.generate(request)) for request in turns]
    await asyncio.sleep(0.2)
    await sync.publish(Version(0, 1), ModelSource(models[1]))
    several = 0
    for request, found in zip(turns, await asyncio.gather(*generating), strict=True):
        assert not found.mixed_kv_R.any()
        several += len(set(found.version_R)) == 2
        for step, model in enumerate(models):
            of_it_R = found.version_R == Version(0, step).pack()
            expected_R = learner_logp(model, request.prompt_ids, found.ids_R)
            np.testing.assert_allclose(found.logp_R[of_it_R], expected_R[of_it_R], atol=2e-3)
    assert several > 0
    sync.close()
    await engine.close()


async def test_a_server_that_does_not_come_to_our_weights_serves_nothing(running: Running) -> None:
    engine = await running.connect()
    sync = FileWeightSync(lambda: [engine.receiver], OwnedDirectory(SHARED_MEMORY), 60)
    other = make_model(5, tied=True)
    other.resize_token_embeddings(97)
    with pytest.raises(
        PublishFailed, match=r"prepare of version 0\.0 failed: .*embed_tokens\.weight has shape \(97, 64\)"
    ):
        await sync.publish(Version(0, 0), ModelSource(other))
    with pytest.raises(DeadlineExceeded):
        await engine.generate(turn(prompt(5), within_s=0.3))
    sync.close()
    await engine.close()


async def test_a_server_killed_in_its_update_ends_the_update_and_every_wait(running: Running) -> None:
    """The last test of this file: it kills the server."""
    engine = await running.connect()
    sync = FileWeightSync(lambda: [engine.receiver], OwnedDirectory(SHARED_MEMORY), 60)
    await sync.publish(Version(0, 0), ModelSource(make_model(5, tied=True)))
    generating = asyncio.create_task(engine.generate(turn(prompt(5), max_tokens=450)))
    await asyncio.sleep(0.1)
    receive = engine.receiver.receive

    async def kill_and_receive(manifest: Manifest) -> None:
        end(running.process)
        await receive(manifest)

    engine.receiver.receive = kill_and_receive  # type: ignore[method-assign]
    with pytest.raises(PublishFailed, match=r"engine student-0: receive of version 0\.1 failed"):
        await sync.publish(Version(0, 1), ModelSource(make_model(6, tied=True)))
    with pytest.raises(EngineDied, match="engine student-0 died") as death:
        await asyncio.wait_for(generating, 20)
    assert death.value.partial is not None
    assert set(death.value.partial.version_R) <= {Version(0, 0).pack()}
    with pytest.raises(UserError, match=r"failed: .*; start it with .*, or leave engine\.urls empty"):
        await running.connect()
    sync.close()
    await engine.close()
