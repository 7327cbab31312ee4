"""Frozen, typed records: the nouns every other package shares."""

from asyncopd.records.attempt import AttemptState, TokenCounts, TrajectoryMeta
from asyncopd.records.batch import AttemptReport, Batch, Sample, StepReport
from asyncopd.records.codec import decode, encode
from asyncopd.records.differences import Differences
from asyncopd.records.draws import Draws
from asyncopd.records.episode import Demonstration, Observation, Step, ToolResult
from asyncopd.records.generation import (
    NO_DRAWS,
    DrawSpec,
    EngineCapabilities,
    GenerateRequest,
    Generation,
    Sampling,
)
from asyncopd.records.manifest import Manifest, PublishReport, SendOrder, TensorEntry, WeightFile
from asyncopd.records.messages import Message, ToolCall, ToolSpec
from asyncopd.records.scores import ScoreRequest, Scores, Support, SupportKind, tail_of
from asyncopd.records.segment import LossMask, Segment
from asyncopd.records.task import Task
from asyncopd.records.trajectory import Outcome, Timings, Trajectory, Turn
from asyncopd.records.version import Version

__all__ = [
    "NO_DRAWS",
    "AttemptReport",
    "AttemptState",
    "Batch",
    "Demonstration",
    "Differences",
    "DrawSpec",
    "Draws",
    "EngineCapabilities",
    "GenerateRequest",
    "Generation",
    "LossMask",
    "Manifest",
    "Message",
    "Observation",
    "Outcome",
    "PublishReport",
    "Sample",
    "Sampling",
    "ScoreRequest",
    "Scores",
    "Segment",
    "SendOrder",
    "Step",
    "StepReport",
    "Support",
    "SupportKind",
    "Task",
    "TensorEntry",
    "Timings",
    "TokenCounts",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "Trajectory",
    "TrajectoryMeta",
    "Turn",
    "Version",
    "WeightFile",
    "decode",
    "encode",
    "tail_of",
]
