"""One run at a time: a lock file beside what a run writes, which the system holds while the run lives (flock).

Another run is refused at once, and a killed one leaves the lock free. A remote folder (gs://...) has no lock.
"""

import contextlib
import os
from collections.abc import Iterator

from bert_tf.system import storage
from bert_tf.system.storage import is_remote


class LockedError(OSError):
    """Another run holds the lock; the message names the flag and the file."""


@contextlib.contextmanager
def held(path: str, named: str) -> Iterator[None]:
    """Holds a lock file; its folder is made, and removed if it is left empty. named: the flag and its value."""
    if is_remote(path):
        yield
        return
    import filelock  # 60 ms, for what --help does not need

    folder = os.path.dirname(path) or "."
    is_new = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise LockedError(
                f"{named} is in use by another run, which holds {path}: wait for its end, end it, or choose another "
                "place."
            ) from None
        try:
            yield
        finally:
            os.remove(path)  # while it is held: a run that has opened it by now sees that it is gone
            lock.release()
    finally:
        if is_new and not os.listdir(folder):
            os.rmdir(folder)


@contextlib.contextmanager
def file_held(output_file: str, *others: str) -> Iterator[None]:
    """`held` for the file of --output_file and others, after removing what a killed run left half-written of them."""
    folder, name = os.path.split(output_file)
    with held(os.path.join(folder, f".{name}.lock"), f"--output_file={output_file}"):
        storage.remove_temporary_files([output_file, *others])
        yield
