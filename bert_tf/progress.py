"""Progress bars: tqdm's, drawn as often as whoever reads them needs."""

import sys
from collections.abc import Iterable

from tqdm import tqdm

_SECONDS_BETWEEN_UPDATES = 0.5
_SECONDS_BETWEEN_LINES = 30.0


def progress_bar(iterable: Iterable | None = None, **options) -> tqdm:
    """A tqdm bar with rate and remaining time.

    Into a file or a pipe, where each update is a line that stays, one comes only every half minute.

    Args:
      iterable, options: as for `tqdm.tqdm` (total, desc, unit, disable, ...).
    """
    interval = _SECONDS_BETWEEN_UPDATES if sys.stderr.isatty() else _SECONDS_BETWEEN_LINES
    return tqdm(iterable, **{"mininterval": interval, "maxinterval": interval, "dynamic_ncols": True, **options})
