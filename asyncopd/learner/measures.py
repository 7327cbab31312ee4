"""What a step measured, gathered micro-batch by micro-batch and summed up once.

Shapes: R trained rows of a member.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from asyncopd.learner.member import Member
from asyncopd.learner.staleness import Verdict
from asyncopd.objectives.ratios import MAX_LOG_RATIO
from asyncopd.records import AttemptReport, Batch, Differences, LossMask, Sample


class Measures:
    """Per-token facts of one step; every mean is over tokens, so the split into micro-batches does not show."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._verdicts: list[Verdict] = []
        self._log_ratios: list[np.ndarray] = []
        self._sums: dict[str, float] = defaultdict(float)

    def add(self, member: Member, verdict: Verdict, logp_R: np.ndarray) -> None:
        """Take in one member, with log π of its trained tokens at the sampling temperature."""
        self._members.append(member)
        self._verdicts.append(verdict)
        self._log_ratios.append(logp_R - member.behaviour_R)

    def add_sums(self, sums: Mapping[str, float]) -> None:
        """Take in sums over tokens of named quantities."""
        for name, value in sums.items():
            self._sums[name] += value

    def averages(self) -> dict[str, float]:
        """Return the mean over forwarded tokens of each quantity given to `add_sums`."""
        tokens = max(1, sum(len(member) for member in self._members))
        return {name: value / tokens for name, value in self._sums.items()}

    def lag_histogram(self) -> dict[int, int]:
        """Return trained tokens by lag."""
        counts: Counter[int] = Counter()
        for member, verdict in zip(self._members, self._verdicts, strict=True):
            if verdict.weight > 0:
                counts.update(member.lag_R.tolist())
        return dict(sorted(counts.items()))

    def exact_differences(self) -> np.ndarray:
        """Return `log π - log μ` of tokens whose whole context the engine computed with the learner's weights."""
        return self._log_ratios_at([member.exact_R for member in self._members])

    def agreement(self) -> Differences:
        """Compare engine and learner over the tokens of `exact_differences`."""
        return Differences.of(self.exact_differences())

    def mixed(self) -> Differences:
        """Compare them over tokens of the learner's weights with a context that older ones computed part of."""
        return Differences.of(self._mixed_differences())

    def _mixed_differences(self) -> np.ndarray:
        return self._log_ratios_at([member.mixed_R for member in self._members])

    def _log_ratios_at(self, chosen: Sequence[np.ndarray]) -> np.ndarray:
        parts = [ratio_R[chosen_R] for ratio_R, chosen_R in zip(self._log_ratios, chosen, strict=True)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)

    def ratio_metrics(self) -> dict[str, float]:
        """Return metrics of ρ = π/μ and of freshness over all forwarded tokens; empty where there are none.

        `ratio_ess` is the effective share of tokens under ρ. `ratio_held_share` is that of tokens whose
        ratio is held at its limit, a bias. `logprob_diff_*` compare engine and learner at equal weights, and
        `logprob_diff_mixed_*` where older weights computed part of the context.
        """
        if not self._members:
            return {}
        log_ratio = np.concatenate(self._log_ratios).astype(np.float64)
        ratio = np.exp(log_ratio - log_ratio.max())
        lengths = np.array([len(member) for member in self._members])
        metrics = {
            "log_ratio_abs_mean": float(np.abs(log_ratio).mean()),
            "ratio_held_share": float((np.abs(log_ratio) > MAX_LOG_RATIO).mean()),
            "ratio_ess": float(ratio.sum() ** 2 / (ratio**2).sum() / len(ratio)),
            "freshness_mean": float(np.average([v.freshness for v in self._verdicts], weights=lengths)),
            "weight_mean": float(np.average([v.weight for v in self._verdicts], weights=lengths)),
        }
        metrics |= _difference_metrics("logprob_diff", self.exact_differences())
        return metrics | _difference_metrics("logprob_diff_mixed", self._mixed_differences())

    def attempts(self, batch: Batch) -> list[AttemptReport]:
        """Return one report an attempt, in the order of the batch; `trained + Σ masked` is all it generated."""
        members: dict[int, list[int]] = defaultdict(list)
        samples: dict[int, list[Sample]] = defaultdict(list)
        for index, member in enumerate(self._members):
            members[member.attempt].append(index)
        for sample in batch.samples:
            samples[sample.attempt].append(sample)
        return [self._report(samples[attempt], members[attempt]) for attempt in samples]

    def _report(self, samples: list[Sample], indices: list[int]) -> AttemptReport:
        members = [self._members[index] for index in indices]
        verdicts = [self._verdicts[index] for index in indices]
        lengths = [len(member) for member in members]
        masked = Counter[str]()
        for sample in samples:
            codes, counts = np.unique(sample.segment.loss_mask_T, return_counts=True)
            masked.update({LossMask(code).reason: int(count) for code, count in zip(codes, counts, strict=True)})
        trainable = masked.pop(LossMask.TRAIN.reason, 0)
        masked.pop(LossMask.CONTEXT.reason, 0)
        stale = sum(len(member) for member, v in zip(members, verdicts, strict=True) if v.weight == 0)
        unscored = trainable - sum(lengths)
        masked.update({LossMask.FRESHNESS.reason: stale, LossMask.UNSCORED.reason: unscored})
        lag = np.concatenate([member.lag_R for member in members]) if members else np.zeros(1)
        return AttemptReport(
            attempt=samples[0].attempt,
            domain=samples[0].domain,
            trained=trainable - stale - unscored,
            masked={reason: count for reason, count in masked.items() if count},
            freshness=float(np.average([v.freshness for v in verdicts], weights=lengths)) if members else 1.0,
            lag_mean=float(lag.mean()),
            lag_max=int(lag.max()),
            rollout_drift=float(np.average([v.drift for v in verdicts], weights=lengths)) if members else 0.0,
        )


def _difference_metrics(prefix: str, log_ratio_R: np.ndarray) -> dict[str, float]:
    if not len(log_ratio_R):
        return {}
    size_R = np.abs(log_ratio_R)
    figures = {"mean": size_R.mean(), "p99": np.quantile(size_R, 0.99), "max": size_R.max()}
    return {f"{prefix}_{name}": float(figure) for name, figure in figures.items()}
