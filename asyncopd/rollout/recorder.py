"""Builds the segments of a trajectory from what was shown and what was sampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncopd.records import Draws, Generation, LossMask, Segment

OPENING = -1
"""The turn of tokens that no turn brought."""


class Recorder:
    """Collects ids turn by turn. Each sampled id enters exactly one segment as sampled: the one it was
    sampled in; where a prefix breaks, what came before enters the next segment as context."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._finished: list[_Draft] = []
        self._draft = _Draft(prompt_ids)

    @property
    def ids(self) -> list[int]:
        """All ids of the segment being recorded, in order; a copy."""
        return list(self._draft.ids)

    def generated(self, generation: Generation, turn: int) -> None:
        """Add what the engine sampled after `ids`."""
        self._draft.add_generated(generation, turn)

    def observed(self, ids: Sequence[int], turn: int) -> None:
        """Add context that follows turn `turn`."""
        self._draft.add_context(ids, turn)

    def restart(self, prompt_ids: Sequence[int]) -> None:
        """Begin a new segment with a prompt that is not an extension of `ids`."""
        self._finished.append(self._draft)
        self._draft = _Draft(prompt_ids)

    def segments(self) -> list[Segment]:
        """Return the segments in which something was sampled, each up to the last token that was."""
        return [draft.segment() for draft in (*self._finished, self._draft) if draft.generations]


class _Draft:
    """A segment under way: its ids, and for each run of them the turn and, if sampled, the generation."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.ids: list[int] = list(prompt_ids)
        self.generations: list[tuple[int, Generation]] = []
        self._turns: list[np.ndarray] = [np.full(len(self.ids), OPENING, np.int16)]

    def add_generated(self, generation: Generation, turn: int) -> None:
        self.generations.append((len(self.ids), generation))
        self.add_context(generation.ids_R.tolist(), turn)

    def add_context(self, ids: Sequence[int], turn: int) -> None:
        self.ids.extend(ids)
        self._turns.append(np.full(len(ids), turn, np.int16))

    def segment(self) -> Segment:
        last, generation = self.generations[-1]
        length = last + len(generation.ids_R)
        mask_T = np.full(length, LossMask.CONTEXT, np.uint8)
        logp_T = np.zeros(length, np.float32)
        version_T = np.full(length, -1, np.int64)
        mixed_kv_T = np.zeros(length, np.uint8)
        for start, generation in self.generations:
            rows = slice(start, start + len(generation.ids_R))
            mask_T[rows] = LossMask.TRAIN
            if generation.undrawn_R is not None:
                mask_T[rows][generation.undrawn_R > 0] = LossMask.INFRASTRUCTURE
            logp_T[rows] = generation.logp_R
            version_T[rows] = generation.version_R
            mixed_kv_T[rows] = generation.mixed_kv_R
        return Segment(
            ids_T=np.array(self.ids[:length], np.int32),
            loss_mask_T=mask_T,
            logp_T=logp_T,
            version_T=version_T,
            mixed_kv_T=mixed_kv_T,
            turn_T=np.concatenate(self._turns)[:length],
            draws=_joined([generation for _, generation in self.generations]),
        )


def _joined(generations: Sequence[Generation]) -> Draws | None:
    """Return the draws of several generations as one; an engine gives every generation the same kinds."""
    parts = [generation.draws for generation in generations if len(generation.ids_R)]
    present = [part for part in parts if part is not None]
    assert len(present) in (0, len(parts)), "an engine gave draws for some generations only"
    return Draws.join(present) if present else None
