"""Processes that end with whoever started them, even where that one is killed, and leave nothing behind.

Invariants:
- the command and all its descendants of its process group are told to end once the pipe at the supervisor's standard
  input closes, and are killed once the command has ended, `grace_s` seconds later at most;
- they are told to end too once the command itself ends, whose exit code is the supervisor's unless the pipe is closed;
- their private directory, if they have one, goes with them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

# $0 is the private directory, $1 the grace in tenths of a second, the rest the command. A process group's id stays its
# own while the watcher is in it, so that no stranger is ever signalled.
_SUPERVISE = """
exec 3<&0
tenths=$1
shift
"$@" 3<&- </dev/null &
command=$!
trap '' TERM
(
  read -r _ <&3
  kill -TERM 0
  while [ "$tenths" -gt 0 ] && kill -0 "$command"; do sleep 0.1; tenths=$((tenths - 1)); done
  rm -rf -- "$0"
  kill -KILL 0
) >/dev/null 2>&1 &
wait "$command"
status=$?
rm -rf -- "$0"
kill -TERM 0
exit "$status"
"""
# The kernel's limit on the path of a unix socket: 108 bytes on Linux, 104 on macOS, one of them a zero.
_SOCKET_PATH_BYTES = 103


def leashed(command: Sequence[str], grace_s: float, directory: Path | None = None) -> list[str]:
    """Return what runs `command` under a supervisor, which removes `directory`, where one is given, at the end.

    Start it with a pipe as standard input and in a session of its own; its process group is then the command's.
    """
    return ["/bin/sh", "-c", _SUPERVISE, str(directory or ""), str(round(grace_s * 10)), *command]


def private_directory() -> Path:
    """Make a directory of mode 0700 whose path leaves room for a socket named with one letter."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) + len("/asyncopd-12345678/s") > _SOCKET_PATH_BYTES:
        base = "/tmp"
    return Path(tempfile.mkdtemp(prefix="asyncopd-", dir=base))
