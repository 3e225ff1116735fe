"""Records and record files: created, written, read, and digests as in tests/golden/pretraining."""

import hashlib
import os
import pathlib

import tensorflow as tf

_KINDS = {
    int: lambda values: {"int64_list": tf.train.Int64List(value=values)},
    float: lambda values: {"float_list": tf.train.FloatList(value=values)},
    bytes: lambda values: {"bytes_list": tf.train.BytesList(value=values)},
}


def example_of(values: dict[str, list]) -> bytes:
    made = {name: _KINDS[type(value[0])](value) if value else {} for name, value in values.items()}
    features = {name: tf.train.Feature(**value) for name, value in made.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_records(path, payloads) -> list[int]:
    offsets = [0]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
            offsets.append(offsets[-1] + len(payload) + 16)
    assert os.path.getsize(path) == offsets[-1]
    return offsets


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


def create(folder, content=None, pieces=None, name="out", **flags) -> dict:
    """Creates the records `name` of text.txt by vocab.txt in a folder, both written if given; returns the summary."""
    from bert_tf.pretraining.create import create_pretraining_data  # it takes long to import

    folder.mkdir(exist_ok=True)
    for file, lines in (("text.txt", content), ("vocab.txt", pieces and "\n".join(pieces) + "\n")):
        if lines is not None:
            (folder / file).write_text(lines, encoding="utf-8")
    files = {"input_file": folder / "text.txt", "output_file": folder / name, "vocab_file": folder / "vocab.txt"}
    flags = {**files, "num_workers": 1, "show_progress": False} | flags
    return create_pretraining_data(**{key: str(value) if key in files else value for key, value in flags.items()})


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir() if path.is_file()}
