"""Records of gzip-compressed TFRecord files.

A gzip file may consist of several members, each compressed separately. The files that this project writes have a member
for every 1024 records, so that reading a block of records can start at its member. Other gzip files can be read, too,
but in a file with a single member, as TensorFlow writes it, everything before a block must be decompressed first.

A place in such a file is (byte where a member begins, byte within the decompressed member).
"""

import itertools
import struct
import threading
import zlib
from collections.abc import Iterator

import google_crc32c

from bert_tf.system.text_files import open_binary

FRAME_BYTES = 16  # before each payload: length (8 bytes) and its checksum (4); after it the payload's checksum (4)

LARGEST_RECORD = 1 << 26  # bytes; records are read whole

MAGIC = b"\x1f\x8b\x08"
_CHUNK_BYTES = 64 * 1024


class GzipDamage(ValueError):
    """A member can't be decompressed, or its content is not a series of records.

    Attributes:
      member: byte where it begins. truncated: whether the readable part is intact.
    """

    def __init__(self, name: str, member: int, words: str, truncated: bool = False):
        super().__init__(f"{name}: the gzip member at byte {member} is {words}")
        self.member, self.words, self.truncated = member, words, truncated


def masked_crc32c(data: bytes) -> int:
    """The checksum of TFRecord frames: CRC-32C, rotated and shifted."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def is_frame_head(head: bytes) -> bool:
    """Whether these are the first 12 bytes of a record's frame: a length, and its checksum."""
    return len(head) == 12 and struct.unpack("<I", head[8:])[0] == masked_crc32c(head[:8])


def is_gzip(name: str) -> bool:
    """Whether a file is gzip-compressed, by its first bytes."""
    with open_binary(name) as file:
        head = file.read(12)
    # The length of a first record may look like gzip's magic number, but then its checksum matches.
    return head[:2] == MAGIC[:2] and not is_frame_head(head)


def _decompressed(name: str, member: int) -> Iterator[tuple[int, int, bytes]]:
    """Yields chunks of the content, starting at a member, each with the place of its first byte.

    The last chunk of a member comes only after the member's checksum has been verified.

    Raises:
      GzipDamage
    """
    with open_binary(name) as file:
        file.seek(member)
        held = file.read(_CHUNK_BYTES)
        while held:
            inflate = zlib.decompressobj(wbits=31)
            inner, start, waiting = 0, member, b""
            while not inflate.eof:
                if not held and not (held := file.read(_CHUNK_BYTES)):
                    if waiting:
                        yield start, inner, waiting
                    raise GzipDamage(name, start, f"truncated: the file ends inside it, at byte {member}", True)
                try:
                    data = inflate.decompress(held)
                except zlib.error as error:
                    raise GzipDamage(name, start, f"corrupt: it can't be decompressed ({error})") from error
                member += len(held) - len(inflate.unused_data)
                held = inflate.unused_data
                if waiting:
                    yield start, inner, waiting
                    inner += len(waiting)
                waiting = data
            if waiting:
                yield start, inner, waiting
            held = held or file.read(_CHUNK_BYTES)


def gzip_records(name: str, member: int = 0, inner: int = 0) -> Iterator[tuple[int, int, int, bytes]]:
    """Yields the records of a gzip file, starting with the one at a place.

    Yields:
      (member, inner, last member, payload): the place where the record's frame begins, and the member it ends in.

    Raises:
      GzipDamage: when it reaches the damaged member; the complete records of a truncated member come first.
    """
    held, place, skip = b"", (member, inner), inner
    for last, data_inner, data in _decompressed(name, member):
        if skip:
            skip, data, data_inner = max(0, skip - len(data)), data[skip:], data_inner + min(skip, len(data))
        if not held:
            place = (last, data_inner)
        before = len(held)
        held += data
        at = 0
        while at + 12 <= len(held):
            (length,) = struct.unpack_from("<Q", held, at)
            if masked_crc32c(held[at : at + 8]) != struct.unpack_from("<I", held, at + 8)[0]:
                raise GzipDamage(
                    name,
                    place[0],
                    f"not a TFRecord file: at byte {place[1]} of its content there is no record length",
                )
            if length > LARGEST_RECORD:
                raise GzipDamage(name, place[0], f"no file of examples: a record has {length:,} bytes")
            end = at + FRAME_BYTES + length
            if end > len(held):
                break
            yield *place, last, held[at + 12 : end - 4]
            at = end
            place = (last, data_inner + at - before)
        held = held[at:]
    if held:
        raise GzipDamage(name, place[0], "not a TFRecord file: it ends inside a record", True)


class GzipReader:
    """Reads blocks of records. Reading the next block in the same member continues where the last one ended."""

    def __init__(self):
        self._lock = threading.Lock()
        self._last = None  # (file, member, place after the last record read, rest of the records)

    def read(self, name: str, member: int, inner: int, count: int) -> list[bytes]:
        """`count` payloads, starting with the record at a place.

        Raises:
          GzipDamage: the file is damaged, or has fewer records.
        """
        with self._lock:
            last, self._last = self._last, None
        if last and last[:2] == (name, member) and last[2] <= (member, inner):
            records = last[3]
        else:
            records = gzip_records(name, member, inner)
        wanted = itertools.dropwhile(lambda record: record[:2] < (member, inner), records)
        found = list(itertools.islice(wanted, count))
        if len(found) < count or found[0][:2] != (member, inner):
            raise GzipDamage(name, member, "changed since it was indexed")
        place = found[-1][:2]
        with self._lock:
            self._last = (name, member, (place[0], place[1] + 1), records)
        return [payload for *_, payload in found]
