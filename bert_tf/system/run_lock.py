"""One run at a time: a lock file beside what a run writes, which says whose it is.

A run that finds the lock of a living process is refused; the lock of a dead one is taken over. On one machine the
system says which it is: by process number and start time, since numbers are used again. The owner on another machine
renews its lock every few seconds, and is dead when it has not for `LEASE_SECONDS` by the clock of the one that waits.
The owner, and its worker processes, read the lock before each write: a run that was stopped, and whose lock was taken
over meanwhile, ends.

This holds on any file system of TensorFlow (gs://...), none of which has an operation that compares and replaces a
file. So it does not exclude a write that had begun when the lock was taken over, and of two runs that start within the
same moment one may end only at its first write.
"""

import contextlib
import dataclasses
import json
import os
import posixpath
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence

from absl import logging

from bert_tf.system import atomic, local_files
from bert_tf.system.checks import is_remote
from bert_tf.system.messages import visible
from bert_tf.system.text_files import parse_json

LEASE_SECONDS = 60.0
_RENEW_SECONDS = 15.0
_POLL_SECONDS = 1.0
_MOST_BYTES = 2**16  # of a lock file, which is damaged if it has more
_SETTLE_SECONDS = 0.05  # of two that start at once, the later one's lock is there after this time


class LockedError(OSError):
    """Another run owns the place, or has taken it over; the message names both."""


@dataclasses.dataclass(frozen=True)
class Owner:
    """Content of a lock file.

    Attributes:
      token: 32 hexadecimal digits, drawn for this run; empty for a damaged lock.
      machine: whose processes can be seen from each other. process_start: of the process, in units of the system; None:
        unknown.
      started: date and time for messages. renewals: how often it was renewed.
    """

    token: str
    host: str = "an unknown host"
    machine: str = ""
    pid: int = 0
    process_start: int | None = None
    started: str = "at an unknown time"
    renewals: int = 0

    def __str__(self) -> str:
        return visible(f"process {self.pid} on {self.host:.100} (started {self.started:.100})")


@dataclasses.dataclass(frozen=True)
class _Claim:
    """What an owner, and the processes that it starts, check before a file is written.

    Attributes:
      path: of the lock file. named: the flag and its value. writes: beginnings of paths that the owner alone may write.
      token: the owner's.
    """

    path: str
    named: str
    writes: tuple[str, ...]
    token: str

    def holds(self) -> bool:
        """Whether the lock is still the owner's."""
        found = read_owner(self.path)
        return found is not None and found.token == self.token

    def check(self, path: str) -> None:
        """Checks before a file is written that the run still owns its place.

        Raises:
          LockedError: another run has taken it over.
        """
        if not _absolute(path).startswith(self.writes) or self.holds():
            return
        other = read_owner(self.path)
        raise LockedError(
            f"{self.named}: this run has lost {self.path}, {f'taken over by {other}' if other else 'which is gone'}: "
            "it ends here and writes nothing more."
        )


class Lock:
    """A lock that this process owns.

    Attributes:
      owner: this run. predecessor: the dead run that had it before; None if it was free.
    """

    def __init__(self, path: str, named: str, writes: Sequence[str]):
        self.owner, self.predecessor = _this_process(), None
        self._claim = _Claim(path, named, tuple(map(_absolute, writes)), self.owner.token)
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
          LockedError: a living run has it. tf.errors.OpError: it can't be written.
        """
        claim = self._claim
        self.predecessor = _dead_owner(claim.path, claim.named)
        self._write()
        time.sleep(_SETTLE_SECONDS)
        claim.check(claim.path)
        if self.predecessor:
            logging.info("%s: taken over from %s, which has ended.", claim.named, self.predecessor)
        atomic.guards.append(claim.check)
        self._renewing.start()

    def release(self) -> None:
        """Gives the lock back, unless another run has taken it over."""
        self._ended.set()
        self._renewing.join()
        atomic.guards.remove(self._claim.check)
        if self._claim.holds():
            import tensorflow as tf

            tf.io.gfile.remove(self._claim.path)

    def _write(self) -> None:
        atomic.write_text_file(self._claim.path, json.dumps(dataclasses.asdict(self.owner)) + "\n")

    def _renew(self) -> None:
        import tensorflow as tf

        while not self._ended.wait(_RENEW_SECONDS):
            try:
                if not self._claim.holds():
                    return
                self.owner = dataclasses.replace(self.owner, renewals=self.owner.renewals + 1)
                self._write()
            except (OSError, tf.errors.OpError) as error:
                logging.warning("%s could not be renewed: %s", self._claim.path, error)


@contextlib.contextmanager
def held(path: str, named: str, writes: Sequence[str]) -> Iterator[Lock]:
    """Owns a lock file for the duration of the context; its folder is made, and removed if it is left empty.

    Args:
      named: the flag and its value, for messages.
      writes: what the paths begin with that the owner alone may write; `atomic.check_may_write` checks them.

    Raises:
      LockedError: a living run has it. tf.errors.OpError: it can't be written.
    """
    import tensorflow as tf

    folder = posixpath.dirname(path) or "."
    is_new = not tf.io.gfile.isdir(folder)
    tf.io.gfile.makedirs(folder)
    try:
        lock = Lock(path, named, [path, *writes])
        lock.acquire()
        try:
            yield lock
        finally:
            lock.release()
    finally:
        if is_new and tf.io.gfile.isdir(folder) and not tf.io.gfile.listdir(folder):
            tf.io.gfile.rmtree(folder)


def check_free(path: str, named: str) -> None:
    """Refuses at once a place that a living process of this machine owns; `held` does it for good.

    Raises:
      LockedError: names the process.
    """
    owner = read_owner(path)
    if owner and _is_alive(owner):
        raise _in_use(named, path, owner)


def read_owner(path: str) -> Owner | None:
    """Whose lock it is; None if there is none. A damaged file, or one of another program, has an unknown owner.

    Raises:
      OSError: it is no file. tf.errors.OpError: it can't be read.
    """
    import tensorflow as tf

    if not is_remote(path) and os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"{path} is not a file, so it can't be the lock of a run: move it away.")
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read(_MOST_BYTES)
    except tf.errors.NotFoundError:
        return None
    try:
        values = parse_json(content.decode(), path)
        values.pop("scratch", None)  # of earlier versions
        owner = Owner(**values)
    except (AttributeError, ValueError, TypeError):
        return Owner(token="")
    return owner if _is_sound(owner) else Owner(token="")


def _is_sound(owner: Owner) -> bool:
    """Whether the values from a lock file are of the right kinds, and such as a run has."""
    kinds = {field.name: field.type for field in dataclasses.fields(Owner)}
    fits = all(isinstance(value, kinds[name]) and value is not True for name, value in vars(owner).items())
    # As process numbers 0 and -1 stand for many processes.
    return fits and re.fullmatch(r"[0-9a-f]{32}", owner.token) is not None and 0 < owner.pid < 2**31


def _dead_owner(path: str, named: str) -> Owner | None:
    """The dead owner of a lock, or None if it is free; waits where only time can show it.

    Raises:
      LockedError: the owner lives.
    """
    owner = read_owner(path)
    if owner is None:
        return None
    alive = _is_alive(owner)
    if alive is None:
        logging.warning("%s: %s says %s; waiting %.0f s for a sign of life.", named, path, owner, LEASE_SECONDS)
        end = time.monotonic() + LEASE_SECONDS
        while (found := read_owner(path)) == owner and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        if found is None:
            return None
        alive, owner = found != owner, found
    if alive:
        raise _in_use(named, path, owner)
    return owner


def _in_use(named: str, path: str, owner: Owner) -> LockedError:
    return LockedError(
        f"{named} is in use by {owner}, as {path} says: wait for the end of that run, end it, or choose another place."
    )


def _this_process() -> Owner:
    started = time.strftime("%Y-%m-%d %H:%M:%S %z")
    pid = os.getpid()
    return Owner(uuid.uuid4().hex, socket.gethostname(), local_files.machine(), pid, local_files.start_of(pid), started)


def _is_alive(owner: Owner) -> bool | None:
    """Whether the owner's process lives; None where that can't be seen: on another machine."""
    return local_files.is_alive(owner.pid, owner.process_start) if owner.machine == local_files.machine() else None


def _absolute(path: str) -> str:
    return path if is_remote(path) else os.path.abspath(path) + ("/" if path.endswith("/") else "")
