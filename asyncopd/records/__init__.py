"""Frozen, typed records: the nouns every other package shares."""

from asyncopd.records.attempt import AttemptState, TokenCounts, TrajectoryMeta
from asyncopd.records.batch import AttemptReport, Batch, Sample, StepReport
from asyncopd.records.codec import decode, encode
from asyncopd.records.draws import Draws
from asyncopd.records.messages import Message, ToolCall, ToolSpec
from asyncopd.records.scores import ScoreRequest, Scores, Support, SupportKind
from asyncopd.records.segment import LossMask, Segment
from asyncopd.records.task import Task
from asyncopd.records.trajectory import Outcome, Timings, Trajectory, Turn
from asyncopd.records.version import Version

__all__ = [
    "AttemptReport",
    "AttemptState",
    "Batch",
    "Draws",
    "LossMask",
    "Message",
    "Outcome",
    "Sample",
    "ScoreRequest",
    "Scores",
    "Segment",
    "StepReport",
    "Support",
    "SupportKind",
    "Task",
    "Timings",
    "TokenCounts",
    "ToolCall",
    "ToolSpec",
    "Trajectory",
    "TrajectoryMeta",
    "Turn",
    "Version",
    "decode",
    "encode",
]
