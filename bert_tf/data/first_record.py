"""One record of a TFRecord file, read without TensorFlow; the first is looked at before its import."""

import struct

from bert_tf.data.gzip_records import FRAME_BYTES, GzipDamage, gzip_records, is_frame_head, is_gzip, masked_crc32c
from bert_tf.system.example_bytes import feature_names
from bert_tf.system.text_files import foreign_kind, open_binary, size_of

# The features of the records that a run reads: with masks, unmasked ones, and those of ELECTRA's original.
MASKED = (
    "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
    "next_sentence_labels",
)  # fmt: skip
UNMASKED = ("input_ids", "segment_lengths", "next_sentence_labels")
ELECTRA = MASKED[:3]


class RecordError(ValueError):
    """A record file can't be used as it is; the message names file, record, byte offset and flag."""


def damage_at(name: str, offset: int, size: int) -> tuple[int | None, str]:
    """Where reading can resume after the bad record at `offset` (None: nowhere), and a description of the damage."""
    with open_binary(name) as stream:
        stream.seek(offset)
        header = stream.read(12)
    if offset == 0 and header[:1] == b"{":
        return None, "not a TFRecord file: it looks like JSON (name only the record files, for example by *.tfrecord*)"
    if offset == 0 and len(header) == 12 and min(header) >= 0x09:  # a record has zeros in its length
        return None, "not a TFRecord file: it looks like text, of which create_pretraining_data.py makes records"
    if offset == 0 and (kind := foreign_kind(header)):
        return None, f"not a TFRecord file: it is {kind}"
    if len(header) == 12:
        length, checksum = struct.unpack("<QI", header)
        if checksum != masked_crc32c(header[:8]):
            return None, "corrupt: its length field does not match its checksum, so the rest of the file can't be read"
        following = offset + FRAME_BYTES + length
        if following <= size:
            return following, "corrupt: its bytes do not match their checksum"
    return None, f"truncated: the file ends inside it, at byte {size}"


def with_advice(message: str) -> str:
    """A message about a damaged record, with what to do about it; of what is no record file it says so itself."""
    skipped = "; write the file again, or skip such records with --skip_corrupt_records"
    return message if "not a TFRecord file" in message else message + skipped


def payload_at(name: str, offset: int, size: int, inner: int = 0, compressed: bool = False) -> bytes | None:
    """The record at a place; None if that is the end of a compressed file.

    Args:
      size: of the file, bytes. inner, compressed: see `RecordIndex`.

    Raises:
      RecordError: it is damaged; names the file and the byte.
    """
    if compressed:
        try:
            return next((payload for *_, payload in gzip_records(name, offset, inner)), None)
        except GzipDamage as damage:
            raise RecordError(str(damage)) from damage
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


def check_first_record(path: str) -> None:
    """Refuses a file whose first record is damaged, or none to pre-train on; one without any is passed.

    Raises:
      RecordError: names the file, and what the record lacks.
    """
    if not (size := size_of(path)):
        return
    try:
        payload = payload_at(path, 0, size, compressed=is_gzip(path))
    except RecordError as error:
        raise RecordError(with_advice(str(error))) from None
    if payload is None:
        return
    try:
        names = feature_names(payload)
    except ValueError as error:
        raise RecordError(f"{path}: the first record (byte 0) {error}") from None
    needed = UNMASKED if "segment_lengths" in names else ELECTRA if {*names} == {*ELECTRA} else MASKED
    for name in needed:
        if name not in names:
            held = ", ".join(names) or "nothing"
            raise RecordError(f"{path}: the first record (byte 0) has no feature {name!r}; it has {held}")
