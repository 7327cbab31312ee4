"""Turns that are sampled only to compare an engine's log-probs with the learner's, once the learner rests.

Training compares them on tokens as new as the learner's weights. Where the learner is the slow side, there are such
tokens at the first step only, and they would say nothing of an update that went wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from asyncopd.records import Differences, GenerateRequest, Sampling, Segment, Version
from asyncopd.rollout.recorder import Recorder
from asyncopd.runtime.learner_process import LearnerProcess
from asyncopd.runtime.prepare import Prepared
from asyncopd.seams import Generator

_TURNS = 8
_TOKENS = 32


async def compare(
    prepared: Prepared, generator: Generator, engines: Iterable[str], learner: LearnerProcess, version: Version
) -> dict[str, Differences]:
    """Compare each of the `engines` behind `generator` with the learner, at `version`, which both have or will soon.

    Raises what `generate` raises.
    """
    found = {}
    for engine in engines:
        turns = [_turn(prepared, generator, engine, number, version) for number in range(_TURNS)]
        found[engine] = await learner.compare(await asyncio.gather(*turns))
    return found


async def _turn(prepared: Prepared, generator: Generator, engine: str, number: int, version: Version) -> Segment:
    rollout = prepared.config.rollout
    prompt = prepared.prompts[number % len(prepared.prompts)]
    identity = f"compare-{engine}-{version}-{number}"
    sampling = Sampling(temperature=rollout.temperature, max_tokens=_TOKENS, seed=number, stop_ids=())
    request = GenerateRequest(
        request_id=identity,
        trajectory_id=identity,
        prompt_ids=prompt,
        sampling=sampling,
        min_version=version,
        deadline=asyncio.get_running_loop().time() + rollout.generate_timeout_s,
        engine=engine,
    )
    recorder = Recorder(prompt)
    recorder.generated(await generator.generate(request), 0)
    (segment,) = recorder.segments()
    return segment
