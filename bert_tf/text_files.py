"""Reading and writing text files on any file system TensorFlow opens (local paths, gs://...).

TensorFlow is imported inside the functions: that takes seconds, and tokenizers and configs are used without it.
"""

import os
from collections.abc import Callable, Iterator

_READ_BYTES = 1 << 20


def list_files(patterns: str | None, flag: str = "--input_file") -> list[str]:
    """The files that a comma-separated list of globs names, in the order of the list and, within a glob, by name.

    TensorFlow returns the files of a glob in the order of the file system, which differs from machine to machine;
    sorted, the same files give the same output everywhere.

    Raises:
      ValueError: no pattern at all, or one that matches no file; names it and `flag`.
    """
    import tensorflow as tf
    from absl import logging

    files = []
    for pattern in filter(None, (part.strip() for part in (patterns or "").split(","))):
        # A name may hold the characters of a glob: what exists as it is written is meant as it is written.
        paths = [pattern] if tf.io.gfile.exists(pattern) else sorted(tf.io.gfile.glob(pattern))
        found = [path for path in paths if not tf.io.gfile.isdir(path)]
        if not found:
            raise ValueError(f"{flag}: no file matches {pattern!r}")
        files.extend(found)
    if not files:
        raise ValueError(f"{flag} names no file: {patterns!r}")
    if len(set(files)) < len(files):
        twice = next(path for path in files if files.count(path) > 1)
        logging.warning("%s names %s more than once; it will count as often", flag, twice)
    return files


def read_text_lines(path: str, progress: Callable[[int], None] | None = None) -> Iterator[str]:
    """Yields the lines of a UTF-8 text file as the original reads them, holding one megabyte or one line at a time.

    Carriage returns are dropped wherever they stand and only a newline ends a line, as TensorFlow's GFile reader does;
    lines come without their newline and otherwise unstripped, blank ones included.

    Args:
      path: a local path or any that `tf.io.gfile` opens (gs://...).
      progress: called with the number of bytes after each read.

    Raises:
      ValueError: bytes that are not UTF-8; names the file, the line (from 1) and the byte offset in the file (from 0).
    """
    import tensorflow as tf

    line_number, offset, held = 1, 0, []
    with tf.io.gfile.GFile(path, "rb") as file:
        while True:
            chunk = file.read(_READ_BYTES)
            if progress and chunk:
                progress(len(chunk))
            end = chunk.rfind(b"\n") + 1
            if chunk and not end:
                held.append(chunk)
                continue
            block = b"".join([*held, chunk[:end]])
            held = [chunk[end:]] if chunk[end:] else []
            if block:
                lines = _decode_lines(block, path, line_number, offset)
                yield from lines
                line_number += len(lines)
                offset += len(block)
            if not chunk:
                return


def _decode_lines(block: bytes, path: str, line_number: int, offset: int) -> list[str]:
    """The lines of whole-line `block`, whose first byte is byte `offset` and line `line_number` of `path`."""
    try:
        lines = block.replace(b"\r", b"").decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise _decoding_error(block, path, line_number, offset) from None
    if not lines[-1]:  # what stands after the last newline is no line
        lines.pop()
    return lines


def _decoding_error(block: bytes, path: str, line_number: int, offset: int) -> ValueError:
    for line in block.split(b"\n"):
        kept = [place for place, byte in enumerate(line) if byte != 0x0D]
        try:
            line.replace(b"\r", b"").decode("utf-8")
        except UnicodeDecodeError as error:
            byte = offset + kept[error.start]
            return ValueError(
                f"{path}, line {line_number}: not UTF-8 at byte offset {byte} of the file "
                f"(byte 0x{line[byte - offset]:02x}, {error.reason}). Convert the file to UTF-8, for example by iconv."
            )
        line_number += 1
        offset += len(line) + 1
    raise AssertionError("unreachable: the block as a whole could not be decoded")


def write_text_file(path: str, text: str) -> None:
    """Writes a UTF-8 text file whole or not at all: under a temporary name beside `path`, which is then renamed.

    Raises:
      tf.errors.OpError: the directory does not exist, is not writable or full; what stood at `path` stays as it was.
    """
    import tensorflow as tf

    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(text.encode("utf-8"))
        tf.io.gfile.rename(temporary, path, overwrite=True)
    except BaseException:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)
        raise
