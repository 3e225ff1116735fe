"""Building blocks of messages, and bars by tqdm, which are redrawn less often in files and pipes."""

import contextlib
import difflib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Collection, Generator, Hashable, Iterable, Iterator, Sequence
from logging import getLogger
from typing import Any

from absl import logging
from tqdm import tqdm

_NAMES_SHOWN = 8
# Control characters, line separators, marks that turn the direction of text, and halves of a character.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def abbreviated_list(names: Sequence[str], separator: str = ", ") -> str:
    """The first few names of a list, and how many more there are."""
    shown = separator.join(names[:_NAMES_SHOWN])
    return shown + (f"{separator}and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")


def escape_control_characters(text: str) -> str:
    """Characters that could steer a terminal as in JSON: \\u001b for an escape."""
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def did_you_mean(name: str, known: Collection[str]) -> str:
    """The end of a message about an unknown name: the known name with nearly its spelling, if there is one."""
    folded = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(name.casefold(), folded, 1)
    return f"; did you mean {folded[near[0]]!r}?" if near else ""


_logged_topics: set[Hashable] = set()


def is_first(*topic: Hashable) -> bool:
    """Whether a message on a topic is the first, where one is enough; False within `without_logging`."""
    if getLogger("absl").disabled or topic in _logged_topics:
        return False
    _logged_topics.add(topic)
    return True


def warn_once(topic: Hashable, message: str, *args) -> None:
    if is_first(topic, message):
        logging.warning(message + " (Logged once.)", *args)


@contextlib.contextmanager
def without_logging(name: str = "absl") -> Generator[None]:
    """Silences a logger, for a check of files that will be read, and reported, again."""
    logger = getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextlib.contextmanager
def naming_flag(flag: str) -> Generator[None]:
    """Prefixes an error about a file with the flag that named the file."""
    # If TensorFlow is not imported yet, the error can't be one of its own.
    errors = getattr(sys.modules.get("tensorflow"), "errors", None)
    not_found, failed = ((errors.NotFoundError,), (errors.OpError,)) if errors else ((), ())
    try:
        yield
    except (FileNotFoundError, *not_found) as error:
        raise FileNotFoundError(f"{flag}: {getattr(error, 'message', error)}") from error
    except (OSError, *failed) as error:
        raise OSError(f"{flag}: {getattr(error, 'message', error)}") from error
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from error


# --- progress ---------------------------------------------------------------------------------------------------------

SLOW_SECONDS = 2.0  # after which something that is slow only the first time says so

_SECONDS_BETWEEN_UPDATES = 0.5
_SECONDS_BETWEEN_LINES = 30.0


def progress_bar(iterable: Iterable | None = None, **options: Any) -> tqdm:
    """A tqdm bar. In a file or a pipe, where each update is a new line, it is drawn only every half minute."""
    interval = _SECONDS_BETWEEN_UPDATES if sys.stderr.isatty() else _SECONDS_BETWEEN_LINES
    options = {"mininterval": interval, "maxinterval": interval, "dynamic_ncols": True, **options}
    return tqdm(iterable, **options)


def batches_with_progress(batches: Iterable, desc: str) -> Iterator:
    """A list's or a dataset's batches, with a progress bar if processing them takes more than two seconds."""
    with progress_bar(batches, desc=desc, unit="batch", leave=False, delay=2) as bar:  # which asks for their number
        for number, batch in enumerate(batches):
            yield batch
            if number:
                bar.update()
            else:
                start_clock(bar, 1)


def start_clock(bar: tqdm, done: int) -> None:
    """Measures a bar's rate from now on: the first call of a graph includes its compilation."""
    bar.n = bar.last_print_n = bar.initial = done
    bar.unpause()


@contextlib.contextmanager
def announced(message: str, seconds: float = SLOW_SECONDS) -> Generator[None]:
    """Logs a message as soon as the context has taken so many seconds; nothing if it ends before."""
    timer = threading.Timer(seconds, logging.info, ["%s", message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# --- notes of TensorFlow's libraries ----------------------------------------------------------------------------------


def without_notes() -> contextlib.AbstractContextManager:
    """Hides notes of TensorFlow's libraries that bypass its log, unless TF_CPP_MIN_LOG_LEVEL shows notes."""
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") == "0":
        return contextlib.nullcontext()
    return without_lines(b"I0000 00:00:", b"before absl::InitializeLog() is called")  # log level, still without a date


def hide_note_of_first_compilation() -> None:
    """Compiles a sum with XLA, which logs a note at the first compilation of a process only; takes 0.03 seconds."""
    import tensorflow as tf

    with without_notes(), tf.device("CPU:0"):
        tf.function(lambda: tf.constant(1) + 1, jit_compile=True, autograph=False)()


@contextlib.contextmanager
def without_lines(*markers: bytes) -> Generator[None]:
    """Captures stderr, including C++'s, and at the end writes everything but the lines that contain a marker."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            for line in held:
                if not any(marker in line for marker in markers):
                    os.write(2, line)
