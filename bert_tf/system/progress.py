"""Progress bars by tqdm, redrawn less often in files and pipes."""

import sys
from collections.abc import Iterable, Iterator

from tqdm import tqdm

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
