"""What the measurements of updates share: a student in serving dtype, engines of it, and turns for them.

Shapes: R generated tokens, T tokens of prompt and turn.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from asyncopd.config.root import TrainConfig
from asyncopd.engines.start import start_engine
from asyncopd.engines.vllm.receiver import KvPolicy, VllmReceiver
from asyncopd.models.loading import load_causal_lm
from asyncopd.models.resolve import resolve
from asyncopd.records import GenerateRequest, Generation, Sampling, Version
from asyncopd.seams import Engine
from asyncopd.weights.collective import CollectiveWeightSync
from asyncopd.weights.shm import OwnedDirectory, roomy_directory
from asyncopd.weights.sync import FileWeightSync

_DEADLINE_S = 900.0
_PROMPT_TOKENS = 32

_numbers = itertools.count()

Answer = tuple[GenerateRequest, Generation]


@dataclass(frozen=True)
class Student:
    """The student of `config`, with a checkpoint of it in serving dtype at `directory`."""

    config: TrainConfig
    directory: Path
    vocabulary: int

    @classmethod
    def save(cls, config: TrainConfig, directory: Path) -> Student:
        """Write the checkpoint, so that vLLM's own reload reads what is served and no more. Raises `UserError`."""
        model = load_causal_lm(resolve(config.student.model), config.student.dtype)
        model.save_pretrained(directory)
        return cls(config, directory, model.config.get_text_config().vocab_size)

    def model(self, weights: Mapping[str, torch.Tensor] | None = None) -> PreTrainedModel:
        """Return it in float32, with other weights if they are given."""
        model = load_causal_lm(self.directory, "float32").requires_grad_(False)
        for name, parameter in model.named_parameters():
            if weights is not None:
                parameter.copy_(weights[name])
        return model

    @asynccontextmanager
    async def served(self, kv_policy: KvPolicy) -> AsyncIterator[tuple[Engine, VllmReceiver]]:
        """Start an engine in this process, and give it with its receiver."""
        engine = await start_engine(
            "benched",
            self.directory,
            self.config.engine.model_copy(update={"use": "vllm", "kv_policy": kv_policy}),
            dtype=self.config.student.dtype,
            threads=self.config.runtime.threads.engine,
            seed=self.config.run.seed,
        )
        assert isinstance(engine.receiver, VllmReceiver)
        try:
            yield engine, engine.receiver
        finally:
            await engine.close()

    def sync(self, receiver: VllmReceiver, keyframe_every: int) -> FileWeightSync:
        """Return what publishes deltas to one engine of this machine, and all tensors every so many updates."""
        weights_bytes = sum(path.stat().st_size for path in self.directory.glob("*.safetensors"))
        most_bytes = 4 * weights_bytes  # two chains, each of all tensors and as much of deltas
        return FileWeightSync(
            lambda: [receiver],
            OwnedDirectory(roomy_directory(self.directory, most_bytes)),
            self.config.engine.update_timeout_s,
            deltas=True,
            keyframe_every=keyframe_every,
        )

    def broadcasts(self, receiver: VllmReceiver) -> CollectiveWeightSync:
        """Return what broadcasts all tensors to one engine of this machine."""
        return CollectiveWeightSync(
            lambda: [receiver],
            transport="gloo",
            host="127.0.0.1",
            workers=1,
            timeout_s=self.config.engine.update_timeout_s,
            learner_timeout_s=self.config.engine.update_timeout_s,
        )

    def turn(self, engine: Engine, tokens: int) -> GenerateRequest:
        """Return a turn of `tokens` tokens after a random prompt, at the version served now."""
        number = next(_numbers)
        random = torch.Generator().manual_seed(number)
        return GenerateRequest(
            request_id=f"bench-{number}",
            trajectory_id=f"bench-{number}",
            prompt_ids=torch.randint(0, self.vocabulary, (_PROMPT_TOKENS,), generator=random).tolist(),
            sampling=Sampling(temperature=1.0, max_tokens=tokens, seed=number, stop_ids=()),
            min_version=engine.version,
            deadline=asyncio.get_running_loop().time() + _DEADLINE_S,
        )

    @torch.no_grad()
    def differences(
        self, version: Version, weights: Mapping[str, torch.Tensor], answers: Sequence[Answer]
    ) -> list[np.ndarray]:
        """Return |log μ − log π|, nats, of the tokens of `version`; π recomputes everything with `weights`."""
        model = self.model(weights)
        differences = []
        for request, generation in answers:
            ids_T = torch.tensor([*request.prompt_ids, *generation.ids_R.tolist()])
            logits = model(ids_T[None, :-1]).logits[0, len(request.prompt_ids) - 1 :]
            ids_R = torch.from_numpy(generation.ids_R).long()
            logp_R = torch.log_softmax(logits, dim=-1)[torch.arange(len(ids_R)), ids_R].numpy()
            differences.append(np.abs(generation.logp_R - logp_R)[generation.version_R == version.pack()])
        return differences
