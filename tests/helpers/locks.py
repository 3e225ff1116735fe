"""Lock files as other runs leave them."""

import contextlib
import fcntl
import json
from collections.abc import Iterator

from bert_tf.system import run_lock


def lock_content(**values) -> str:
    """The content of the lock of a run of this process, with some values changed."""
    return json.dumps({**json.loads(run_lock._Claim("", "", ()).content()), **values})


def leave_lock(path, **values) -> None:
    """Writes the lock of another run."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(lock_content(**values))


@contextlib.contextmanager
def living(path) -> Iterator[None]:
    """The owner of a lock file lives, for the system, during the context."""
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
