"""Reads pre-training records, and computes digests as in tests/golden/pretraining."""

import hashlib

import tensorflow as tf

FEATURES = (
    "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
    "next_sentence_labels",
)  # fmt: skip
UNMASKED_FEATURES = ("input_ids", "segment_lengths", "next_sentence_labels")

LETTERS = "[PAD] [UNK] [CLS] [SEP] [MASK] a ##a b ##b c ##c d ##d e ##e . ,".split()  # noqa: SIM905
LETTERS_CORPUS = "abc de.\na bb cad, e\nddd.\n\nb a c\ne e e e e e e e\ncab\n\ndead bead.\n"


def decode(record: bytes, names=FEATURES) -> dict:
    feature = tf.train.Example.FromString(record).features.feature
    assert set(feature) == set(names)
    return {
        name: list(feature[name].float_list.value if name == "masked_lm_weights" else feature[name].int64_list.value)
        for name in names
    }


def read_records(path, names=FEATURES) -> list[dict]:
    return [decode(record.numpy(), names) for record in tf.data.TFRecordDataset(str(path))]


def digest_records(records) -> str:
    lines = ("|".join(" ".join(map(str, record[name])) for name in FEATURES) + "\n" for record in records)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
