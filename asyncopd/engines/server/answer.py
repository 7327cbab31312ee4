"""What has come of one request: complete at its end, and true at every moment before, should the server die.

Invariants:
- each token's version is the server's own word at the end; before, it is the newest version committed before the
  token was sampled, which the workers' counts at each commit tell;
- no token is given a version that was not committed.

Shapes: R generated tokens, K head entries.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from asyncopd.engines.server.stream import Choice, Position, Span
from asyncopd.records import Draws, Generation, Version

_STOP_REASONS = {"stop": "stop", "length": "length", "abort": "aborted"}
_rank = attrgetter("rank")


class Answer:
    """The tokens of a request, which entered while the server served `first`, with the `head` likeliest of each.

    `recomputed` says that keys and values are computed again with each version. `finished` once nothing more comes.
    """

    def __init__(self, first: Version, head: int, *, recomputed: bool) -> None:
        self.finished = False
        self._first = first
        self._head = head
        self._recomputed = recomputed
        self._stop_reason = "aborted"
        self._starts = [(first.pack(), 0)]
        # Growing arrays: as Python numbers, the heads of a full batch would take gigabytes.
        self._ids, self._logp = array("i"), array("f")
        self._head_ids, self._head_logp = array("i"), array("f")

    def add(self, choice: Choice) -> None:
        """Take in tokens, in the order they were sampled."""
        for position in choice.logprobs.content:
            self._ids.append(position.token_id)
            self._logp.append(position.logprob)
            if self._head:
                self._add_head(position)
        if choice.finish_reason is not None:
            self.finished = True
            self._stop_reason = _STOP_REASONS[choice.finish_reason]
            self._starts = _starts(choice.weight_versions or ())

    def _add_head(self, position: Position) -> None:
        # One entry more than the head was asked for: the sampled token comes first, and takes a place of its own.
        head = sorted(position.top_logprobs, key=_rank)[: self._head]
        self._head_ids.extend([entry.token_id for entry in head])
        self._head_logp.extend([entry.logprob for entry in head])

    def committed(self, version: Version, sampled: int) -> None:
        """Note that tokens are of `version` from index `sampled` on; those that have come are older in any case."""
        self._starts.append((version.pack(), max(sampled, len(self._ids))))

    def generation(self) -> Generation:
        """Return all that has come; `aborted` before the end."""
        count = len(self._ids)
        version_R = np.empty(count, np.int64)
        for version, start in self._starts:
            version_R[start:] = version
        kept = np.zeros(count, bool) if self._recomputed else version_R != self._first.pack()
        return Generation(
            ids_R=np.array(self._ids, np.int32),
            logp_R=np.array(self._logp, np.float32),
            version_R=version_R,
            mixed_kv_R=kept.astype(np.uint8),
            stop_reason=self._stop_reason,
            draws=self._heads(count),
        )

    def _heads(self, count: int) -> Draws | None:
        if not self._head:
            return None
        return Draws(
            head_ids_RK=np.array(self._head_ids, np.int32).reshape(count, self._head),
            head_logp_RK=np.array(self._head_logp, np.float32).reshape(count, self._head),
        )


def _starts(spans: Sequence[Span]) -> list[tuple[int, int]]:
    return [(Version.parse(span.version).pack(), span.start) for span in spans]
