"""The stream of tokens that answers one request: server-sent events of JSON, as vLLM writes them."""

from __future__ import annotations

from collections.abc import Iterator

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


class StreamReader:
    """Reads one stream; the last choice has a `finish_reason`, unless the server broke off."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, piece: bytes) -> Iterator[Choice]:
        """Yield what is complete with `piece`, whichever way the bytes were cut.

        Raises `ServerLost` for what the server says of a failure of its own, and for what it should not say.
        """
        *events, self._rest = (self._rest + piece).split(_END)
        for event in events:
            data = event.removeprefix(_DATA)
            if data != _DONE:
                yield from _choices(data)


def _choices(data: bytes) -> list[Choice]:
    try:
        piece = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ServerLost(f"the stream is broken ({error}): {data[:200].decode(errors='replace')}") from error
    if piece.error is not None:
        raise ServerLost(f"the stream ended with an error of the server: {piece.error.message}")
    return piece.choices
