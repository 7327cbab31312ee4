"""What a program in the sandbox may take."""

from __future__ import annotations

from pydantic import Field

from asyncopd.config.section import Section


class Limits(Section):
    """Limits of one run of a program and all that it starts."""

    wall_s: float = Field(6.0, gt=0, le=3600)
    """Seconds from start to end, less those for which it waited for a core that others had; never over three times
    as many."""

    cpu_s: int = Field(5, ge=1, le=3600)
    """Seconds of a core, of each process."""

    memory_mib: int = Field(256, ge=32)
    """Memory: resident of all processes together, and address space of each."""

    processes: int = Field(16, ge=1, le=1024)
    """Processes and threads alive at once."""

    files: int = Field(256, ge=1, le=100_000)
    """Files and directories."""

    disk_mib: int = Field(16, ge=1, le=4096)
    """Size of the box's files together, and of `/tmp`'s; both lie in memory."""

    output_kib: int = Field(64, ge=1, le=1 << 20)
    """What the program may write to standard output, and to standard error; it is ended where it writes more."""
