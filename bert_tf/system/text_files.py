"""Reads text files on any file system that TensorFlow opens (local paths, gs://...).

TensorFlow is imported inside the functions: that takes seconds, and tokenizers and configurations work without it.
"""

import codecs
import contextlib
import dataclasses
import glob
import gzip
import hashlib
import json
import os
import posixpath
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from absl import logging

from bert_tf.system import hub, text_encodings
from bert_tf.system.declare import changeable_setting
from bert_tf.system.messages import abbreviated_list, escape_control_characters, warn_once
from bert_tf.system.storage import finish_replacing, gfile, is_on_hub, is_remote, names_in, paths_beginning_with
from bert_tf.system.workers import in_threads

UTF_8 = "utf-8"
LONGEST_LINE = 1 << 26  # bytes; lines are read whole

_READ_BYTES = 1 << 20

Progress = Callable[[int], object]


def encoding_setting(files: str):
    """The setting `encoding`. files: which text files it is for."""
    return changeable_setting(
        UTF_8,
        f"The encoding of {files}, by its name in Python: cp949 (Korean Windows, EUC-KR), cp932 (Shift-JIS), gb18030 "
        "(GBK), utf-16, ... A file among them that is UTF-8 is read as UTF-8. Vocabularies are always UTF-8.",
        check=check_encoding,
    )


def check_encoding(encoding: str, flag: str = "--encoding") -> None:
    try:
        "a".encode(encoding)
    except (LookupError, ValueError) as error:
        raise ValueError(f"{flag}={encoding}: {error}") from None


def read_json(path: str, kind: type = dict, encoding: str | None = None, **options):
    """The content of a JSON file that holds an object, or a list; options: of `json.loads`."""
    file = TextFile(path, encoding=encoding)
    text = file.decode(0, b"".join(file.chunks()))
    values = parse_json(text.removeprefix("\ufeff"), path, **options)
    if not isinstance(values, kind):
        wanted = "object" if kind is dict else kind.__name__
        raise ValueError(f"{path} is not a JSON {wanted} but {type(values).__name__}")
    return values


def read_json_if_there(path: str) -> dict | None:
    return read_json(path) if exists(path) else None


@contextlib.contextmanager
def naming_damaged(files: str) -> Generator[None]:
    """Names the files that a library reads, which fails in many ways at damaged ones."""
    try:
        yield
    except Exception as error:
        message = escape_control_characters(" ".join(str(error).split()))
        raise ValueError(f"{files} can't be read: is it damaged? {type(error).__name__}: {message:.300}") from error


@contextlib.contextmanager
def naming_file(path: str) -> Generator[None]:
    """Turns an error because a value in a JSON file is not as expected into a ValueError that names the file.

    For files of other programs, which have too many values to check each.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        what = "a value in it, or in a JSON file next to it, is not of the expected kind"
        raise ValueError(f"{path}: {what} ({error!r:.200})") from error


def parse_json(text: str, path: str, line: int | None = None, **options):
    """The value of a JSON text. path, line: where it comes from, for messages. options: of `json.loads`."""
    try:
        return json.loads(text, **options)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {line or error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise ValueError(f"{path}, line {line or 1}: not JSON: {error}") from None


def list_files(patterns: str | None, flag: str = "--input_file") -> list[str]:
    """The files named by a comma-separated list of globs, in the order of the list and, within a glob, sorted by name.

    TensorFlow returns the files of a glob in the order of the file system, which differs between machines. Sorted, the
    same files give the same output everywhere.
    """
    files = []
    for pattern in filter(None, (part.strip() for part in (patterns or "").split(","))):
        if is_on_hub(pattern):
            paths = list(matching_files(pattern))
        elif exists(pattern):  # a name may contain glob characters
            paths = [pattern]
        else:
            paths = sorted(gfile().glob(pattern) if is_remote(pattern) else glob.glob(pattern, include_hidden=True))
        are_folders = in_threads(is_folder, paths)
        files_here = [path for path, is_folder in zip(paths, are_folders, strict=True) if not is_folder]
        if not files_here:
            raise ValueError(f"{flag}: no file matches {pattern!r}")
        files.extend(files_here)
    if not files:
        raise ValueError(f"{flag} names no file: {patterns!r}")
    if len(set(files)) < len(files):
        twice = next(path for path in files if files.count(path) > 1)
        logging.warning("%s names %s more than once; it will be read that many times", flag, twice)
    return files


def warn_of_missing_shards(files: Iterable[str], flag: str = "--input_file") -> None:
    """Warns if some of the files name-00000-of-00003 to name-00002-of-00003 are given, but not all."""
    numbers: dict[tuple[str, int], set[int]] = {}
    for path in files:
        if match := re.fullmatch(r"(.*)-(\d{5,})-of-(\d{5,})", path):
            numbers.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (name, total), present in numbers.items():
        if missing := sorted(set(range(total)) - present):
            shown = (flag, total, name, len(present), missing[0])
            logging.warning("%s: of the %d shards of %s, only %d are given; the first missing one is %05d", *shown)


_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")


def warn_of_tables(paths: Iterable[str]) -> None:
    """Warns of files that are read as plain text although their names say that they are tables or JSON."""
    if tables := [path for path in paths if gzip_of(path)[1].lower().endswith(_TABLES)]:
        message = "--input_file: read as plain text, with all that is in a line: %s. Give the texts alone, one a line."
        warn_once("tables", message, abbreviated_list(tables))


def read_bytes(path: str) -> bytes:
    with open_binary(path) as file:
        content = file.read()
    refuse_pointer(path, content)
    return content


def refuse_pointer(path: str, beginning: bytes) -> None:
    if beginning.startswith(LFS_POINTER):
        raise ValueError(f"{path} is {_FOREIGN[LFS_POINTER]}.")


def file_sha256(path: str) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()


def read_text_lines(
    path: str, progress: Progress | None = None, encoding: str | None = None, is_gzip: bool = False
) -> Iterator[str]:
    """Yields the lines of a text file; one megabyte or line is in memory at a time.

    Only a newline, or one after carriage returns, ends a line. Lines come without it but otherwise unstripped; blank
    lines are included. A carriage return inside a line stays, as whitespace; the original drops it and joins two words.

    progress: called after each read with the number of bytes. encoding, is_gzip: see `TextFile`.
    """
    file = TextFile(path, is_gzip, encoding)
    for offset, block in whole_lines(file, file.chunks(progress=progress)):
        lines = file.decode(offset, block).split("\n")
        if not lines[-1]:  # nothing follows the last newline
            lines.pop()
        yield from lines


@dataclasses.dataclass(frozen=True)
class TextFile:
    """The bytes of a text file, in chunks, with errors that say where the text is invalid.

    Offsets refer to the text in UTF-8: for a compressed file they count decompressed bytes.

    is_gzip: it is compressed by gzip.
    encoding: of the file, as the flag --encoding has it; None: it must be UTF-8, and there is no such flag.
    errors: of a file in another encoding: "strict", or "replace": what is invalid becomes U+FFFD.
    """

    path: str
    is_gzip: bool = False
    encoding: str | None = None
    errors: str = "strict"

    @property
    def is_converted(self) -> bool:
        """Whether the bytes are not UTF-8."""
        return codecs.lookup(self.encoding or UTF_8).name not in ("utf-8", "utf-8-sig", "ascii")

    @property
    def starts_anywhere(self) -> bool:
        """Whether reading can begin at any place; else the file is read from its start."""
        return not self.is_gzip and not self.is_converted

    def chunks(self, begin: int = 0, end: int | None = None, progress: Progress | None = None) -> Iterator[bytes]:
        """The text in UTF-8 from `begin` to `end`, about a megabyte at a time; see `starts_anywhere`.

        progress: called with the number of bytes that each read takes from the disk.
        """
        if self.starts_anywhere:
            return _plain(self.path, begin, end, progress)
        raw = _decompressed(self.path, progress) if self.is_gzip else _plain(self.path, 0, None, progress)
        if not self.is_converted:
            return raw
        return text_encodings.converted(self.path, self.encoding or UTF_8, self.errors, raw)

    def decode(self, offset: int, block: bytes) -> str:
        """The text of a block of `whole_lines` that begins at `offset`, `with_newlines`.

        Zero bytes stay: as in the original, tokenizers drop them.
        """
        try:
            text = with_newlines(block.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise self._not_utf_8(offset, block, error.start, error.reason) from None
        if b"\0" in block:
            if not offset and len(block) >= 16 and text_encodings.utf_16_of(block[: text_encodings.FIRST_BYTES], 4):
                raise self._not_utf_8(offset, block, block.find(b"\0"), "a zero byte")
            warn_once(self.path, "%s has zero bytes, which stand for no text: is it damaged?", self.path)
        return text

    def _not_utf_8(self, offset: int, block: bytes, start: int, reason: str) -> ValueError:
        beginning = next(iter(self.chunks()), b"")[: text_encodings.FIRST_BYTES]
        advice = text_encodings.advice(beginning, block, start, self.encoding is not None)
        line, of = self.line_number(offset + start), "the uncompressed text" if self.is_gzip else "the file"
        where = f"byte offset {offset + start} of {of} (byte 0x{block[start]:02x}, {reason})"
        return ValueError(f"{self.path}, line {line}: not UTF-8 at {where}. {advice}")

    def line_number(self, offset: int) -> int:
        """The number, from 1, of the line that contains byte `offset`; reads the file up to there."""
        newlines = position = 0
        for chunk in self.chunks(end=offset):
            newlines += chunk.count(b"\n", 0, max(offset - position, 0))
            position += len(chunk)
            if position >= offset:
                break
        return newlines + 1


def with_newlines(text: str) -> str:
    """A text whose lines end with newlines alone, without the carriage returns before them or at its end."""
    text = text.replace("\r\n", "\n")  # alone in nearly all texts, and quick
    return re.sub(r"(?<!\r)\r+(?=\n|\Z)", "", text) if "\r" in text else text


def whole_lines(
    file: TextFile, chunks: Iterable[bytes], longest: int | None = None, offset: int = 0
) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, block): the same bytes in blocks that end with a newline or the end of the text.

    file: that the chunks come from, for messages.
    longest: a line of more bytes is split after a space (if there is one), so that it need not fit into memory.
    offset: of the first byte.
    """
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        if not (offset or held) and chunk.count(b"\r") > chunk.count(b"\r\n"):
            text = re.sub(rb'"[^"]*"', b"", chunk)  # in quoted cells they are whitespace
            if len(re.findall(rb"(?<!\r)\r+(?![\r\n])", text)) > max(2, text.count(b"\n")):
                advice = "tr '\\r' '\\n' < FILE > NEW_FILE"
                raise ValueError(f"{file.path}: its lines end with carriage returns alone: {advice}")
        end = chunk.rfind(b"\n") + 1
        size += len(chunk)
        if not end and longest is not None and size > longest:
            end = chunk.rfind(b" ") + 1
        if not end:
            if size > LONGEST_LINE:
                number = file.line_number(offset)
                raise ValueError(f"{file.path}, line {number}: longer than {LONGEST_LINE:,} bytes; is it a text file?")
            held.append(chunk)
            continue
        block = b"".join((*held, chunk[:end]))
        held = [chunk[end:]] if end < len(chunk) else []
        size = len(chunk) - end
        yield offset, block
        offset += len(block)
    if held:
        yield offset, b"".join(held)


def gzip_of(path: str) -> tuple[bool, str]:
    """Whether a file is compressed, by its name, and that without the suffix: `a.txt.gz` -> (True, "a.txt")."""
    is_gzip = path.lower().endswith(".gz")
    return is_gzip, path[:-3] if is_gzip else path


def matching_files(path: str) -> dict[str, str]:
    """The address and the local path of each file at a path: several if it is a glob on the hub."""
    return hub.matching(path) if is_on_hub(path) else {path: path}


def local_file(path: str) -> str:
    """The path in the cache of a file on the hub; other paths as they are."""
    if len(files := matching_files(path)) > 1:
        found = f"{path} matches {len(files)} files: {abbreviated_list([*files])}"
        raise ValueError(f"{found}; name one. Only .parquet may be several.")
    return next(iter(files.values()))


def open_binary(path: str):
    path = local_file(path)
    return gfile().GFile(path, "rb") if is_remote(path) else open(path, "rb", buffering=1 << 16)


def size_of(path: str) -> int:
    path = local_file(path)
    return gfile().stat(path).length if is_remote(path) else os.path.getsize(path)


def exists(path: str) -> bool:
    return bool(matching_files(path)) if is_on_hub(path) else (gfile() if is_remote(path) else os.path).exists(path)


def anything_at(path: str) -> bool:
    """Whether there is a folder, a file, or a checkpoint with this prefix."""
    return (gfile() if is_remote(path) else os.path).exists(path) or bool(paths_beginning_with(f"{path}."))


def is_folder(path: str) -> bool:
    return not is_on_hub(path) and (gfile() if is_remote(path) else os.path).isdir(path)


def directory_of(path: str) -> str:
    """The folder that describes the model whose weights are at `path`, after what a killed save left to do is done."""
    directory = path if is_folder(path) else posixpath.dirname(path) or "."
    if directory != path and posixpath.basename(path).startswith("variables"):  # of a SavedModel
        directory = posixpath.dirname(directory) or "."
    finish_replacing(directory)
    return directory


@dataclasses.dataclass(frozen=True)
class Folder:
    """A model's folder, and the names in it and in its `_INNER` folders."""

    path: str
    names: Sequence[str]


_INNER = ("assets", "generator", "variables")


def list_folder(path: str) -> Folder:
    """Lists the `directory_of` a path; none need exist."""
    folder = directory_of(path)
    names = names_in(folder)
    names += [f"{name}/{file}" for name in _INNER if name in names for file in names_in(posixpath.join(folder, name))]
    if not is_remote(folder):  # links may lead nowhere
        names = [name for name in names if os.path.exists(os.path.join(folder, name))]
    return Folder(folder, names)


LFS_POINTER = b"version https://git-lfs"

# How files begin that people take for a table or a text.
_FOREIGN = {
    b"PK\x03\x04": "an Excel file or another zip archive; export it as CSV, or unpack it",
    b"\xd0\xcf\x11\xe0": "a file of Excel or Word; export it as CSV or text",
    b"PAR1": "a Parquet file; call it .parquet where a table is meant, and export its texts where a text is",
    b"\x1f\x8b\x08": "a gzip file; unpack it: gunzip < FILE > NEW_FILE",
    LFS_POINTER: "a pointer of Git LFS, not the file that it stands for; fetch that: git lfs pull",
}


def foreign_kind(beginning: bytes) -> str | None:
    """The kind of a file with this beginning, if it is a known one that is not text."""
    if beginning[:1000].removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "an HTML page, perhaps of a failed download; give its text as a text file, or download the file itself"
    return next((kind for magic, kind in _FOREIGN.items() if beginning.startswith(magic)), None)


def _plain(path: str, begin: int, end: int | None, progress: Progress | None) -> Iterator[bytes]:
    with open_binary(path) as file:
        if begin:
            file.seek(begin)
        while end is None or begin < end:
            chunk = file.read(_READ_BYTES if end is None else min(_READ_BYTES, end - begin))
            if not chunk:
                return
            if not begin and (kind := foreign_kind(chunk)):
                raise ValueError(f"{path} is {kind}.")
            if progress:
                progress(len(chunk))
            yield chunk
            begin += len(chunk)


def _decompressed(path: str, progress: Progress | None) -> Iterator[bytes]:
    read = 0
    with open_binary(path) as source, gzip.GzipFile(fileobj=source) as stream:
        while True:
            try:
                chunk = stream.read(_READ_BYTES)
            except (EOFError, OSError, zlib.error) as error:
                raise ValueError(f"{path}: truncated or damaged gzip file ({error})") from None
            if progress:
                progress(source.tell() - read)
                read = source.tell()
            if not chunk:
                return
            yield chunk
