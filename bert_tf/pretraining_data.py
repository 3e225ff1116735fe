"""Documents -> masked LM and next sentence instances -> TFRecord.

Original: create_pretraining_data.py; paper: section 3.1 and appendix A.1.

Everything random is drawn from one `random.Random`, in the original's order, so that the same seed gives the same
instances, bit for bit. Tokens are integer ids throughout; only what is shown to a person is turned into strings.

Vocabulary of this module: a sentence is the list of ids of one line, a document a list of sentences.
"""

import dataclasses
import hashlib
import json
import os
import posixpath
import random
from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf
from absl import logging
from tqdm import tqdm

from bert_tf.text_files import read_text_lines, write_text_file
from bert_tf.tokenization import FullTokenizer

_LINES_PER_BATCH = 2000
_INSTANCES_SHOWN = 20
_SHORTEST_SEQUENCE = 5  # [CLS] a [SEP] b [SEP]

Document = list[list[int]]


@dataclasses.dataclass(slots=True)
class TrainingInstance:
    """One masked sentence pair, ready to be written.

    Attributes:
      token_ids: [CLS] A [SEP] B [SEP] with the masks in it. segment_ids: 0 up to the first [SEP], then 1.
      is_random_next: whether B comes from somewhere else.
      masked_lm_positions: sorted. masked_lm_ids: what stood there.
    """

    token_ids: list[int]
    segment_ids: list[int]
    is_random_next: bool
    masked_lm_positions: list[int]
    masked_lm_ids: list[int]


class MaskingVocabulary:
    """What masking needs to know of a vocabulary, by id."""

    def __init__(self, vocab: dict[str, int]):
        self.cls_id, self.sep_id, self.mask_id = (vocab[token] for token in ("[CLS]", "[SEP]", "[MASK]"))
        # A random replacement is any entry, special ones included, in the order of the file.
        self.all_ids = list(vocab.values())
        self.continuation_ids = frozenset(index for token, index in vocab.items() if token.startswith("##"))


# --- reading ---------------------------------------------------------------------------------------------------------


def read_documents(files: Sequence[str], tokenizer: FullTokenizer) -> list[Document]:
    """Tokenizes text files of one sentence a line, with blank lines between documents.

    The end of a file does not end a document, as in the original: without a blank last line it goes on in the next
    file. A line that holds only control characters neither ends a document nor counts as a sentence.

    Raises:
      ValueError: invalid UTF-8 (names file, line and byte), or not one sentence in all files.
    """
    documents: list[Document] = [[]]
    lines: list[str] = []

    def add_lines() -> None:
        for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True):
            if not line:
                documents.append([])
            elif ids:
                documents[-1].append(ids)
        lines.clear()

    total = sum(tf.io.gfile.stat(name).length for name in files)
    with tqdm(total=total, desc="tokenize", unit="B", unit_scale=True, mininterval=1.0) as bar:
        for name in files:
            for line in read_text_lines(name, bar.update):
                lines.append(line.strip())
                if len(lines) == _LINES_PER_BATCH:
                    add_lines()
    add_lines()
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(
            f"--input_file: no text in {', '.join(files[:5])}{' ...' if len(files) > 5 else ''}. It takes one "
            "sentence a line, and blank lines between documents."
        )
    return documents


# --- instances -------------------------------------------------------------------------------------------------------


def create_training_instances(
    documents: list[Document],
    vocabulary: MaskingVocabulary,
    *,
    max_seq_length: int,
    dupe_factor: int,
    short_seq_prob: float,
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    do_whole_word_mask: bool,
    rng: random.Random,
) -> list[TrainingInstance]:
    """All instances of all passes, in the order in which they are written. Shuffles `documents` in place."""
    rng.shuffle(documents)
    instances = []
    total = dupe_factor * len(documents)
    with tqdm(total=total, desc="make instances", unit="document", mininterval=1.0) as bar:
        for _ in range(dupe_factor):
            for index in range(len(documents)):
                instances += create_instances_from_document(
                    documents,
                    index,
                    vocabulary,
                    max_seq_length=max_seq_length,
                    short_seq_prob=short_seq_prob,
                    masked_lm_prob=masked_lm_prob,
                    max_predictions_per_seq=max_predictions_per_seq,
                    do_whole_word_mask=do_whole_word_mask,
                    rng=rng,
                )
                bar.update()
    rng.shuffle(instances)
    return instances


def create_instances_from_document(
    documents: list[Document],
    document_index: int,
    vocabulary: MaskingVocabulary,
    *,
    max_seq_length: int,
    short_seq_prob: float,
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    do_whole_word_mask: bool,
    rng: random.Random,
) -> list[TrainingInstance]:
    """The instances of one document and one pass."""
    document = documents[document_index]
    max_num_tokens = max_seq_length - 3  # [CLS], [SEP], [SEP]
    # Drawn once a document and pass, not once an instance: what the original does, and what the seed's stream expects.
    target_length = max_num_tokens
    if rng.random() < short_seq_prob:
        target_length = rng.randint(2, max_num_tokens)

    instances = []
    chunk: Document = []
    chunk_length = 0
    i = 0
    while i < len(document):
        chunk.append(document[i])
        chunk_length += len(document[i])
        if i == len(document) - 1 or chunk_length >= target_length:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            tokens_a = [token for sentence in chunk[:a_end] for token in sentence]
            # No draw where the chunk has no second sentence: the next one can only be random.
            is_random_next = len(chunk) == 1 or rng.random() < 0.5
            if is_random_next:
                tokens_b = _random_next(documents, document_index, target_length - len(tokens_a), rng)
                i -= len(chunk) - a_end  # the sentences that were not used start the next instance
            else:
                tokens_b = [token for sentence in chunk[a_end:] for token in sentence]
            truncate_seq_pair(tokens_a, tokens_b, max_num_tokens, rng)
            token_ids = [vocabulary.cls_id, *tokens_a, vocabulary.sep_id, *tokens_b, vocabulary.sep_id]
            segment_ids = [0] * (len(tokens_a) + 2) + [1] * (len(tokens_b) + 1)
            positions, labels = create_masked_lm_predictions(
                token_ids, masked_lm_prob, max_predictions_per_seq, vocabulary, do_whole_word_mask, rng
            )
            instances.append(TrainingInstance(token_ids, segment_ids, is_random_next, positions, labels))
            chunk, chunk_length = [], 0
        i += 1
    return instances


def _random_next(documents: list[Document], document_index: int, target_length: int, rng: random.Random) -> list[int]:
    """Sentences of another document, from a random one on, until there are target_length tokens or the document ends.

    After ten draws of this very document it is taken all the same, and still labelled random.
    """
    for _ in range(10):
        random_index = rng.randint(0, len(documents) - 1)
        if random_index != document_index:
            break
    document = documents[random_index]
    tokens: list[int] = []
    for sentence in document[rng.randint(0, len(document) - 1) :]:
        tokens += sentence
        if len(tokens) >= target_length:
            break
    return tokens


def truncate_seq_pair(tokens_a: list[int], tokens_b: list[int], max_num_tokens: int, rng: random.Random) -> None:
    """Shortens the longer list (b if equal) by one token at a time, in place, each draw choosing front or back."""
    draw = rng.random
    bounds = [[0, len(tokens_a)], [0, len(tokens_b)]]
    lengths = [len(tokens_a), len(tokens_b)]
    while lengths[0] + lengths[1] > max_num_tokens:
        longer = 0 if lengths[0] > lengths[1] else 1
        lengths[longer] -= 1
        if draw() < 0.5:
            bounds[longer][0] += 1
        else:
            bounds[longer][1] -= 1
    tokens_a[:] = tokens_a[slice(*bounds[0])]
    tokens_b[:] = tokens_b[slice(*bounds[1])]


def create_masked_lm_predictions(
    token_ids: list[int],
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    vocabulary: MaskingVocabulary,
    do_whole_word_mask: bool,
    rng: random.Random,
) -> tuple[list[int], list[int]]:
    """Masks token_ids in place.

    The pieces of a word are masked together with `do_whole_word_mask`, but each piece on its own is replaced by [MASK]
    (80 %), kept (10 %) or replaced by any entry of the vocabulary (10 %).

    Returns:
      positions (sorted) and the ids that stood there.
    """
    special_ids, mask_id = (vocabulary.cls_id, vocabulary.sep_id), vocabulary.mask_id
    draw, randint, all_ids = rng.random, rng.randint, vocabulary.all_ids
    last = len(all_ids) - 1
    # Python 3 rounds half to even (50 tokens at 0.15 give 8); the count includes the special tokens.
    num_to_predict = min(max_predictions_per_seq, max(1, round(len(token_ids) * masked_lm_prob)))
    candidates: list[list[int]] = []
    continuation_ids = vocabulary.continuation_ids if do_whole_word_mask else ()
    for position, token in enumerate(token_ids):
        if token in special_ids:
            continue
        # A first piece cut off by truncation joins the word before the [SEP]: the original's quirk.
        if token in continuation_ids and candidates:
            candidates[-1].append(position)
        else:
            candidates.append([position])
    rng.shuffle(candidates)
    masked: list[tuple[int, int]] = []
    for positions in candidates:
        if len(masked) >= num_to_predict:
            break
        if len(masked) + len(positions) > num_to_predict:
            continue
        for position in positions:
            original = token_ids[position]
            if draw() < 0.8:
                token_ids[position] = mask_id
            elif draw() >= 0.5:
                token_ids[position] = all_ids[randint(0, last)]
            masked.append((position, original))
    masked.sort()
    return [position for position, _ in masked], [token for _, token in masked]


# --- writing ---------------------------------------------------------------------------------------------------------


def instance_features(instance: TrainingInstance, max_seq_length: int, max_predictions_per_seq: int) -> dict[str, list]:
    """The seven features of a record, padded with 0."""
    padding = max_seq_length - len(instance.token_ids)
    unused = max_predictions_per_seq - len(instance.masked_lm_ids)
    return {
        "input_ids": instance.token_ids + [0] * padding,
        "input_mask": [1] * len(instance.token_ids) + [0] * padding,
        "segment_ids": instance.segment_ids + [0] * padding,
        "masked_lm_positions": instance.masked_lm_positions + [0] * unused,
        "masked_lm_ids": instance.masked_lm_ids + [0] * unused,
        "masked_lm_weights": [1.0] * len(instance.masked_lm_ids) + [0.0] * unused,
        "next_sentence_labels": [int(instance.is_random_next)],
    }


def serialize_instance(instance: TrainingInstance, max_seq_length: int, max_predictions_per_seq: int) -> bytes:
    """The instance as a serialized tf.train.Example."""
    example = tf.train.Example()
    feature = example.features.feature
    for name, values in instance_features(instance, max_seq_length, max_predictions_per_seq).items():
        if name == "masked_lm_weights":
            feature[name].float_list.value.extend(values)
        else:
            feature[name].int64_list.value.extend(values)
    return example.SerializeToString()


def write_instance_to_example_files(
    instances: Sequence[TrainingInstance],
    max_seq_length: int,
    max_predictions_per_seq: int,
    output_files: Sequence[str],
    show: Callable[[TrainingInstance, dict], None] | None = None,
) -> list[int]:
    """Writes instance k to file k mod n; all files appear at once, when the last is complete.

    Args:
      show: called with each of the first 20 instances and its features.

    Returns:
      Records per file.

    Raises:
      tf.errors.OpError: a file can't be written; none of the new ones is left behind.
    """
    temporary = [f"{name}.{os.getpid()}.tmp" for name in output_files]
    for name in output_files:
        tf.io.gfile.makedirs(posixpath.dirname(name) or ".")
    counts = [0] * len(output_files)
    writers = []
    try:
        for name in temporary:
            writers.append(tf.io.TFRecordWriter(name))
        for number, instance in enumerate(tqdm(instances, desc="write", unit="instance", mininterval=1.0)):
            place = number % len(writers)
            writers[place].write(serialize_instance(instance, max_seq_length, max_predictions_per_seq))
            counts[place] += 1
            if show and number < _INSTANCES_SHOWN:
                show(instance, instance_features(instance, max_seq_length, max_predictions_per_seq))
        for writer in writers:
            writer.close()
        for name, final in zip(temporary, output_files, strict=True):
            tf.io.gfile.rename(name, final, overwrite=True)
    except BaseException:
        for name in temporary:
            if tf.io.gfile.exists(name):
                tf.io.gfile.remove(name)
        raise
    return counts


def log_instance(instance: TrainingInstance, features: dict, tokenizer: FullTokenizer) -> None:
    """Shows an instance in the log, as tokens and as what is written."""
    logging.info("*** Example ***")
    logging.info("tokens: %s", " ".join(tokenizer.convert_ids_to_tokens(instance.token_ids)))
    for name, values in features.items():
        logging.info("%s: %s", name, " ".join(map(str, values)))


def metadata_path(output_files: Sequence[str]) -> str:
    """Where the description of a run goes: beside its first file, under a name that no glob for the records matches."""
    folder, name = posixpath.split(output_files[0])
    return posixpath.join(folder, f"metadata-{name}.json")


def write_metadata(
    output_files: Sequence[str],
    counts: Sequence[int],
    instances: Iterable[TrainingInstance],
    documents: Sequence[Document],
    flags: dict,
) -> str:
    """Writes what was made, from what and how, as JSON; returns the path."""
    tokens = masked = random_next = number = 0
    for instance in instances:
        number += 1
        tokens += len(instance.token_ids)
        masked += len(instance.masked_lm_ids)
        random_next += instance.is_random_next
    with tf.io.gfile.GFile(flags["vocab_file"], "rb") as file:
        vocab_hash = hashlib.sha256(file.read()).hexdigest()
    description = {
        "instances": number,
        "instances_per_file": dict(zip(map(posixpath.basename, output_files), counts, strict=True)),
        "documents": len(documents),
        "sentences": sum(map(len, documents)),
        "masked_positions": masked,
        "random_next": random_next,
        "padding_share": round(1.0 - tokens / (number * flags["max_seq_length"]), 4),
        "vocab_sha256": vocab_hash,
        "flags": flags,
    }
    path = metadata_path(output_files)
    write_text_file(path, json.dumps(description, indent=2, sort_keys=True) + "\n")
    return path


# --- all of it -------------------------------------------------------------------------------------------------------


def check_settings(
    *,
    max_seq_length: int,
    max_predictions_per_seq: int,
    masked_lm_prob: float,
    short_seq_prob: float,
    dupe_factor: int,
    input_files: Sequence[str],
    output_files: Sequence[str],
) -> None:
    """Refuses settings that can't work, before anything is read.

    Raises:
      ValueError: names the flag and its value.
    """
    if max_seq_length < _SHORTEST_SEQUENCE:
        raise ValueError(
            f"--max_seq_length={max_seq_length}: {_SHORTEST_SEQUENCE} is the least that holds [CLS] a [SEP] b [SEP]."
        )
    if max_predictions_per_seq < 1:
        raise ValueError(f"--max_predictions_per_seq={max_predictions_per_seq} must be at least 1.")
    if not 0.0 < masked_lm_prob <= 1.0:
        raise ValueError(f"--masked_lm_prob={masked_lm_prob} must be above 0 and at most 1.")
    if not 0.0 <= short_seq_prob <= 1.0:
        raise ValueError(f"--short_seq_prob={short_seq_prob} must be from 0 to 1.")
    if dupe_factor < 1:
        raise ValueError(f"--dupe_factor={dupe_factor} must be at least 1.")
    if not output_files:
        raise ValueError("--output_file names no file.")
    if len(set(output_files)) < len(output_files):
        raise ValueError(f"--output_file names a file twice: {', '.join(output_files)}.")
    overwritten = set(output_files) & set(input_files)
    if overwritten:
        raise ValueError(f"--output_file would overwrite the input {', '.join(sorted(overwritten))}.")
