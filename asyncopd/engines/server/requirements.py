"""What a server that someone else started must be, asked of it before anything depends on it."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import Any

import httpx
from transformers import AutoConfig

from asyncopd.config.engine import EngineSection
from asyncopd.config.model import Dtype
from asyncopd.engines.server.client import Client, ServerLost, ServerRefused
from asyncopd.engines.server.process import server_arguments, server_command
from asyncopd.engines.server.wire import GENERATE
from asyncopd.errors import UserError
from asyncopd.records import DrawSpec

_TIMEOUT_S = 60.0  # the first request of a server costs seconds, and so does its account of its machine
_TOLERANCE = 0.01
_TEMPERED = 2.0


def api_key(section: EngineSection) -> str | None:
    """Return the key of the servers at `engine.urls`. Raises `UserError` for a variable that is not set."""
    if section.api_key_env is None:
        return None
    key = os.environ.get(section.api_key_env)
    if not key:
        raise UserError(
            "engine.api_key_env", f"{section.api_key_env} is not set", "export the key of engine.urls in it"
        )
    return key


class Requirements:
    """What the server behind `client` is asked for."""

    def __init__(self, client: Client, directory: Path, section: EngineSection, dtype: Dtype, draws: DrawSpec) -> None:
        self._client = client
        self._section = section
        self._arguments = server_arguments(directory, section, dtype=dtype, seed=0, draws=draws)
        self._vocabulary = AutoConfig.from_pretrained(directory).get_text_config().vocab_size

    async def check(self) -> None:
        """Raise `UserError` for the first thing that is not as it must be, with the command that mends it."""
        try:
            info = await self._client.call("GET", "/server_info", timeout_s=_TIMEOUT_S, config_format="json")
            self._check_declared(info["vllm_config"])
            await self._check_vocabulary()
            await self._check_log_probs()
        except ServerRefused as error:
            remedy = (
                "engine.api_key_env names the variable that holds its key" if error.status == 401 else self._command()
            )
            raise UserError("engine.urls", str(error), remedy) from error
        except (ServerLost, TimeoutError) as error:
            remedy = f"{self._command()}, or leave engine.urls empty to have one started"
            raise UserError("engine.urls", str(error), remedy) from error

    def _check_declared(self, config: dict[str, Any]) -> None:
        model, wanted = config["model_config"], self._arguments
        transfer = config["weight_transfer_config"] or {}
        extension = config["parallel_config"]["worker_extension_cls"]
        declared = {
            "dtype": (model["dtype"].removeprefix("torch."), wanted["dtype"]),
            "logprobs_mode": (model["logprobs_mode"], wanted["logprobs_mode"]),
            "weight_transfer_config.backend": (transfer.get("backend"), wanted["weight_transfer_config"]["backend"]),
            "worker_extension_cls": (extension, wanted["worker_extension_cls"]),
        }
        for name, (found, needed) in declared.items():
            if found != needed:
                raise self._unsuitable(f"its {name} is {found}, not {needed}")
        for processor in wanted.get("logits_processors", ()):
            if processor not in (model["logits_processors"] or ()):
                raise self._unsuitable(f"its logits_processors are {model['logits_processors']}, without {processor}")
        for name in ("max_model_len", "max_logprobs"):
            if 0 <= model[name] < wanted[name]:
                raise self._unsuitable(f"its {name} is {model[name]}, below {wanted[name]}")

    async def _check_vocabulary(self) -> None:
        last, beyond = self._vocabulary - 1, self._vocabulary
        if await self._admits(beyond) or not await self._admits(last):
            raise self._unsuitable(f"its vocabulary is not of the student's {self._vocabulary} tokens")

    async def _admits(self, token: int) -> bool:
        try:
            await self._sample(temperature=1.0, allowed_token_ids=[token])
        except ServerRefused as error:
            if error.status != 400:
                raise
            return False
        return True

    async def _check_log_probs(self) -> None:
        """Compare log-probs where only two tokens may be sampled: they are of these two alone, and tempered."""
        allowed, gaps = [0, 1], []
        for temperature in (1.0, _TEMPERED):
            choice = await self._sample(temperature=temperature, logprobs=2, allowed_token_ids=allowed)
            (position,) = choice["logprobs"]["content"]
            logp = {entry["token_id"]: entry["logprob"] for entry in position["top_logprobs"]}
            if sorted(logp) != allowed or abs(sum(map(math.exp, logp.values())) - 1) > _TOLERANCE:
                raise self._unsuitable("its log-probs are not those of the distribution that it samples")
            gaps.append(logp[0] - logp[1])
        if abs(gaps[0] - _TEMPERED * gaps[1]) > _TOLERANCE:
            raise self._unsuitable(f"its log-probs at temperature {_TEMPERED} are not of the tempered distribution")

    async def _sample(self, **sampling: object) -> dict[str, Any]:
        """Sample one token after token 0."""
        parameters = {"max_tokens": 1, "seed": 0, "ignore_eos": True, "detokenize": False, **sampling}
        body = {"token_ids": [0], "sampling_params": parameters}
        answer = await self._client.call("POST", GENERATE, body, timeout_s=_TIMEOUT_S)
        return answer["choices"][0]

    def _unsuitable(self, problem: str) -> UserError:
        return UserError(f"engine.urls: {self._client.url}", problem, self._command())

    def _command(self) -> str:
        url, key = httpx.URL(self._client.url), self._section.api_key_env
        words = ["python", *server_command(self._arguments), "--host", url.host]
        words += [] if url.port is None else ["--port", str(url.port)]
        keyed = "" if key is None else f'VLLM_API_KEY="${key}" '
        return f"start it with VLLM_SERVER_DEV_MODE=1 {keyed}{shlex.join(words)}"
