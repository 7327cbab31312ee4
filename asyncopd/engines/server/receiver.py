"""The receiving side of a weight update, for vLLM behind a server."""

from __future__ import annotations

from collections.abc import Mapping

from asyncopd.engines.gate import Gate
from asyncopd.engines.lifeline import Lifeline
from asyncopd.engines.server.answer import Answer
from asyncopd.engines.server.control import HttpControl
from asyncopd.engines.vllm.receiver import KvPolicy, VllmReceiver
from asyncopd.records import Version


class ServerReceiver(VllmReceiver):
    """Tells `answers`, by key, from which token on they are of a new version, should the server not live to say so."""

    def __init__(
        self,
        name: str,
        control: HttpControl,
        gate: Gate,
        lifeline: Lifeline,
        kv_policy: KvPolicy,
        answers: Mapping[str, Answer],
    ) -> None:
        super().__init__(name, control, gate, lifeline, kv_policy)
        self._server = control
        self._answers = answers
        self._known = gate.whole

    async def _untouched(self) -> bool:
        """Whether the weights are those of the version served; of another's server, they are not before an update."""
        return self._known and await super()._untouched()

    async def commit(self, version: Version) -> None:
        """Label the tokens sampled from here on with `version`, which must have been received."""
        workers = await self._lifeline.hold(self._server.call("progress"))
        await super().commit(version)
        self._known = True
        for key, answer in self._answers.items():
            answer.committed(version, max((counts.get(key, 0) for counts in workers), default=0))
