"""Processes that stand for a learner and for engines' workers, so that a broadcast's members can die for real.

A fault is `moment:signal`, what a process does to itself when: `before` it moves any bytes, `during` that, `after` it,
or once they are `verified`. A learner may also be `silent`, a worker `refuse` to take part or `corrupt` what it got.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from asyncopd.records import Manifest, SendOrder, Version, WeightFile
from asyncopd.tensors import broadcast
from asyncopd.tensors.broadcast import BroadcastReceiver, BroadcastSender, Member

CHUNK_BYTES = 2**18
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([broadcast.__name__])


def weights_of(version: Version, width: int = 512) -> dict[str, torch.Tensor]:
    """Return the weights that a version has, a few chunks of them."""
    torch.manual_seed(version.step)
    return {
        "embed.weight": torch.randn(width, width),
        "norm.weight": torch.randn(7).bfloat16(),
        "head.weight": torch.randn(width, width),
    }


class Process:
    """A process that answers calls one after another."""

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        self._connection, theirs = _context.Pipe()
        self.process = _context.Process(target=serve, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self._one_at_a_time = threading.Lock()
        assert self._connection.recv() == "ready"

    async def call(self, argument: Any) -> Any:
        """Return the answer; raise what it raised, or `EOFError` where the process is gone."""

        def ask() -> Any:
            with self._one_at_a_time:
                self._connection.send(argument)
                return self._connection.recv()

        answer = await asyncio.to_thread(ask)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class LearnerProcess:
    """A `WeightSource` in a process of its own."""

    def __init__(self, fault: str = "") -> None:
        self._process = Process(_serve_learner, fault)

    async def send(self, order: SendOrder) -> WeightFile:
        return await self._process.call(order)

    def kill(self) -> None:
        self._process.kill()


class WorkerEngine:
    """A `WeightReceiver` of an engine with a worker for each of `faults`; `log` are the phases it entered."""

    def __init__(self, name: str, *faults: str) -> None:
        self.name = name
        self.log: list[str] = []
        self.version: Version | None = None
        self._processes = [Process(_serve_worker, fault, number) for number, fault in enumerate(faults or [""])]

    async def _call(self, what: str, argument: Any = None) -> list[Any]:
        return await asyncio.gather(*(process.call((what, argument)) for process in self._processes))

    async def prepare(self, manifest: Manifest) -> None:
        self.log.append("prepare")
        await self._call("prepare", manifest.files[-1])

    async def freeze(self) -> None:
        self.log.append("freeze")

    async def receive(self, manifest: Manifest) -> None:
        self.log.append("receive")
        await self._call("load")

    async def commit(self, version: Version) -> None:
        self.log.append("commit")
        self.version = version

    async def thaw(self) -> None:
        self.log.append("thaw")

    async def loaded(self) -> list[dict[str, torch.Tensor]]:
        """Return what each worker serves with."""
        return await self._call("loaded")

    def kill(self) -> None:
        for process in self._processes:
            process.kill()


class Striking(Member):
    """A member that signals its own process at its moment, once."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        moment, _, name = fault.partition(":")
        self._moment = moment
        self._corrupt = fault == "corrupt"
        self._signal = signal.Signals[name] if name else None
        self._chunks = 0

    def strike(self, moment: str) -> None:
        if self._signal is not None and moment == self._moment:
            found, self._signal = self._signal, None
            os.kill(os.getpid(), found)

    def move(self, rendezvous, flat_N):
        self.strike("before")
        super().move(rendezvous, flat_N)
        self.strike("after")
        if self._corrupt:
            flat_N[1000] ^= 1

    def _broadcast(self, group, chunk, deadline):
        self._chunks += 1
        if self._chunks == 3:
            self.strike("during")
        super()._broadcast(group, chunk, deadline)


def _serve_learner(connection: Connection, fault: str) -> None:
    torch.set_num_threads(1)
    broadcast._CHUNK_BYTES = CHUNK_BYTES
    sender = BroadcastSender()
    sender._member = Striking(fault)

    def send(order: SendOrder) -> WeightFile:
        if fault == "silent":
            signal.pause()
        return sender.send(order, weights_of(order.version).items())

    _answer(connection, send)


def _serve_worker(connection: Connection, fault: str, worker: int) -> None:
    torch.set_num_threads(1)
    broadcast._CHUNK_BYTES = CHUNK_BYTES
    receiver = BroadcastReceiver(worker)
    member = receiver._member = Striking(fault)
    prepared: dict[str, torch.Tensor] = {}
    served: dict[str, torch.Tensor] = {}

    def serve(call: tuple[str, WeightFile | None]) -> dict[str, torch.Tensor] | None:
        what, weights = call
        if what == "prepare":
            assert weights is not None
            if fault == "refuse":
                raise ValueError("a layout unlike the served checkpoint's")
            prepared.update(receiver.receive(weights))
            member.strike("verified")
        if what == "load":
            served.update({name: tensor.clone() for name, tensor in prepared.items()})
        return dict(served) if what == "loaded" else None

    _answer(connection, serve)


def _answer(connection: Connection, serve: Callable[[Any], Any]) -> None:
    connection.send("ready")
    while True:
        try:
            argument = connection.recv()
        except EOFError:
            return
        try:
            connection.send(serve(argument))
        except (RuntimeError, ValueError) as error:
            connection.send(error)
