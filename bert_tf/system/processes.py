"""Whether another process of this machine still lives: by its number and its start, since numbers are used again."""

import os
import pathlib
import re
import socket
import uuid


def machine() -> str:
    """What is the same for two processes if, and only if, each can see whether the other lives."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # containers have their own process numbers
    except OSError:
        return f"{socket.gethostname()} {uuid.getnode()}"


def start_of(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; None if there is none, or the system doesn't say."""
    return _state_and_start(pid)[1]


def is_alive(pid: int, start: int | None) -> bool:
    """Whether the process with this number that started then lives. start: None if it is unknown."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    state, found = _state_and_start(pid)
    return state not in ("Z", "X") and (None in (found, start) or found == start)


def _state_and_start(pid: int) -> tuple[str | None, int | None]:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None, None
    fields = re.split(r"\s+", text.rpartition(")")[2].strip())  # a program's name may contain anything
    return fields[0], int(fields[19])
