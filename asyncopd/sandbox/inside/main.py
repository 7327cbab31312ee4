"""The process on the far side: reads one job, runs one program, answers once."""

from __future__ import annotations

import json
import os
from typing import Any

from . import kernel, wire
from .directory import Directory
from .program import NotStarted, start
from .tree import Tree
from .walls import enclose
from .warden import Output, Warden


def main() -> None:
    """Serve the job at standard input and answer at standard output; a wall that cannot be built is the answer then."""
    with open(0, "rb", closefd=False) as file:
        (length,) = wire.LENGTH.unpack(file.read(wire.LENGTH.size))
        job = json.loads(file.read(length))
        stdin, *contents = wire.split(job, file.read(sum(job["sizes"])))
    try:
        answer = _run(job, stdin, dict(zip(job["files"], contents, strict=True)))
    except (OSError, NotStarted) as error:
        answer = wire.pack({"fault": str(error)}, [])
    with open(1, "wb", closefd=False) as file:
        file.write(answer)


def _run(job: dict[str, Any], stdin: bytes, files: dict[str, bytes]) -> bytes:
    if job["strength"] == "namespaces":
        enclose(job)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # the program may not look into this process, although it has its user
    tree = Tree()
    directory = Directory(walled=job["strength"] != "rlimits", user=job["user"])
    try:
        directory.lay_out(files)
        os.chdir(directory.path)
        job["environment"] |= {"HOME": directory.path, "TMPDIR": directory.scratch}
        return _guarded(job, stdin, tree, directory)
    finally:
        os.chdir("/")
        directory.remove()


def _guarded(job: dict[str, Any], stdin: bytes, tree: Tree, directory: Directory) -> bytes:
    limits = job["limits"]
    given = os.memfd_create("stdin")
    with open(given, "wb", closefd=False) as file:
        file.write(stdin)
    os.lseek(given, 0, os.SEEK_SET)
    outputs, ends = [], []
    for _ in range(2):
        reader, writer = os.pipe()
        outputs.append(Output(reader, limits["output"]))
        ends.append(writer)
    child = start(job, (given, *ends), tree.tasks_of_user() if job["user"] is None else 0)
    for descriptor in (given, *ends):
        os.close(descriptor)
    why, code, seconds = Warden(child, outputs, tree, directory, limits).guard()
    kept = directory.gather(*job["kept"])
    header = {
        "ended": why,
        "exit_code": code,
        "seconds": seconds,
        "cut": [output.cut for output in outputs],
        "files": list(kept),
    }
    return wire.pack(header, [*(b"".join(output.parts) for output in outputs), *kept.values()])
