"""Text to pre-training records: masked LM and next sentence instances (original: create_pretraining_data.py).

Three steps, all in memory, on one core:

  read_documents                    text -> documents -> sentences -> token ids
  create_instances_from_documents   pairs of sentence runs, [CLS] A [SEP] B [SEP], with masked positions
  write_instance_to_example_files   tf.train.Example records with seven features

`create_pretraining_data` does all three; `bert_tf.pretraining_instances` holds the second.

Dimensions: S max_seq_length, P max_predictions_per_seq.
"""

import contextlib
import hashlib
import itertools
import json
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf
from absl import logging

from bert_tf.example_encoding import example, float_feature, int64_feature, pack
from bert_tf.pretraining_instances import (
    Document,
    TrainingInstance,
    VocabularyIds,
    check_settings,
    create_instances_from_document,
    create_instances_from_documents,
    create_masked_lm_predictions,
    truncate_seq_pair,
)
from bert_tf.progress import progress_bar
from bert_tf.text_files import list_files, read_text_lines
from bert_tf.tokenization import FullTokenizer, check_vocab

__all__ = [
    "ExampleEncoder",
    "TrainingInstance",
    "VocabularyIds",
    "create_instances_from_document",
    "create_instances_from_documents",
    "create_masked_lm_predictions",
    "create_pretraining_data",
    "create_training_instances",
    "log_instances",
    "read_documents",
    "summary_path",
    "truncate_seq_pair",
    "write_instance_to_example_files",
]

INSTANCES_LOGGED = 20


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_documents(input_files: Sequence[str], tokenizer: FullTokenizer, show_progress: bool = True) -> list[Document]:
    """Reads and tokenizes text: one sentence a line, a blank line between documents.

    As in the original the files are one text: a file that doesn't end with a blank line goes on in the next file. A
    line without any token (only control characters, say) is left out and ends no document.

    Raises:
      ValueError: a file is not UTF-8 (names file, line and byte offset); there is no document at all.
    """
    documents: list[Document] = [[]]
    encode = tokenizer.encode
    with progress_bar(
        total=sum(tf.io.gfile.stat(path).length for path in input_files),
        desc="tokenizing",
        unit="B",
        unit_scale=True,
        disable=not show_progress,
    ) as bar:
        for path in input_files:
            for line in read_text_lines(path, progress=bar.update):
                line = line.strip()
                if not line:
                    documents.append([])
                elif sentence := encode(line):
                    documents[-1].append(sentence)
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(f"no text to make instances of in {', '.join(input_files)}: every line is blank")
    return documents


def create_training_instances(
    input_files: Sequence[str],
    tokenizer: FullTokenizer,
    max_seq_length: int,
    dupe_factor: int,
    short_seq_prob: float,
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    rng: random.Random,
    do_whole_word_mask: bool = False,
) -> list[TrainingInstance]:
    """Instances of text files (original: create_training_instances); see the two functions this calls."""
    return create_instances_from_documents(
        read_documents(input_files, tokenizer),
        max_seq_length,
        dupe_factor,
        short_seq_prob,
        masked_lm_prob,
        max_predictions_per_seq,
        VocabularyIds.from_vocab(tokenizer.vocab),
        rng,
        do_whole_word_mask,
    )


# ---- records ---------------------------------------------------------------------------------------------------------


def write_instance_to_example_files(
    instances: Sequence[TrainingInstance],
    max_seq_length: int,
    max_predictions_per_seq: int,
    output_files: Sequence[str],
    show_progress: bool = True,
) -> list[int]:
    """Writes TFRecord files, instance k to file k modulo their number (original: write_instance_to_example_files).

    Each record is a tf.train.Example with input_ids, input_mask, segment_ids [S], masked_lm_positions, masked_lm_ids
    [P], next_sentence_labels [1] (1: random) as int64 and masked_lm_weights [P] as float, padded with zeros.

    Returns:
      How many instances each file holds.

    Raises:
      tf.errors.OpError: a file can't be written.
    """
    encode = ExampleEncoder(max_seq_length, max_predictions_per_seq).encode
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(tf.io.TFRecordWriter(path)) for path in output_files]
        bar = progress_bar(
            zip(itertools.cycle(writers), instances, strict=False),
            total=len(instances),
            desc="writing",
            unit="instances",
            unit_scale=True,
            disable=not show_progress,
        )
        for writer, instance in bar:
            writer.write(encode(instance))
    return [len(instances[number :: len(output_files)]) for number in range(len(output_files))]


class ExampleEncoder:
    """Instances to the bytes of a tf.train.Example."""

    def __init__(self, max_seq_length: int, max_predictions_per_seq: int):
        self.max_seq_length = max_seq_length
        self.max_predictions_per_seq = max_predictions_per_seq

    def encode(self, instance: TrainingInstance) -> bytes:
        """One serialized Example. ValueError if the instance is longer than S or P."""
        length, num_predictions = len(instance.token_ids), len(instance.masked_lm_ids)
        padding = self.max_seq_length - length
        padding_predictions = self.max_predictions_per_seq - num_predictions
        if padding < 0 or padding_predictions < 0:
            raise ValueError(
                f"an instance of {length} tokens with {num_predictions} predictions doesn't fit "
                f"max_seq_length={self.max_seq_length}, max_predictions_per_seq={self.max_predictions_per_seq}"
            )
        # Zeros and ones are single bytes, which makes the lists of nothing else easy.
        zeros, zero_predictions = bytes(padding), bytes(padding_predictions)
        segments = bytes(instance.second_start) + b"\x01" * (length - instance.second_start) + zeros
        weights = [1.0] * num_predictions + [0.0] * padding_predictions
        return example(
            (
                int64_feature(b"input_ids", pack(instance.token_ids) + zeros),
                int64_feature(b"input_mask", b"\x01" * length + zeros),
                int64_feature(b"segment_ids", segments),
                int64_feature(b"masked_lm_positions", pack(instance.masked_lm_positions) + zero_predictions),
                int64_feature(b"masked_lm_ids", pack(instance.masked_lm_ids) + zero_predictions),
                float_feature(b"masked_lm_weights", weights),
                int64_feature(b"next_sentence_labels", b"\x01" if instance.is_random_next else b"\x00"),
            )
        )


# ---- all of it -------------------------------------------------------------------------------------------------------


def create_pretraining_data(
    input_file: str,
    output_file: str,
    vocab_file: str,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    do_whole_word_mask: bool = False,
    max_seq_length: int = 128,
    max_predictions_per_seq: int = 20,
    random_seed: int = 12345,
    dupe_factor: int = 10,
    masked_lm_prob: float = 0.15,
    short_seq_prob: float = 0.1,
    show_progress: bool = True,
) -> dict:
    """Text files in, TFRecord files out, with a summary of them in `summary_path(output_file)`.

    The arguments are the flags of create_pretraining_data.py. Output appears under its name when all of it is written;
    a run that fails leaves what was there before.

    Returns:
      The summary, as written: flags, input_files, vocab_sha256, vocab_size; counts of documents, sentences, tokens,
      instances, masked_positions, random_next; shares of unknown tokens in the text and of padding in the records;
      output_files with the instances of each.

    Raises:
      ValueError: bad flag, vocabulary or text; names the flag, or the file and its line or byte.
      tf.errors.OpError: a file can't be read or written.
    """
    flags = {name: value for name, value in locals().items() if name != "show_progress"}
    flags["strip_accents"] = do_lower_case if strip_accents is None else strip_accents
    check_settings(max_seq_length, max_predictions_per_seq, dupe_factor, short_seq_prob, masked_lm_prob)
    input_files = list_files(input_file, flag="--input_file")
    output_files = _list_output_files(output_file, [*input_files, vocab_file])
    tokenizer = FullTokenizer(vocab_file, do_lower_case, strip_accents)
    check_vocab(tokenizer.vocab, vocab_file)
    logging.info("Reading %d files, the first is %s", len(input_files), input_files[0])

    sidecar = summary_path(output_file)
    # Opened before the long work: that output can't be written is better known at once.
    with _written_together([*output_files, sidecar]) as (*temporary_records, temporary_sidecar):
        documents = read_documents(input_files, tokenizer, show_progress)
        text_counts = _count_text(documents, tokenizer.vocab["[UNK]"])
        instances = create_instances_from_documents(
            documents,
            max_seq_length,
            dupe_factor,
            short_seq_prob,
            masked_lm_prob,
            max_predictions_per_seq,
            VocabularyIds.from_vocab(tokenizer.vocab),
            random.Random(random_seed),
            do_whole_word_mask,
            show_progress,
        )
        log_instances(instances[:INSTANCES_LOGGED], tokenizer.inv_vocab)
        counts = write_instance_to_example_files(
            instances, max_seq_length, max_predictions_per_seq, temporary_records, show_progress
        )
        summary = {
            "flags": flags,
            "input_files": input_files,
            "vocab_sha256": _sha256(vocab_file),
            "vocab_size": len(tokenizer.vocab),
            **text_counts,
            **_count_instances(instances, max_seq_length),
            "output_files": dict(zip(output_files, counts, strict=True)),
        }
        with tf.io.gfile.GFile(temporary_sidecar, "wb") as file:
            file.write((json.dumps(summary, indent=2, ensure_ascii=False) + "\n").encode())

    for path, count in summary["output_files"].items():
        logging.info("%s: %d instances", path, count)
    logging.info(
        "%d instances of %d documents (%.1f%% padding, %.1f%% of the tokens masked, %.1f%% random next); see %s",
        summary["instances"],
        summary["documents"],
        100 * summary["padding_share"],
        100 * summary["masked_positions"] / summary["instance_tokens"],
        100 * summary["random_next"] / summary["instances"],
        sidecar,
    )
    return summary


def summary_path(output_file: str) -> str:
    """Where the summary of `--output_file` lies: `data/a.tfrecord,data/b.tfrecord` -> `data/pretraining_data.a.json`.

    Beside the first file, but named so that the usual globs for records (data/a*, data/*.tfrecord) leave it out. Of a
    name such as a.tfrecord-00001 the number stays, since shards made by separate runs need a summary each.
    """
    directory, name = os.path.split(_split_list(output_file)[0])
    name = re.sub(r"\.tf_?records?", "", name)
    return os.path.join(directory, f"pretraining_data.{name}.json")


def log_instances(instances: Sequence[TrainingInstance], inv_vocab: Mapping[int, str]) -> None:
    """Logs instances to read: whether what was made is what was meant is best seen by eye."""
    for number, instance in enumerate(instances):
        masked = zip(instance.masked_lm_positions, instance.masked_lm_labels(inv_vocab), strict=True)
        logging.info(
            "Instance %d, second part %s\n  tokens: %s\n  masked: %s\n  input_ids: %s\n  segment_ids: %s",
            number,
            "random" if instance.is_random_next else "follows",
            " ".join(instance.tokens(inv_vocab)),
            " ".join(f"{position}={token}" for position, token in masked),
            " ".join(map(str, instance.token_ids)),
            " ".join(map(str, instance.segment_ids)),
        )


def _split_list(names: str) -> list[str]:
    return [name for name in map(str.strip, names.split(",")) if name]


def _list_output_files(output_file: str, read_files: Sequence[str]) -> list[str]:
    output_files = _split_list(output_file)
    if not output_files:
        raise ValueError(f"--output_file names no file: {output_file!r}")
    read_keys, written_keys = set(map(_same_file_key, read_files)), set()
    for path in output_files:
        key = _same_file_key(path)
        if key in read_keys:
            raise ValueError(f"--output_file={output_file}: {path} would overwrite a file that is read")
        if key in written_keys:
            raise ValueError(f"--output_file={output_file}: {path} is named twice")
        if tf.io.gfile.exists(path) and tf.io.gfile.isdir(path):
            raise ValueError(f"--output_file={output_file}: {path} is a directory; name a file in it")
        written_keys.add(key)
    return output_files


def _same_file_key(path: str) -> str:
    return path if "://" in path else os.path.realpath(path)


@contextlib.contextmanager
def _written_together(paths: Sequence[str]) -> Iterator[list[str]]:
    """Gives a temporary name for each path, in its directory (made if missing); at the end all are renamed, the last
    path last. On an error they are removed and what stood at the paths stays."""
    temporary = []
    try:
        for path in paths:
            directory, name = os.path.split(path)
            if directory:
                tf.io.gfile.makedirs(directory)
            temporary.append(os.path.join(directory, f".{name}.{os.getpid()}.tmp"))
            with tf.io.gfile.GFile(temporary[-1], "wb") as file:
                file.write(b"")
        yield temporary
        for source, path in zip(temporary, paths, strict=True):
            tf.io.gfile.rename(source, path, overwrite=True)
    except BaseException:
        for path in temporary:
            if tf.io.gfile.exists(path):
                tf.io.gfile.remove(path)
        raise


def _count_text(documents: Sequence[Document], unknown_id: int) -> dict:
    sentences = sum(map(len, documents))
    tokens = sum(len(sentence) for document in documents for sentence in document)
    unknown = sum(sentence.count(unknown_id) for document in documents for sentence in document)
    logging.info("%d documents, %d sentences, %d tokens", len(documents), sentences, tokens)
    if len(documents) == 1:
        logging.warning(
            "There is only one document, so the random next sentences come from the same document as the first ones. "
            "Separate documents by a blank line."
        )
    if unknown > tokens / 10:
        logging.warning(
            "%.0f%% of the tokens are [UNK]: do --vocab_file, --do_lower_case and --strip_accents fit this text?",
            100 * unknown / tokens,
        )
    return {
        "documents": len(documents),
        "sentences": sentences,
        "tokens": tokens,
        "unknown_share": unknown / tokens,
    }


def _count_instances(instances: Sequence[TrainingInstance], max_seq_length: int) -> dict:
    instance_tokens = sum(len(instance.token_ids) for instance in instances)
    return {
        "instances": len(instances),
        "instance_tokens": instance_tokens,
        "padding_share": 1 - instance_tokens / (len(instances) * max_seq_length),
        "masked_positions": sum(len(instance.masked_lm_ids) for instance in instances),
        "random_next": sum(instance.is_random_next for instance in instances),
    }


def _sha256(path: str) -> str:
    with tf.io.gfile.GFile(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
