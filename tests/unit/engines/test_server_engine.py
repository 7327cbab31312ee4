"""The client of a vLLM server, against servers that do not do what they should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from support.http_server import Exchange, HttpServer, http_server
from support.tiny_models import turn

from asyncopd.config.engine import EngineSection
from asyncopd.engines.server.client import Client
from asyncopd.engines.server.engine import ServerEngine
from asyncopd.engines.server.wire import ABORT, GENERATE
from asyncopd.records import DrawSpec, Version
from asyncopd.seams import DeadlineExceeded, EngineDied

V1, V2 = Version(0, 1), Version(0, 2)


def event(ids: list[int], finish: str | None = None, spans: list[tuple[Version, int, int]] | None = None) -> bytes:
    """Return the event of tokens whose log-prob is minus a tenth of their id."""
    content = [
        {
            "token_id": id,
            "logprob": -id / 10,
            "rank": 1,
            "top_logprobs": [{"token_id": id, "logprob": -id / 10, "rank": 1}],
        }
        for id in ids
    ]
    versions = spans and [{"version": str(version), "start": start, "end": end} for version, start, end in spans]
    choice = {"index": 0, "finish_reason": finish, "weight_versions": versions, "logprobs": {"content": content}}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def stream_two_tokens(exchange: Exchange) -> None:
    await exchange.begin_stream()
    await exchange.send(event([7]))
    await exchange.send(event([8], "stop", [(V1, 0, 2)]) + DONE)
    await exchange.end_stream()


async def say_aborted(exchange: Exchange) -> None:
    await exchange.answer_json({"status": "aborted"})


@pytest_asyncio.fixture
async def server() -> AsyncIterator[HttpServer]:
    async with http_server() as server:
        server.behaviours = {GENERATE: stream_two_tokens, ABORT: say_aborted}
        yield server


@pytest_asyncio.fixture
async def engine(server: HttpServer) -> AsyncIterator[ServerEngine]:
    section = EngineSection(use="vllm_server", max_context=512)
    engine = ServerEngine("student-0", Client(server.url, "a-secret"), section, V1, DrawSpec(head=2))
    await commit(engine, V1)
    yield engine
    await engine.close()


async def commit(engine: ServerEngine, version: Version) -> None:
    """Do what a weight update does at its end."""
    await engine._gate.shut()
    engine._gate.commit(version)
    engine._gate.open()


async def asked(server: HttpServer, path: str, within_s: float = 5) -> list[Exchange]:
    async with asyncio.timeout(within_s):
        while not server.asked(path):  # noqa: ASYNC110 - a test may poll
            await asyncio.sleep(0.005)
    return server.asked(path)


async def test_a_turn_is_asked_for_by_ids_and_answered_by_ids(server: HttpServer, engine: ServerEngine) -> None:
    found = await engine.generate(turn([5, 6], max_tokens=9, seed=3, stop_ids=(8,)))
    assert (found.ids_R.tolist(), found.stop_reason) == ([7, 8], "stop")
    np.testing.assert_allclose(found.logp_R, [-0.7, -0.8])
    assert (found.version_R == V1.pack()).all()
    (exchange,) = server.seen
    assert exchange.headers["authorization"] == "Bearer a-secret"
    assert exchange.body["token_ids"] == [5, 6]
    assert exchange.body["cache_salt"] == str(V1)
    parameters = exchange.body["sampling_params"]
    assert (parameters["max_tokens"], parameters["stop_token_ids"], parameters["ignore_eos"]) == (9, [8], True)


async def test_a_turn_is_not_sent_over_a_connection_that_the_server_may_be_closing(
    server: HttpServer, engine: ServerEngine
) -> None:
    for _ in range(3):
        await engine.generate(turn([5]))
    assert len({id(exchange.writer) for exchange in server.seen}) == 3


async def test_what_came_of_a_turn_outlives_its_server(server: HttpServer, engine: ServerEngine) -> None:
    async def break_off(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.send(event([7, 8]) + event([9])[:20])
        await asyncio.sleep(0.05)
        exchange.reset()

    server.behaviours[GENERATE] = break_off
    with pytest.raises(EngineDied, match=r"engine student-0 died: .*/inference/v1/generate broke off") as death:
        await engine.generate(turn([5]))
    assert death.value.partial is not None
    assert (death.value.partial.ids_R.tolist(), death.value.partial.stop_reason) == ([7, 8], "aborted")
    with pytest.raises(EngineDied, match="died"):
        await engine.generate(turn([5]))


async def test_tokens_of_a_lost_turn_are_of_the_newest_version_committed_before_them(
    server: HttpServer, engine: ServerEngine
) -> None:
    """Three tokens were sampled when the second version was committed, of which two had come."""
    go_on = asyncio.Event()

    async def break_off_later(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.send(event([7, 8]))
        await go_on.wait()
        await exchange.send(event([9, 10, 11]))
        await asyncio.sleep(0.05)
        exchange.reset()

    server.behaviours[GENERATE] = break_off_later
    waiting = asyncio.create_task(engine.generate(turn([5])))
    await asked(server, GENERATE)
    await asyncio.sleep(0.05)
    (answer,) = engine._answers.values()
    answer.committed(V2, 3)
    go_on.set()
    with pytest.raises(EngineDied) as death:
        await waiting
    partial = death.value.partial
    assert partial is not None
    assert partial.version_R.tolist() == [V1.pack()] * 3 + [V2.pack()] * 2
    assert partial.mixed_kv_R.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'data: {"error": {"message": "EngineCore encountered an issue."}}\n\n', "EngineCore encountered an issue"),
        (b"data: <html>\n\n", "the stream is broken .*<html>"),
        (DONE, "ended a stream before its last token"),
        (event([8]) + DONE, "ended a stream before its last token"),
    ],
)
async def test_a_stream_that_is_none_is_the_servers_end(
    server: HttpServer, engine: ServerEngine, content: bytes, problem: str
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.send(event([7]) + content)
        await exchange.end_stream()

    server.behaviours[GENERATE] = answer
    with pytest.raises(EngineDied, match=problem) as death:
        await engine.generate(turn([5]))
    assert death.value.partial is not None
    assert death.value.partial.ids_R.tolist()[:1] == [7]


async def test_an_error_of_the_server_names_endpoint_status_and_body(server: HttpServer, engine: ServerEngine) -> None:
    server.behaviours[GENERATE] = lambda exchange: exchange.answer(b"out of memory", 500)
    with pytest.raises(EngineDied, match=rf"{server.url} answered POST {GENERATE} with 500: out of memory"):
        await engine.generate(turn([5]))


async def test_a_request_that_is_refused_costs_nobody_else_anything(server: HttpServer, engine: ServerEngine) -> None:
    server.behaviours[GENERATE] = lambda exchange: exchange.answer(b"out of vocabulary", 400)
    with pytest.raises(ValueError, match=r"request .* with 400: out of vocabulary"):
        await engine.generate(turn([5]))
    server.behaviours[GENERATE] = stream_two_tokens
    assert len((await engine.generate(turn([5]))).ids_R) == 2


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_deadline_aborts_the_turn_on_the_server(
    server: HttpServer, engine: ServerEngine, streaming: bool
) -> None:
    async def hang(exchange: Exchange) -> None:
        if streaming:
            await exchange.begin_stream()
            await exchange.send(event([7]))
        await asyncio.sleep(60)

    server.behaviours[GENERATE] = hang
    with pytest.raises(DeadlineExceeded, match=r"waited on engine student-0 past its deadline"):
        await engine.generate(turn([5], within_s=0.2))
    (generation,) = server.asked(GENERATE)
    (abort,) = await asked(server, ABORT)
    assert abort.body == {"request_ids": [f"generate-tokens-{generation.body['request_id']}"]}


async def test_giving_up_aborts_the_turn_on_the_server(server: HttpServer, engine: ServerEngine) -> None:
    server.behaviours[GENERATE] = lambda exchange: asyncio.sleep(60)
    waiting = asyncio.create_task(engine.generate(turn([5])))
    await asked(server, GENERATE)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(await asked(server, ABORT)) == 1


async def test_closing_ends_every_wait_with_what_had_come(server: HttpServer, engine: ServerEngine) -> None:
    async def hang(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.send(event([7]))
        await asyncio.sleep(60)

    server.behaviours[GENERATE] = hang
    waiting = asyncio.create_task(engine.generate(turn([5])))
    await asked(server, GENERATE)
    await asyncio.sleep(0.05)
    await engine.close()
    with pytest.raises(EngineDied, match="was closed") as death:
        await waiting
    assert death.value.partial is not None
    assert death.value.partial.ids_R.tolist() == [7]


async def test_a_server_of_unknown_weights_serves_nothing_before_an_update(server: HttpServer) -> None:
    section = EngineSection(use="vllm_server", max_context=512)
    engine = ServerEngine("student-0", Client(server.url, None), section, V1, DrawSpec())
    with pytest.raises(DeadlineExceeded):
        await engine.generate(turn([5], within_s=0.05))
    assert not server.seen
    await commit(engine, V1)
    assert len((await engine.generate(turn([5]))).ids_R) == 2
    await engine.close()


async def test_a_server_that_is_not_there_is_dead(server: HttpServer) -> None:
    section = EngineSection(use="vllm_server", max_context=512)
    engine = ServerEngine("student-0", Client("http://127.0.0.1:9", None), section, V1, DrawSpec())
    await commit(engine, V1)
    with pytest.raises(EngineDied, match=r"engine student-0 died: http://127\.0\.0\.1:9: GET /is_paused failed"):
        await engine.probe()
    with pytest.raises(EngineDied):
        await engine.generate(turn([5]))
    await engine.close()


async def test_requests_do_not_enter_while_an_update_waits_for_one_that_is_being_submitted(
    server: HttpServer, engine: ServerEngine
) -> None:
    go_on = asyncio.Event()

    async def answer_late(exchange: Exchange) -> None:
        await go_on.wait()
        await stream_two_tokens(exchange)

    server.behaviours[GENERATE] = answer_late
    first = asyncio.create_task(engine.generate(turn([5])))
    await asked(server, GENERATE)
    shutting = asyncio.create_task(engine._gate.shut())
    second = asyncio.create_task(engine.generate(turn([6])))
    await asyncio.sleep(0.05)
    assert not shutting.done()
    go_on.set()
    await shutting
    await first
    assert len(server.asked(GENERATE)) == 1
    engine._gate.open()
    await second


def top(token: int, logp: float, rank: int) -> dict[str, Any]:
    return {"token_id": token, "logprob": logp, "rank": rank}


@pytest.mark.parametrize(
    "likeliest",
    [
        [top(9, -5.0, 7), top(1, -1.0, 1), top(2, -2.0, 2)],  # the sampled token is none of them
        [top(2, -2.0, 2), top(1, -1.0, 1), top(3, -3.0, 3)],
        [top(3, -3.0, 3), top(1, -1.0, 1), top(2, -2.0, 2)],
    ],
)
async def test_the_head_is_of_the_likeliest_tokens_whichever_was_sampled(
    server: HttpServer, engine: ServerEngine, likeliest: list[dict[str, Any]]
) -> None:
    async def answer(exchange: Exchange) -> None:
        sampled = {**likeliest[0], "top_logprobs": likeliest}
        spans = [{"version": str(V1), "start": 0, "end": 1}]
        choice = {"finish_reason": "length", "weight_versions": spans, "logprobs": {"content": [sampled]}}
        await exchange.begin_stream()
        await exchange.send(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n" + DONE)
        await exchange.end_stream()

    server.behaviours[GENERATE] = answer
    found = await engine.generate(turn([5], head=2))
    assert found.draws is not None
    assert found.draws.head_ids_RK.tolist() == [[1, 2]]
    assert found.draws.head_logp_RK.tolist() == [[-1.0, -2.0]]
    assert server.seen[0].body["sampling_params"]["logprobs"] == 3
