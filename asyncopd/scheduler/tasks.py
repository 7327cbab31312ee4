"""Which task each group tries: a fresh permutation of all tasks an epoch, drawn from the run's seed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class TaskOrder:
    """Group g of epoch e = g // `count` tries one of `count` tasks, each once an epoch."""

    seed: int
    count: int
    _epoch: int = -1
    _order: list[int] = field(default_factory=list)

    def place(self, group: int) -> tuple[int, int]:
        """Return the task of group number `group` and its epoch, the times that task was posed before."""
        epoch, index = divmod(group, self.count)
        if epoch != self._epoch:
            # Raw bits of a counter-based generator are the same in every NumPy; its permutations need not be.
            bits = np.random.Philox(key=(epoch << 64) | self.seed).random_raw(self.count)
            self._order = np.argsort(bits, kind="stable").tolist()
            self._epoch = epoch
        return self._order[index], epoch
