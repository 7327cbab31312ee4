"""The sandbox as its users see it: a box with files, in which programs run one after another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import TracebackType
from typing import Literal

from asyncopd.sandbox import launch
from asyncopd.sandbox.limits import Limits
from asyncopd.sandbox.process import carry_out
from asyncopd.sandbox.strength import admitted
from asyncopd.seams import DeadlineExceeded

MAIN = "main.py"
_NAME_BYTES, _DEPTH = 255, 16  # what file systems take in a name; folders that are gathered again
End = Literal["finished", "timeout", "memory", "processes", "files", "output"]


@dataclass(frozen=True)
class Result:
    """How a program ended: `ended` is `finished`, or the limit it passed; a negative `exit_code` is a signal's.

    An output that was cut at its limit ends with a note that says so.
    """

    stdout: str
    stderr: str
    exit_code: int
    ended: End
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it finished, with exit code 0."""
        return self.ended == "finished" and self.exit_code == 0


class Sandbox:
    """A box with files of its own, gone when it is left: `async with Sandbox() as box: await box.run("print(1)")`.

    `files` are those of the working directory, by relative path. They lie in this process's memory, and in the
    program's directory only while it runs, so a box that waits costs nothing else. Programs of one box run one
    after another, and find what those before them wrote; what they leave in `/tmp` is gone.
    """

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008 - immutable
        self.limits = limits
        self.files: dict[str, bytes] = {}
        self._turn = asyncio.Lock()
        self._strength: launch.Strength | None = None

    async def __aenter__(self) -> Sandbox:
        """Raises `UserError` if this machine's walls are weaker than what was asked for."""
        self._strength = await admitted()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._strength = None
        self.files.clear()

    async def run(
        self,
        program: str | Sequence[str],
        *,
        stdin: str | bytes = b"",
        files: Mapping[str, str | bytes] | None = None,
        deadline: float | None = None,
    ) -> Result:
        """Run Python code, which becomes the file `main.py`, or a command with its arguments; add `files` before.

        `deadline` is a time of the running loop's clock. Raises `DeadlineExceeded` after it, which a limit of the
        program's own never does, `ValueError` for a file outside the box or files larger than its disk, and
        `SandboxError` if the sandbox itself fails.
        """
        if self._strength is None:
            raise RuntimeError("the sandbox is not open; enter it with: async with Sandbox() as box")
        added = {_checked(name): _bytes(content) for name, content in (files or {}).items()}
        argv = program
        if isinstance(program, str):
            added[MAIN] = _bytes(program)
            argv = [launch.INTERPRETER, MAIN]
        if not argv or any("\0" in word for word in argv):
            raise ValueError("program: a command is at least one word, and words hold no zero bytes")
        size = sum(map(len, added.values()))
        if size > self.limits.disk_mib << 20:
            raise ValueError(f"files: {size:,} bytes; the box takes {self.limits.disk_mib} MiB, see limits.disk_mib")
        try:
            async with asyncio.timeout_at(deadline), self._turn:
                return await self._run(self._strength, argv, added, _bytes(stdin))
        except TimeoutError:
            raise DeadlineExceeded("the caller's deadline passed while a sandbox ran a program") from None

    async def _run(
        self, strength: launch.Strength, argv: Sequence[str], added: dict[str, bytes], stdin: bytes
    ) -> Result:
        job = launch.Job(argv, self.limits, _beside(self.files, added), added, stdin)
        header, (stdout, stderr, *kept) = await carry_out(strength, job)
        self.files = dict(zip(header["files"], kept, strict=True))
        return Result(
            stdout=self._text(stdout, header["cut"][0]),
            stderr=self._text(stderr, header["cut"][1]),
            exit_code=header["exit_code"],
            ended="memory" if header["exit_code"] == 1 and _says_memory(stderr) else header["ended"],
            seconds=header["seconds"],
        )

    def _text(self, output: bytes, cut: bool) -> str:
        note = f"\n[cut after {self.limits.output_kib} KiB]" if cut else ""
        return output.decode("utf-8", "replace") + note


def _says_memory(stderr: bytes) -> bool:
    """Return whether Python ended because it was refused memory, which it survives to tell."""
    return stderr.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError")


def _bytes(content: str | bytes) -> bytes:
    return content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content


def _checked(name: str) -> str:
    path = PurePosixPath(name)
    parts = path.parts
    short = all(len(os.fsencode(part)) <= _NAME_BYTES for part in parts) and len(parts) <= _DEPTH
    if path.is_absolute() or ".." in parts or not parts or "\0" in name or not short:
        raise ValueError(f"files: {name!r} is no relative path that fits inside the box")
    return str(path)


def _beside(kept: Mapping[str, bytes], added: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the kept files that can lie beside the added: none has a folder's name, nor lies in a file's."""
    folders = {str(folder) for name in added for folder in PurePosixPath(name).parents}
    return {
        name: content
        for name, content in kept.items()
        if name not in folders and not any(str(folder) in added for folder in PurePosixPath(name).parents)
    }
