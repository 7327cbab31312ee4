"""How far the learner is: steps trained, published and saved, and what of that is due."""

from __future__ import annotations

from dataclasses import dataclass

from asyncopd.records import Version

_INITIAL = Version(0, 0)


@dataclass
class Progress:
    """The learner's side of the run.

    step       steps trained on the present timeline, and so the step of the learner's version
    training   whether step `step` is being trained
    published  the version that engines were last commanded to load
    republish  an engine came without it, and will not get it unless it is published again
    saving     the last step whose checkpoint was commanded
    durable    the last step whose checkpoint is durable; step 0 always is
    """

    steps: int
    publish_every: int
    checkpoint_every: int
    reach: int
    timeline: int = 0
    step: int = 0
    training: bool = False
    published: Version = _INITIAL
    republish: bool = False
    saving: int = 0
    durable: int = 0

    @property
    def version(self) -> Version:
        return Version(self.timeline, self.step)

    @property
    def next_step(self) -> int:
        """The first step whose members are still open."""
        return self.step + self.training

    @property
    def publish_due(self) -> bool:
        """Whether the learner's weights are wanted in the engines, now that it is idle.

        Beside the interval and the last step: when no attempt at the next step could start without.
        """
        if self.republish:
            return True
        wanted = self.step % self.publish_every == 0 or self.step == self.steps
        return self.version > self.published and (wanted or self.step > self.published.step + self.reach)

    @property
    def checkpoint_due(self) -> bool:
        wanted = self.step % self.checkpoint_every == 0 or self.step == self.steps
        return wanted and self.step > self.saving

    def train(self, step: int) -> None:
        """Take note that step `step` is trained."""
        assert self.training and step == self.step, f"step {step} is trained, but nobody asked for it"
        self.step, self.training = step + 1, False

    def save(self, step: int) -> None:
        """Take note that all before version `step` is durable."""
        assert self.durable < step <= self.saving, f"checkpoint {step} is saved, but nobody asked for it"
        self.durable = step

    def roll_back(self, timeline: int, step: int) -> None:
        """Start `timeline` from the durable state of `step`."""
        assert timeline > self.timeline, f"timeline {timeline} does not follow {self.timeline}"
        assert self.durable <= step <= self.step, f"step {step} is not between {self.durable} and {self.step}"
        self.timeline, self.step, self.training = timeline, step, False
        self.saving = self.durable = step
        self.republish = True
