"""What is slow only the first time says so, once it takes long."""

import contextlib
import threading
from collections.abc import Iterator

from absl import logging

SECONDS = 2.0


@contextlib.contextmanager
def announced(message: str, seconds: float = SECONDS) -> Iterator[None]:
    """Logs a message as soon as the context has taken so many seconds; nothing if it ends before."""
    timer = threading.Timer(seconds, logging.info, ["%s", message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
