"""Putting several sequences into one row, and sequences into rows of a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Pack:
    """Sequences laid end to end. Shape: T tokens of them all.

    ids_T, positions_T  int64; positions start again at 0 in each sequence
    boundaries          where each sequence begins, and T
    """

    ids_T: torch.Tensor
    positions_T: torch.Tensor
    boundaries: tuple[int, ...]


def pack(sequences: Sequence[torch.Tensor]) -> Pack:
    """Lay non-empty sequences of token ids end to end, in order."""
    boundaries = [0]
    for sequence in sequences:
        boundaries.append(boundaries[-1] + len(sequence))
    positions_T = torch.cat([torch.arange(len(sequence), device=sequence.device) for sequence in sequences])
    return Pack(torch.cat(list(sequences)), positions_T, tuple(boundaries))


def balanced_groups(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return groups of indices into `lengths` whose sums stay within `budget` and are near each other.

    The fewest groups that the longest-first rule can fill are used. A sequence longer than the budget is a
    group of its own. The result depends on the lengths alone; indices rise within a group.
    """
    count = max(1, -(-sum(lengths) // budget))
    while (groups := _fill(lengths, budget, count)) is None:
        count += 1
    return groups


def _fill(lengths: Sequence[int], budget: int, count: int) -> list[list[int]] | None:
    """Return at most `count` groups, each longest sequence going to the emptiest, or None if one overflows."""
    groups: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        emptiest = loads.index(min(loads))
        if loads[emptiest] and loads[emptiest] + lengths[index] > budget:
            return None
        groups[emptiest].append(index)
        loads[emptiest] += lengths[index]
    return [sorted(group) for group in groups if group]
