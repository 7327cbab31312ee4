"""Tasks: every choice of every family's parameters is one, and its own hash says of which split it is."""

from __future__ import annotations

import hashlib
import json
import random

from asyncopd.environment.splits import Split, in_split
from asyncopd.records import Task
from asyncopd_envs.python_code.families import FAMILIES
from asyncopd_envs.python_code.options import Options


def generate(split: str, options: Options) -> list[Task]:
    """Return the tasks of `train` or `test`, families in turn; a longer list begins with a shorter one.

    Raises `ValueError` for another split, or more tasks than there are.
    """
    if split not in ("train", "test"):
        raise ValueError(f"python has no split {split!r}; it has train and test")
    side: Split = "test" if split == "test" else "train"
    queues = []
    for family in FAMILIES.values():
        if options.difficulty not in ("mixed", family.level):
            continue
        tasks = []
        for parameters in family.parameters():
            written = json.dumps(parameters)
            key = f"{family.name} {written}"
            digest = hashlib.sha256(key.encode()).hexdigest()[:12]
            data = {"family": family.name, "parameters": json.loads(written)}
            if in_split(key, side):
                tasks.append(Task(id=f"{family.name}-{digest}", domain=family.name, data=data))
        random.Random(family.name).shuffle(tasks)
        queues.append(tasks)
    longest = max(map(len, queues))
    tasks = [queue[index] for index in range(longest) for queue in queues if index < len(queue)]
    wanted = options.test_tasks if split == "test" else options.train_tasks
    if wanted is not None and wanted > len(tasks):
        raise ValueError(
            f"{split}_tasks: {wanted} is more than the {len(tasks)} of difficulty {options.difficulty!r}; ask for less"
        )
    return tasks[:wanted]
