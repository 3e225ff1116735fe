"""How far something is: bars by tqdm, redrawn less often in files and pipes, and what is slow only the first time."""

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator

from absl import logging
from tqdm import tqdm

SLOW_SECONDS = 2.0  # after which something that is slow only the first time says so

_SECONDS_BETWEEN_UPDATES = 0.5
_SECONDS_BETWEEN_LINES = 30.0


def progress_bar(iterable: Iterable | None = None, **options) -> tqdm:
    """A tqdm bar with rate and remaining time.

    In a file or a pipe, where each update is a new line, it is drawn only every half minute.

    Args:
      iterable, options: as for `tqdm.tqdm` (total, desc, unit, disable, ...).
    """
    interval = _SECONDS_BETWEEN_UPDATES if sys.stderr.isatty() else _SECONDS_BETWEEN_LINES
    return tqdm(iterable, **{"mininterval": interval, "maxinterval": interval, "dynamic_ncols": True, **options})


def batches_with_progress(batches: Iterable, desc: str) -> Iterator:
    """The batches, with a progress bar if processing them takes more than two seconds.

    Args:
      batches: a list or a tf.data.Dataset, whose length is shown if it is known.
    """
    cardinality = getattr(batches, "cardinality", None)
    total = int(cardinality()) if cardinality else len(batches) if hasattr(batches, "__len__") else -1
    with progress_bar(total=total if total >= 0 else None, desc=desc, unit="batch", leave=False, delay=2) as bar:
        for number, batch in enumerate(batches):
            yield batch
            if number:
                bar.update()
            else:
                start_clock(bar, 1)


def start_clock(bar: tqdm, done: int) -> None:
    """Sets a bar to what is done, and measures its rate and remaining time from now on.

    The first call of a graph includes its compilation, so it says nothing about the following ones.
    """
    bar.n = bar.last_print_n = bar.initial = done
    bar.unpause()


@contextlib.contextmanager
def announced(message: str, seconds: float = SLOW_SECONDS) -> Iterator[None]:
    """Logs a message as soon as the context has taken so many seconds; nothing if it ends before."""
    timer = threading.Timer(seconds, logging.info, ["%s", message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
