"""A stream of tokens, whichever way it is cut, and a control of updates, whatever the server says."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.http_server import Exchange, http_server

from asyncopd.engines.server.client import Client, ServerLost, ServerRefused
from asyncopd.engines.server.control import HttpControl
from asyncopd.engines.server.stream import StreamReader


def event(id: int, finish: str | None = None) -> bytes:
    position = {"token_id": id, "logprob": -0.1, "rank": 1, "top_logprobs": []}
    return (
        b"data: " + json.dumps({"choices": [{"finish_reason": finish, "logprobs": {"content": [position]}}]}).encode()
    )


STREAM = event(7) + b"\n\n" + event(8, "length") + b"\n\ndata: [DONE]\n\n"


def test_a_stream_reads_alike_whichever_way_it_is_cut() -> None:
    for at in range(len(STREAM) + 1):
        reader = StreamReader()
        choices = [*reader.read(STREAM[:at]), *reader.read(STREAM[at:])]
        assert [choice.logprobs.content[0].token_id for choice in choices] == [7, 8]
        assert [choice.finish_reason for choice in choices] == [None, "length"]


async def test_an_update_is_driven_by_vllms_own_endpoints() -> None:
    async with http_server() as server:

        async def ok(exchange: Exchange) -> None:
            await exchange.answer_json({"success": True, "results": [{"a": 1}]})

        paths = ["/pause", "/resume", "/reset_prefix_cache", "/collective_rpc", "/start_weight_update"]
        paths += ["/update_weights", "/finish_weight_update", "/update_weight_version"]
        server.behaviours = dict.fromkeys(paths, ok)
        client = Client(server.url, "a-secret")
        control = HttpControl(client, 5)
        await control.pause()
        assert await control.call("weights_state", key="value") == [{"a": 1}]
        await control.start_update()
        await control.update({"version": "0.1"})
        await control.finish_update()
        await control.recompute()
        await control.label("0.1")
        await control.resume()
        await client.close()
    assert [(exchange.path, exchange.body) for exchange in server.seen] == [
        ("/pause?mode=keep&clear_cache=false", None),
        ("/collective_rpc", {"method": "weights_state", "args": [], "kwargs": {"key": "value"}}),
        ("/start_weight_update", None),
        ("/update_weights", {"update_info": {"version": "0.1"}}),
        ("/finish_weight_update", {}),
        ("/reset_prefix_cache?reset_running_requests=true", None),
        ("/update_weight_version", {"new_version": "0.1"}),
        ("/resume", None),
    ]
    assert {exchange.headers["authorization"] for exchange in server.seen} == {"Bearer a-secret"}


async def test_what_a_server_says_against_an_update_is_told() -> None:
    async with http_server() as server:
        client = Client(server.url, None)
        control = HttpControl(client, 0.2)
        server.behaviours["/pause"] = lambda exchange: exchange.answer(b"no such device", 500)
        with pytest.raises(ServerRefused, match=rf"{server.url} answered POST /pause with 500: no such device"):
            await control.pause()
        server.behaviours["/resume"] = lambda exchange: exchange.answer(b"<html>")
        with pytest.raises(ServerLost, match=r"answered /resume with what is no JSON .*<html>"):
            await control.resume()
        server.behaviours["/start_weight_update"] = lambda exchange: asyncio.sleep(60)
        with pytest.raises(TimeoutError, match=r"did not answer POST /start_weight_update within 0\.2 s"):
            await control.start_update()
        server.behaviours["/reset_prefix_cache"] = lambda exchange: exchange.answer_json({"success": False})
        with pytest.raises(ServerRefused, match="kept its keys and values"):
            await control.recompute()
        await client.close()
