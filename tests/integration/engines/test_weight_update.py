"""Weights that change under a real vLLM engine, against the learner's numbers, after every kind of update.

Four engines, each started once: heads tied and not, float32 and bfloat16, with and without biases; keys and values
kept and recomputed; modules that are exchanged, and vLLM's reload.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from support.tiny_models import ModelSource, learner_logp, make_model, mixed_logp, prompt, save_checkpoint, turn
from transformers import PreTrainedModel

from asyncopd.config.engine import EngineSection
from asyncopd.engines.start import start_engine
from asyncopd.records import Generation, Manifest, PublishReport, SendOrder, Version, WeightFile
from asyncopd.seams import DeadlineExceeded, Engine, WeightReceiver
from asyncopd.tensors.mapped import write_tensors
from asyncopd.weights.protocol import PublishFailed
from asyncopd.weights.shm import OwnedDirectory
from asyncopd.weights.sync import FileWeightSync

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SHARED_MEMORY = Path("/dev/shm")
TIMEOUT_S = 60.0


@dataclasses.dataclass(frozen=True)
class Kind:
    """What is served, and how."""

    tied: bool
    dtype: str
    kv_policy: str
    biases: bool = False
    reload: bool = False

    @property
    def section(self) -> EngineSection:
        return EngineSection(max_context=1024, kv_cache_mib=64, kv_policy=self.kv_policy)

    def model(self, seed: int) -> PreTrainedModel:
        return make_model(seed, tied=self.tied, biases=self.biases).to(getattr(torch, self.dtype))


KINDS = {
    "tied-float32-keep": Kind(True, "float32", "keep"),
    "untied-float32-recompute": Kind(False, "float32", "recompute", biases=True),
    "tied-bfloat16-recompute-reload": Kind(True, "bfloat16", "recompute", reload=True),
    "untied-bfloat16-keep": Kind(False, "bfloat16", "keep"),
}


@dataclasses.dataclass
class Served:
    """An engine, and the models behind the versions it has served."""

    engine: Engine
    kind: Kind
    syncs: dict[str, FileWeightSync]
    models: dict[Version, PreTrainedModel]

    def __post_init__(self) -> None:
        self.source = ModelSource(self.model)

    @property
    def model(self) -> PreTrainedModel:
        return self.models[self.engine.version]

    def exact(self, version: Version) -> PreTrainedModel:
        """Return the model of `version` to compute with in float32."""
        return copy.deepcopy(self.models[version]).float()

    @property
    def next(self) -> Version:
        return Version(0, max(self.models).step + 1)

    @property
    def other(self) -> PreTrainedModel:
        return self.kind.model(99)

    async def publish(self, how: str = "dense", changed: PreTrainedModel | None = None) -> PublishReport:
        version = self.next
        self.source.model = self.models[version] = changed or self.kind.model(version.step)
        return await self.syncs[how].publish(version, self.source)

    async def check(self, length: int = 20, seed: int = 0) -> None:
        """Generate, and hold the log-probs against the model of the engine's version."""
        request = turn(prompt(length, seed), max_tokens=30)
        found = await self.engine.generate(request)
        assert (found.version_R == self.engine.version.pack()).all()
        self.agree(found, learner_logp(self.exact(self.engine.version), request.prompt_ids, found.ids_R))

    def agree(self, found: Generation, expected_R: np.ndarray) -> None:
        """Other weights differ by nats; bfloat16 rounds what float32 has to the last digits."""
        if self.kind.dtype == "float32":
            np.testing.assert_allclose(found.logp_R, expected_R, atol=2e-3)
        else:
            assert np.abs(found.logp_R - expected_R).mean() < 0.15


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=KINDS.values(), ids=KINDS.keys())
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    kind: Kind = request.param
    patch = pytest.MonkeyPatch()
    patch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # for functions to be called in the worker
    directory = tmp_path_factory.mktemp("student")
    save_checkpoint(kind.model(0), directory)
    engine = await start_engine("student-0", directory, kind.section, dtype=kind.dtype, threads=1, seed=0)

    def reload_in_place(worker: object) -> None:
        """Have the worker do what it does on a GPU."""
        from asyncopd.engines.vllm import follower

        follower.replaceable = lambda config: False

    if kind.reload:
        await engine._llm.collective_rpc(reload_in_place)

    def sync(parent: Path, **how) -> FileWeightSync:
        return FileWeightSync(lambda: [engine.receiver], OwnedDirectory(parent), TIMEOUT_S, **how)

    syncs = {
        "dense": sync(SHARED_MEMORY),
        "delta": sync(SHARED_MEMORY, deltas=True, keyframe_every=64),
        "disk": sync(tmp_path_factory.mktemp("weights"), dense="safetensors"),
    }
    yield Served(engine, kind, syncs, {Version(0, 0): kind.model(0)})
    for opened in syncs.values():
        opened.close()
    await engine.close()
    patch.undo()


def changed_in(model: PreTrainedModel, *fragments: str) -> PreTrainedModel:
    """Return a copy in which some weights of each tensor named by a fragment are others."""
    changed = copy.deepcopy(model)
    torch.manual_seed(len(fragments))
    for fragment in fragments:
        (parameter,) = [tensor for name, tensor in changed.named_parameters() if fragment in name]
        torch.nn.init.normal_(parameter.data[::3], std=0.5)
    return changed


@pytest.mark.parametrize("how", ["dense", "disk", "delta"])
async def test_log_probs_are_the_learners_after_every_kind_of_update(served: Served, how: str) -> None:
    await served.check()
    for _ in range(3):
        report = await served.publish(how)
        assert served.engine.version == report.version
        assert 0 < report.pause_seconds < 10
        await served.check()


async def test_a_delta_to_part_of_a_module_fills_all_of_it(served: Served) -> None:
    fragments = ["0.self_attn.q_proj.weight", "1.self_attn.v_proj.weight", "0.mlp.up_proj", "1.mlp.down_proj"]
    fragments += ["1.input_layernorm", "embed_tokens", "model.norm"]
    fragments += [] if served.kind.tied else ["lm_head"]
    fragments += ["0.self_attn.k_proj.bias"] if served.kind.biases else ["1.self_attn.k_norm"]
    await served.publish("delta")
    for fragment in fragments:
        report = await served.publish("delta", changed_in(served.model, fragment))
        assert report.bytes < report.dense_bytes / 4
        await served.check()
    await served.publish("delta", changed_in(served.model, *fragments))
    await served.check()


async def test_a_version_that_changed_nothing_is_served_all_the_same(served: Served) -> None:
    for _ in range(2):
        await served.publish("delta", served.model)
    await served.check()


async def test_nothing_of_older_weights_stays_in_memory(served: Served) -> None:
    def strangers(worker: Any) -> list[str]:
        """Return the modules that are not of the model, without waiting for the garbage collector."""
        import gc

        import torch

        own = {id(module) for module in worker.model_runner.model.modules()}
        modules = [found for found in gc.get_objects() if isinstance(found, torch.nn.Module) and id(found) not in own]
        return [type(module).__name__ for module in modules if module._parameters]

    before = await served.engine._llm.collective_rpc(strangers)
    for how in ("dense", "delta", "disk"):
        await served.publish(how)
    assert await served.engine._llm.collective_rpc(strangers) == before


async def test_later_requests_reuse_no_prefix_of_older_weights(served: Served) -> None:
    for seed in range(3):
        await served.check(length=400, seed=seed)
    await served.publish()
    for seed in range(3):
        await served.check(length=400, seed=seed)


async def test_requests_in_flight_go_on_with_exactly_the_versions_that_sampled_them(served: Served) -> None:
    turns = [turn(prompt(30, seed), max_tokens=600, seed=seed) for seed in range(8)]
    first = served.engine.version
    generating = [asyncio.create_task(served.engine.generate(request)) for request in turns]
    for _ in range(2):
        await asyncio.sleep(0.25)
        await served.publish()
    for request, found in zip(turns, await asyncio.gather(*generating), strict=True):
        assert len(found.ids_R) == 600
        starts = [0, *(np.flatnonzero(np.diff(found.version_R)) + 1)]
        versions = [Version.unpack(int(found.version_R[start])) for start in starts]
        assert versions == [Version(0, first.step + offset) for offset in range(3)]
        models = [served.exact(version) for version in versions]
        if served.kind.kv_policy == "keep":
            assert (found.mixed_kv_R == (found.version_R != first.pack())).all()
            expected_R = mixed_logp(list(zip(models, starts, strict=True)), request.prompt_ids, found.ids_R)
        else:
            assert not found.mixed_kv_R.any()
            whole_R = [learner_logp(model, request.prompt_ids, found.ids_R) for model in models]
            spans = zip(whole_R, starts, [*starts[1:], 600], strict=True)
            expected_R = np.concatenate([logp_R[start:end] for logp_R, start, end in spans])
        served.agree(found, expected_R)


async def test_a_request_waits_for_its_version(served: Served) -> None:
    wanted = served.next
    waiting = asyncio.create_task(served.engine.generate(turn(prompt(5), min_version=wanted)))
    await served.check()
    assert not waiting.done()
    await served.publish()
    assert ((await waiting).version_R == wanted.pack()).all()


class Altered(ModelSource):
    """Sends what `alter` makes of the tensors."""

    def __init__(self, model: PreTrainedModel, alter) -> None:
        super().__init__(model)
        self.alter = alter

    async def send(self, order: SendOrder) -> WeightFile:
        return write_tensors(order.path, order.version, self.alter(dict(self.model.named_parameters())).items())


def without_a_part(tensors: dict) -> dict:
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    return tensors


def in_another_dtype(tensors: dict) -> dict:
    norm = tensors["model.norm.weight"]
    other = torch.float32 if norm.dtype == torch.bfloat16 else torch.bfloat16
    return tensors | {"model.norm.weight": norm.to(other)}


def of_another_vocabulary(tensors: dict) -> dict:
    return tensors | {"model.embed_tokens.weight": tensors["model.embed_tokens.weight"][:-1]}


def with_a_stranger(tensors: dict) -> dict:
    return tensors | {"model.layers.7.mlp.up_proj.weight": tensors["model.norm.weight"]}


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (without_a_part, r"layers\.1\.self_attn\.k_proj\.weight has shape none, the checkpoint served has \(\d+, 64\)"),
        (in_another_dtype, r"model\.norm\.weight is \w+, the engine serves \w+"),
        (of_another_vocabulary, r"embed_tokens\.weight has shape \(95, 64\), the checkpoint served has \(96, 64\)"),
        (with_a_stranger, r"layers\.7\.mlp\.up_proj\.weight has shape \(64,\), the checkpoint served has none"),
    ],
)
async def test_weights_of_another_model_are_refused_before_any_pause(served: Served, alter, reason: str) -> None:
    generating = asyncio.create_task(served.engine.generate(turn(prompt(5), max_tokens=300)))
    with pytest.raises(PublishFailed, match=rf"engine student-0: prepare of version .* failed: .*{reason}"):
        await served.syncs["dense"].publish(served.next, Altered(served.other, alter))
    assert ((await generating).version_R == served.engine.version.pack()).all()
    await served.check()
    await served.publish()
    await served.check()


def tear(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"torn")


@pytest.mark.parametrize("how", ["dense", "disk", "delta"])
async def test_a_torn_file_is_refused_and_the_old_weights_serve_on(served: Served, how: str) -> None:
    class Torn(ModelSource):
        async def send(self, order: SendOrder) -> WeightFile:
            sent = await super().send(order)
            tear(sent.path, sent.tensors[1].offset)
            return sent

    generating = asyncio.create_task(served.engine.generate(turn(prompt(5), max_tokens=300)))
    with pytest.raises(PublishFailed, match=r"engine student-0: prepare of version .* failed: .*the checksum"):
        await served.syncs[how].publish(served.next, Torn(served.other))
    assert ((await generating).version_R == served.engine.version.pack()).all()
    await served.check()
    await served.publish(how)
    await served.check()


def written(served: Served, path: Path, version: Version, model: PreTrainedModel) -> Manifest:
    return Manifest(files=(write_tensors(path, version, model.named_parameters()),))


async def test_a_late_or_repeated_version_is_refused_by_name(served: Served, tmp_path: Path) -> None:
    await served.publish()
    now = served.engine.version
    for version in (now, Version(0, now.step - 1)):
        with pytest.raises(RuntimeError, match=rf"version {version} is not newer than {now}, which engine student-0"):
            await served.engine.receiver.prepare(written(served, tmp_path / "late", version, served.other))
    await served.check()


async def test_what_was_cut_off_or_superseded_is_never_loaded(served: Served, tmp_path: Path) -> None:
    """A file that nobody writes to is a filesystem that hangs; generation goes on beside it."""
    receiver = served.engine.receiver
    hanging = written(served, tmp_path / "hanging", served.next, served.other)
    os.unlink(hanging.files[0].path)
    os.mkfifo(hanging.files[0].path)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(receiver.prepare(hanging), 0.3)
    await served.check()
    superseded = written(served, tmp_path / "superseded", served.next, served.other)
    await receiver.prepare(superseded)
    version = Version(0, served.next.step + 1)
    served.models[version] = served.kind.model(version.step)
    await receiver.prepare(written(served, tmp_path / "newest", version, served.models[version]))
    await receiver.freeze()
    with pytest.raises(Exception, match=rf"version {superseded.version} was to be loaded, .* {version} is the newest"):
        await receiver.receive(superseded)
    await receiver.thaw()
    await served.check()
    await served.publish()
    await served.check()
    os.close(os.open(hanging.files[0].path, os.O_WRONLY))  # lets the reader go
    await served.check()


async def test_a_load_that_fails_half_way_never_serves(served: Served) -> None:
    """Modules that are exchanged are refused before any pause; a reload leaves the engine paused until the next."""

    def fail_once(worker: Any) -> None:
        from itertools import islice

        model = worker.model_runner.model
        load = type(model).load_weights

        def half(self: Any, weights: Any) -> None:
            type(model).load_weights = load
            load(self, islice(weights, 9))
            raise RuntimeError("half of it was loaded")

        type(model).load_weights = half

    generating = asyncio.create_task(served.engine.generate(turn(prompt(5), max_tokens=700)))
    await asyncio.sleep(0.1)
    first = served.engine.version
    await served.engine._llm.collective_rpc(fail_once)
    phase = "receive" if served.kind.reload else "prepare"
    with pytest.raises(PublishFailed, match=rf"{phase} of version .* failed: .*half of it was loaded"):
        await served.publish("dense")
    if served.kind.reload:
        with pytest.raises(DeadlineExceeded, match="whose last weight update failed and was not repeated"):
            await served.engine.generate(turn(prompt(5), within_s=0.2))
    else:
        await served.check()
    await served.publish("delta")
    assert set((await generating).version_R) <= {first.pack(), served.engine.version.pack()}
    await served.check()


async def test_weights_loaded_and_not_committed_sample_nothing_until_a_publish_succeeds(served: Served) -> None:
    class CutOff:
        """The receiver of the engine, which never hears that it should commit."""

        def __init__(self, receiver: WeightReceiver) -> None:
            self.name, self.prepare, self.freeze = receiver.name, receiver.prepare, receiver.freeze
            self.receive, self.thaw = receiver.receive, receiver.thaw

        async def commit(self, version: Version) -> None:
            raise OSError("lost")

    generating = asyncio.create_task(served.engine.generate(turn(prompt(5), max_tokens=700)))
    await asyncio.sleep(0.1)
    first, version = served.engine.version, served.next
    cut_off = FileWeightSync(lambda: [CutOff(served.engine.receiver)], OwnedDirectory(SHARED_MEMORY), TIMEOUT_S)
    with pytest.raises(PublishFailed, match=r"engine student-0: commit of version .* failed: lost"):
        await cut_off.publish(version, ModelSource(served.kind.model(version.step)))
    cut_off.close()
    with pytest.raises(DeadlineExceeded, match="whose last weight update failed and was not repeated"):
        await served.engine.generate(turn(prompt(5), within_s=0.2))
    with pytest.raises(PublishFailed, match="other weights were sent as this version before"):
        await served.syncs["dense"].publish(version, ModelSource(served.other))
    assert not generating.done()
    await served.publish()
    assert set((await generating).version_R) == {first.pack(), version.pack()}
    await served.check()
