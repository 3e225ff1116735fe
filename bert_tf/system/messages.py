"""Building blocks of messages."""

import contextlib
import difflib
import re
import sys
from collections.abc import Collection, Hashable, Iterator

from absl import logging

_NAMES_SHOWN = 8
# Control characters, line separators, marks that turn the direction of text, and halves of a character.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def some(names: list[str], separator: str = ", ") -> str:
    """The first few names of a list, and how many more there are."""
    shown = separator.join(names[:_NAMES_SHOWN])
    return shown + (f"{separator}and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")


def visible(text: str) -> str:
    """A text of unknown origin for a terminal: characters that could steer it as in JSON, \\u001b for an escape."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def did_you_mean(name: str, known: Collection[str]) -> str:
    """The end of a message about a name that there is not: the known one that is spelled nearly so, if there is one."""
    folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(name.casefold(), folded, 1)
    return f"; did you mean {folded[near[0]]!r}?" if near else ""


_told: set[Hashable] = set()


def is_first(*about: Hashable) -> bool:
    """Whether nothing was told of this before, for messages that a process gives once; False within `unheard`."""
    if logging.get_absl_logger().disabled or about in _told:
        return False
    _told.add(about)
    return True


def warn_once(place: Hashable, message: str, *args) -> None:
    """Logs a warning, only the first time that it comes from this place, whatever its numbers are then."""
    if is_first(place, message):
        logging.warning(message + " (Told once.)", *args)


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Logs nothing: for a check of files that are read again, and told of then."""
    logger = logging.get_absl_logger()
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextlib.contextmanager
def named_by(flag: str) -> Iterator[None]:
    """Prefixes an error about a file with the flag that named the file.

    Raises:
      FileNotFoundError, OSError, ValueError: `flag: message` for an error of these kinds, or of TensorFlow's files.
    """
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
