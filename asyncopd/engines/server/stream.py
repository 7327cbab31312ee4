"""The stream of tokens that answers one request: server-sent events of JSON, as vLLM writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from asyncopd.engines.server.client import ServerLost

_END = b"\n\n"
_DATA = b"data: "
_DONE = b"[DONE]"


class Entry(msgspec.Struct, gc=False):
    """One of the likeliest tokens; `rank` counts from 1."""

    token_id: int
    logprob: float
    rank: int


class Position(msgspec.Struct, gc=False):
    """A sampled token, and the likeliest: itself first, with its own rank, then the others."""

    token_id: int
    logprob: float
    top_logprobs: list[Entry]


class Positions(msgspec.Struct):
    content: list[Position]


class Span(msgspec.Struct):
    """Tokens `start` to `end` of the whole turn were sampled by `version`."""

    version: str
    start: int
    end: int


class Choice(msgspec.Struct):
    """Tokens that came since the last piece; the last piece has a reason to finish, and the spans of all."""

    logprobs: Positions
    finish_reason: str | None = None
    weight_versions: list[Span] | None = None


class _Failure(msgspec.Struct):
    message: str


class _Piece(msgspec.Struct):
    choices: list[Choice] = []
    error: _Failure | None = None


_decoder = msgspec.json.Decoder(_Piece)


async def read_choices(pieces: AsyncIterator[bytes]) -> AsyncIterator[Choice]:
    """Yield what a server streams, until it ends; the last has a `finish_reason`, unless the server broke off.

    Raises `ServerLost` for what it says of a failure of its own, and for what it should not say.
    """
    async for event in _events(pieces):
        try:
            piece = _decoder.decode(event)
        except msgspec.DecodeError as error:
            raise ServerLost(f"the stream is broken ({error}): {event[:200].decode(errors='replace')}") from error
        if piece.error is not None:
            raise ServerLost(f"the stream ended with an error of the server: {piece.error.message}")
        for choice in piece.choices:
            yield choice


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event, whichever way the bytes are cut."""
    rest = b""
    async for piece in pieces:
        *events, rest = (rest + piece).split(_END)
        for event in events:
            data = event.removeprefix(_DATA)
            if data != _DONE:  # the connection is free for another request only once its answer was read to the end
                yield data
