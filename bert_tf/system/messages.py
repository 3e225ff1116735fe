"""Building blocks of messages."""

import contextlib
import sys
from collections.abc import Iterator

_NAMES_SHOWN = 8


def some(names: list[str], separator: str = ", ") -> str:
    """The first few names of a list, and how many more there are."""
    shown = separator.join(names[:_NAMES_SHOWN])
    return shown + (f"{separator}and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")


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
