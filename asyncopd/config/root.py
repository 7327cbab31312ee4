"""The two configurations: training, and supervised fine-tuning."""

from __future__ import annotations

from pydantic import Field, model_validator

from asyncopd.config.engine import EngineSection
from asyncopd.config.environment import EnvironmentSection
from asyncopd.config.evaluation import EvaluationSection
from asyncopd.config.learner import LearnerSection
from asyncopd.config.model import ModelSection
from asyncopd.config.objective import ObjectiveSection
from asyncopd.config.rollout import RolloutSection
from asyncopd.config.run import RunSection
from asyncopd.config.runtime import RuntimeSection
from asyncopd.config.scheduler import SchedulerSection
from asyncopd.config.scoring import ScoringSection
from asyncopd.config.section import Section
from asyncopd.config.sft import DemonstrationsSection, InitialiseSection, StopSection
from asyncopd.config.teacher import TeacherSection
from asyncopd.config.weights import WeightsSection


class TrainConfig(Section):
    """Everything `asyncopd train` is told."""

    run: RunSection = RunSection()
    student: ModelSection
    teacher: TeacherSection
    environment: EnvironmentSection
    engine: EngineSection = EngineSection()
    rollout: RolloutSection = RolloutSection()
    scoring: ScoringSection = ScoringSection()
    scheduler: SchedulerSection = SchedulerSection()
    objective: ObjectiveSection = ObjectiveSection()
    learner: LearnerSection = LearnerSection()
    weights: WeightsSection = WeightsSection()
    evaluation: EvaluationSection = EvaluationSection()
    runtime: RuntimeSection = RuntimeSection()

    @model_validator(mode="after")
    def _check_adapter(self) -> TrainConfig:
        if self.weights.lora == "adapter" and self.learner.lora is None:
            raise ValueError("weights.lora is 'adapter', and none is trained; set learner.lora, for example its rank")
        return self


class SftConfig(Section):
    """Everything `asyncopd sft` is told."""

    run: RunSection = RunSection()
    student: ModelSection
    initialise: InitialiseSection | None = None
    environment: EnvironmentSection
    demonstrations: DemonstrationsSection = DemonstrationsSection()
    batch_size: int = Field(48, ge=1)
    """Episodes of a step."""

    stop: StopSection | None = None
    engine: EngineSection = EngineSection(use="torch")
    rollout: RolloutSection = RolloutSection()
    learner: LearnerSection = LearnerSection()
    evaluation: EvaluationSection = EvaluationSection(teacher=False)
    runtime: RuntimeSection = RuntimeSection()
