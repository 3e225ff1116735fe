"""One run at a time: a lock file beside what a run writes, which says whose it is.

On a local path the system holds the lock (flock) while the run lives: another run is refused at once, and a killed one
leaves it free. A remote file (gs://...) can't be locked: its owner renews it every few seconds, and is taken for dead
when it has not for `LEASE_SECONDS` by the clock of the one that waits.

The owner, and its worker processes, read the file before each write: a run whose lock is gone, or was taken over while
it was stopped, ends. A write that had begun by then may still be completed; and of two runs that begin a lease within
the same moment one may end only at its first write.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import posixpath
import socket
import stat
import threading
import time
import uuid
from collections.abc import Iterator, Sequence

from absl import logging

from bert_tf.system import storage
from bert_tf.system.messages import visible
from bert_tf.system.storage import is_remote
from bert_tf.system.text_files import parse_json

LEASE_SECONDS = 60.0
_RENEW_SECONDS = 15.0
_POLL_SECONDS = 1.0
_SETTLE_SECONDS = 0.05  # of two that start at once, the later one's lock is there after this time
_MOST_BYTES = 2**16  # that are read of a lock file


class LockedError(OSError):
    """Another run owns the place, or has taken it over; the message names both."""


@dataclasses.dataclass(frozen=True)
class _Claim:
    """What an owner, and the processes that it starts, check before a file is written.

    Attributes:
      path: of the lock file. named: the flag and its value. writes: beginnings of paths that the owner alone may write.
      token: drawn for this run.
    """

    path: str
    named: str
    writes: tuple[str, ...]
    token: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    def holds(self) -> bool:
        """Whether the lock is still the owner's."""
        return _read(self.path).get("token") == self.token

    def check(self, path: str) -> None:
        """Checks before a file is written that the run still owns its place.

        Raises:
          LockedError: another run has taken it over.
        """
        if _absolute(path).startswith(self.writes) and not self.holds():
            lost = f"taken over by {_owner(self.path)}" if _read(self.path) else "which is gone"
            raise LockedError(
                f"{self.named}: this run has lost {self.path}, {lost}: it ends here and writes nothing more."
            )

    def content(self, renewals: int = 0) -> str:
        """The content of the lock file."""
        started = time.strftime("%Y-%m-%d %H:%M:%S %z")
        owner = {"token": self.token, "pid": os.getpid(), "host": socket.gethostname(), "started": started}
        return json.dumps({**owner, "renewals": renewals}) + "\n"

    def in_use(self) -> LockedError:
        return LockedError(
            f"{self.named} is in use by {_owner(self.path)}, as {self.path} says: wait for the end of that run, end "
            "it, or choose another place."
        )


@contextlib.contextmanager
def held(path: str, named: str, writes: Sequence[str]) -> Iterator[None]:
    """Owns a lock file for the duration of the context; its folder is made, and removed if it is left empty.

    Args:
      named: the flag and its value, for messages.
      writes: what the paths begin with that the owner alone may write; `storage.check_may_write` checks them.

    Raises:
      LockedError: a living run has it. OSError, tf.errors.OpError: it can't be written, or is no file.
    """
    import tensorflow as tf

    folder = posixpath.dirname(path) or "."
    is_new = not tf.io.gfile.isdir(folder)
    tf.io.gfile.makedirs(folder)
    claim = _Claim(path, named, tuple(map(_absolute, (path, *writes))))
    try:
        with _leased(claim) if is_remote(path) else _locked(claim):
            storage.guards.append(claim.check)
            try:
                yield
            finally:
                storage.guards.remove(claim.check)
                if claim.holds():
                    tf.io.gfile.remove(path)
    finally:
        if is_new and tf.io.gfile.isdir(folder) and not tf.io.gfile.listdir(folder):
            tf.io.gfile.rmtree(folder)


def lock_of(output_file: str) -> str:
    """The lock file beside a file."""
    folder, name = os.path.split(output_file)
    return os.path.join(folder, f".{name}.lock")


@contextlib.contextmanager
def file_held(output_file: str, *others: str) -> Iterator[None]:
    """`held` for the file of --output_file and others, after removing what a killed run left half-written of them."""
    paths = [output_file, *others]
    with held(lock_of(output_file), f"--output_file={output_file}", paths):
        storage.remove_temporary_files([*paths, lock_of(output_file)])
        yield


def check_free(path: str, named: str) -> None:
    """Refuses at once a local place that another process owns; `held` does it for good.

    Raises:
      LockedError: names the process. OSError: it is no file.
    """
    if not is_remote(path) and os.path.lexists(path):
        os.close(_lock(_Claim(path, named, ())))


@contextlib.contextmanager
def _locked(claim: _Claim) -> Iterator[None]:
    descriptor = _lock(claim)
    try:
        os.write(descriptor, claim.content().encode())
        yield
    finally:
        os.close(descriptor)


def _lock(claim: _Claim) -> int:
    """The descriptor of an empty file, locked; that of a killed run is replaced, not written: it may be linked."""
    path = claim.path
    while True:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise OSError(f"{path} is not a file, so it can't be the lock of a run: move it away.")
        flags, is_writable = os.O_NOFOLLOW | os.O_NONBLOCK, True
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
        except PermissionError:
            descriptor, is_writable = os.open(path, os.O_RDONLY | flags), False  # it is another user's
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                os.close(descriptor)
                raise claim.in_use() from None
            logging.warning("%s: this file system has no locks: see to it that no other run uses it.", claim.named)
        status, is_there = os.fstat(descriptor), False
        with contextlib.suppress(FileNotFoundError):
            is_there = os.path.samestat(status, os.stat(path))
        if is_there and is_writable and not status.st_size:
            return descriptor
        if is_there:
            os.remove(path)
        os.close(descriptor)


@contextlib.contextmanager
def _leased(claim: _Claim) -> Iterator[None]:
    _wait_for_death(claim)
    storage.write_text_file(claim.path, claim.content())
    time.sleep(_SETTLE_SECONDS)
    claim.check(claim.path)
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(claim, ended), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()


def _wait_for_death(claim: _Claim) -> None:
    """Waits until the owner of a lease, if there is one, has given no sign of life for the time of a lease.

    Raises:
      LockedError: it lives.
    """
    owner, end = _read(claim.path), time.monotonic() + LEASE_SECONDS
    if owner:
        said = f"{claim.path} says {_owner(claim.path)}"
        logging.warning(f"{claim.named}: {said}; waiting {LEASE_SECONDS:.0f} s for a sign of life.")
    while owner and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        if (found := _read(claim.path)) != owner:
            if found:
                raise claim.in_use()
            return


def _renew(claim: _Claim, ended: threading.Event) -> None:
    import tensorflow as tf

    renewals = 0
    while not ended.wait(_RENEW_SECONDS):
        try:
            if not claim.holds():
                return
            renewals += 1
            storage.write_text_file(claim.path, claim.content(renewals))
        except (OSError, tf.errors.OpError) as error:
            logging.warning("%s could not be renewed: %s", claim.path, error)


def _read(path: str) -> dict:
    """What a lock file says; empty if there is none, or it is damaged."""
    absent, opened = FileNotFoundError, open
    if is_remote(path):
        import tensorflow as tf

        absent, opened = tf.errors.NotFoundError, tf.io.gfile.GFile
    try:
        with opened(path, "rb") as file:
            content = parse_json(file.read(_MOST_BYTES).decode(), path)
    except (absent, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _owner(path: str) -> str:
    """The owner of a lock file, by what that says, for messages."""
    pid, host, started = (str(_read(path).get(name, "unknown"))[:100] for name in ("pid", "host", "started"))
    return visible(f"process {pid} on {host} (started {started})")


def _absolute(path: str) -> str:
    return path if is_remote(path) else os.path.abspath(path) + ("/" if path.endswith("/") else "")
