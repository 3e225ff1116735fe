"""TFRecord files byte by byte, without TensorFlow: frames, blocks of gzip files, damage, and the first record.

A record's frame is its length (8 bytes), the length's checksum (4), the payload, and the payload's checksum (4). A gzip
file, as create_pretraining_data.py --compression=gzip writes it, has a member of its own for each block of up to 1,024
records, so that reading can start at any of them. gzip files without such blocks are refused: to read a record of
theirs, all before it would have to be decompressed.
"""

import struct
import zlib

import google_crc32c

from bert_tf.system.example_bytes import features_of
from bert_tf.system.text_files import foreign_kind, open_binary, size_of

RECORDS_PER_BLOCK = 1024
FRAME_BYTES = 16  # around each payload
MAGIC = b"\x1f\x8b\x08"
_LARGEST_MEMBER = 1 << 28  # bytes of a decompressed block, which is in memory
_CHUNK_BYTES = 64 * 1024

# The features of the records that a run reads: with masks, unmasked ones, and those of ELECTRA's original.
MASKED = (
    "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
    "next_sentence_labels",
)  # fmt: skip
UNMASKED = ("input_ids", "segment_lengths", "next_sentence_labels")
ELECTRA = MASKED[:3]


class RecordError(ValueError):
    """A record file can't be used as it is; the message names file, record, byte offset and flag."""


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


def gzip_block(name: str, begin: int) -> tuple[list[bytes], int]:
    """The payloads of a member of a gzip file, and where it ends.

    Args:
      begin: the byte where it begins.

    Raises:
      RecordError: it can't be decompressed, is not a series of records, or too large; names the file and the byte.
    """

    def damage(words: str) -> RecordError:
        return RecordError(f"{name}: the gzip member at byte {begin} is {words}")

    inflate, content, end = zlib.decompressobj(wbits=31), bytearray(), begin
    with open_binary(name) as file:
        file.seek(begin)
        while not inflate.eof:
            if not (data := file.read(_CHUNK_BYTES)):
                raise damage(f"truncated: the file ends inside it, at byte {end}")
            try:
                content += inflate.decompress(data)
            except zlib.error as error:
                raise damage(f"corrupt: it can't be decompressed ({error})") from error
            end += len(data) - len(inflate.unused_data)
            if len(content) > _LARGEST_MEMBER:
                break
    payloads, at = [], 0
    while at < len(content) and len(payloads) <= RECORDS_PER_BLOCK:
        if not is_frame_head(bytes(content[at : at + 12])):
            raise damage(f"not a TFRecord file: at byte {at} of its content there is no record length")
        stop = at + 12 + struct.unpack_from("<Q", content, at)[0]
        if stop + 4 > len(content):
            break
        payloads.append(bytes(content[at + 12 : stop]))
        at = stop + 4
    if len(payloads) > RECORDS_PER_BLOCK or not inflate.eof:
        raise damage(
            f"no block of up to {RECORDS_PER_BLOCK:,} records, as create_pretraining_data.py --compression=gzip writes "
            "them: decompress the file"
        )
    if at < len(content):
        raise damage("not a TFRecord file: it ends inside a record")
    return payloads, end


def damage_at(name: str, offset: int, size: int) -> tuple[int | None, str]:
    """Where reading can resume after the bad record at `offset` (None: nowhere), and a description of the damage."""
    with open_binary(name) as stream:
        stream.seek(offset)
        beginning = stream.read(64)
    header = beginning[:12]
    if offset == 0 and (kind := foreign_kind(beginning)):
        return None, f"not a TFRecord file: it is {kind}"
    if offset == 0 and header[:1] == b"{":
        return None, "not a TFRecord file: it looks like JSON (name only the record files, for example by *.tfrecord*)"
    if offset == 0 and len(header) == 12 and min(header) >= 0x09:  # a record has zeros in its length
        return None, "not a TFRecord file: it looks like text, of which create_pretraining_data.py makes records"
    if len(header) == 12:
        if not is_frame_head(header):
            return None, "corrupt: its length field does not match its checksum, so the rest of the file can't be read"
        following = offset + FRAME_BYTES + struct.unpack("<Q", header[:8])[0]
        if following <= size:
            return following, "corrupt: its bytes do not match their checksum"
    return None, f"truncated: the file ends inside it, at byte {size}"


def with_advice(message: str) -> str:
    """A message about a damaged record, with what to do about it; of what is no record file it says so itself."""
    skipped = "; write the file again, or skip such records with --skip_corrupt_records"
    return message if "not a TFRecord file" in message else message + skipped


def payload_at(name: str, offset: int, size: int, compressed: bool = False) -> bytes | None:
    """The record at a place, of a compressed file the first of a member; None if that has none.

    Args:
      size: of the file, bytes.

    Raises:
      RecordError: it is damaged; names the file and the byte.
    """
    if compressed:
        return next(iter(gzip_block(name, offset)[0]), None)
    with open_binary(name) as stream:
        stream.seek(offset)
        head = stream.read(12)
        length = struct.unpack("<Q", head[:8])[0] if is_frame_head(head) else size
        content = stream.read(length + 4) if length < size else b""
    payload, checksum = content[:-4], content[-4:]
    if len(payload) != length or masked_crc32c(payload) != int.from_bytes(checksum, "little"):
        damage = damage_at(name, offset, size)[1]
        raise RecordError(f"{name}{' is' if 'not a' in damage else f': the record at byte {offset} is'} {damage}")
    return payload


def check_first_record(
    path: str,
    max_seq_length: int,
    max_predictions_per_seq: int | None = None,
    vocab_size: int | None = None,
    model_name: str = "",
) -> None:
    """Refuses a file whose first record is damaged, or none to pre-train on; one without any is passed.

    Args:
      max_seq_length, max_predictions_per_seq: what the flags say of its length. vocab_size: of the model that
        model_name names. None: not known.

    Raises:
      RecordError: names the file, and what the record lacks.
    """
    if not (size := size_of(path)):
        return
    try:
        payload = payload_at(path, 0, size, is_gzip(path))
    except RecordError as error:
        raise RecordError(with_advice(str(error))) from None
    if payload is None:
        return
    try:
        features = features_of(payload)
    except ValueError as error:
        raise RecordError(f"{path}: the first record (byte 0) {error}") from None
    needed = UNMASKED if "segment_lengths" in features else ELECTRA if {*features} == {*ELECTRA} else MASKED
    for name in needed:
        if name not in features:
            held = ", ".join(features) or "nothing"
            raise RecordError(f"{path}: the first record (byte 0) has no feature {name!r}; it has {held}")
    lengths = {"input_ids": ("max_seq_length", max_seq_length)}
    lengths |= {"masked_lm_positions": ("max_predictions_per_seq", max_predictions_per_seq)} if needed is MASKED else {}
    for name, (flag, wanted) in lengths.items():
        found = len(features[name])
        if wanted is not None and (found > wanted or (needed is not UNMASKED and found != wanted)):
            raise RecordError(
                f"{path}: the first record (byte 0) has {found} values in feature {name!r}, expected {wanted}; give "
                f"--{flag}={found} or write the records again with --{flag}={wanted}"
            )
    if vocab_size is not None and (largest := max(features["input_ids"], default=0)) >= vocab_size:
        raise RecordError(
            f"{path}: the first record (byte 0) has {largest} in feature 'input_ids', expected 0 to {vocab_size - 1} "
            f"(vocab_size={vocab_size} in {model_name}: was the data made with another vocabulary?)"
        )
