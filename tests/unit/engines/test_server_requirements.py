"""What is found out about a server that someone else started, and what its owner is told to do."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.http_server import Exchange, HttpServer, http_server
from support.tiny_models import VOCABULARY, make_model

from asyncopd.config.engine import EngineSection
from asyncopd.engines.server.start import connect
from asyncopd.engines.server.wire import GENERATE
from asyncopd.engines.vllm.arguments import BACKEND, DRAWS_PROCESSOR, EXTENSION
from asyncopd.errors import UserError
from asyncopd.records import DrawSpec

DRAWS = DrawSpec(head=4, tail=2)
LOGITS = (0.0, 1.5)


class Suitable:
    """A server as it should be, but for what a test changes."""

    def __init__(self) -> None:
        self.vocabulary = VOCABULARY
        self.processed = True
        self.tempered = True
        self.config: dict[str, Any] = {
            "model_config": {
                "dtype": "torch.float32",
                "logprobs_mode": "processed_logprobs",
                "logits_processors": [DRAWS_PROCESSOR],
                "max_model_len": 512,
                "max_logprobs": 5,
            },
            "parallel_config": {"worker_extension_cls": EXTENSION},
            "weight_transfer_config": {"backend": BACKEND},
        }

    async def info(self, exchange: Exchange) -> None:
        await exchange.answer_json({"vllm_config": self.config})

    async def sample(self, exchange: Exchange) -> None:
        parameters = exchange.body["sampling_params"]
        allowed = parameters["allowed_token_ids"]
        if max(allowed) >= self.vocabulary:
            await exchange.answer_json({"error": "out of vocabulary"}, 400)
            return
        scaled = [logit / (parameters["temperature"] if self.tempered else 1.0) for logit in LOGITS]
        others = 0.0 if self.processed else 5.0
        total = math.log(sum(map(math.exp, scaled)) + others)
        top = [{"token_id": id, "logprob": logit - total, "rank": 1} for id, logit in enumerate(scaled)]
        await exchange.answer_json({"choices": [{"logprobs": {"content": [{**top[1], "top_logprobs": top}]}}]})


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("student")
    make_model(0, tied=True).config.save_pretrained(directory)
    return directory


@pytest_asyncio.fixture
async def server() -> AsyncIterator[HttpServer]:
    async with http_server() as server:
        yield server


async def try_to_connect(server: HttpServer, student: Path, suitable: Suitable) -> None:
    server.behaviours = {"/server_info": suitable.info, GENERATE: suitable.sample, **server.behaviours}
    section = EngineSection(use="vllm_server", urls=[server.url], max_context=512)
    engine = await connect("student-0", server.url, student, section, dtype="float32", draws=DRAWS)
    await engine.close()


async def test_a_suitable_server_is_used(server: HttpServer, student: Path) -> None:
    await try_to_connect(server, student, Suitable())


def within(*path: str, value: object) -> Callable[[Suitable], None]:
    def change(suitable: Suitable) -> None:
        section = suitable.config
        for name in path[:-1]:
            section = section[name]
        section[path[-1]] = value

    return change


def having(name: str, value: object) -> Callable[[Suitable], None]:
    return lambda suitable: setattr(suitable, name, value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (within("model_config", "dtype", value="torch.bfloat16"), "its dtype is bfloat16, not float32"),
        (within("model_config", "logprobs_mode", value="raw_logprobs"), "its logprobs_mode is raw_logprobs"),
        (within("model_config", "logits_processors", value=None), "its logits_processors are None, without asyncopd"),
        (within("model_config", "max_model_len", value=511), "its max_model_len is 511, below 512"),
        (within("model_config", "max_logprobs", value=4), "its max_logprobs is 4, below 5"),
        (within("parallel_config", "worker_extension_cls", value=""), f"its worker_extension_cls is , not {EXTENSION}"),
        (within("weight_transfer_config", value=None), f"its weight_transfer_config.backend is None, not {BACKEND}"),
        (having("vocabulary", VOCABULARY + 1), f"its vocabulary is not of the student's {VOCABULARY} tokens"),
        (having("vocabulary", VOCABULARY - 1), f"its vocabulary is not of the student's {VOCABULARY} tokens"),
        (having("processed", False), "its log-probs are not those of the distribution that it samples"),
        (having("tempered", False), "its log-probs at temperature 2.0 are not of the tempered distribution"),
    ],
)
async def test_what_is_wrong_is_told_with_the_command_for_a_server_that_is_right(
    server: HttpServer, student: Path, change: Callable[[Suitable], None], problem: str
) -> None:
    suitable = Suitable()
    change(suitable)
    with pytest.raises(UserError) as error:
        await try_to_connect(server, student, suitable)
    assert error.value.where == f"engine.urls: {server.url}"
    assert problem in error.value.problem
    assert error.value.remedy.startswith("start it with VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints")
    port = server.url.rsplit(":", 1)[1]
    for words in (
        f"--host 127.0.0.1 --port {port}",
        "--logprobs-mode processed_logprobs",
        "--enable-scale-out",
        f"--model {student}",
        "--max-logprobs 5",
    ):
        assert words in error.value.remedy


@pytest.mark.parametrize(
    ("path", "status", "problem", "remedy"),
    [
        ("/server_info", 404, "/server_info with 404: said", "VLLM_SERVER_DEV_MODE=1"),
        (GENERATE, 403, "/generate with 403: said", "--enable-scale-out"),
        (GENERATE, 401, "/generate with 401: said", "engine.api_key_env names the variable that holds its key"),
    ],
)
async def test_closed_endpoints_and_keys_are_told(
    server: HttpServer, student: Path, path: str, status: int, problem: str, remedy: str
) -> None:
    server.behaviours[path] = lambda exchange: exchange.answer(b"said", status)
    with pytest.raises(UserError) as error:
        await try_to_connect(server, student, Suitable())
    assert problem in error.value.problem
    assert remedy in error.value.remedy


async def test_a_server_that_is_not_there_is_told(student: Path) -> None:
    section = EngineSection(use="vllm_server", urls=["http://127.0.0.1:9"], max_context=512)
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9: GET /server_info failed: .*; start it with .*, or leave"):
        await connect("student-0", "http://127.0.0.1:9", student, section, dtype="float32")
