"""Batches of pre-training steps, random or read from records as run_pretraining.py does, and what they hold."""

import itertools

import numpy as np
import tensorflow as tf

from bert_tf.data import records
from bert_tf.families.config import BertConfig
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.pretraining_tasks import PretrainingTask
from bert_tf.training.run_directory import EarlierRun


def random_batch(config: BertConfig, batch_size: int, length: int, predictions: int) -> dict:
    """A batch of random ids with the features of a pre-training record."""
    generator = np.random.default_rng(0)
    features = {
        "input_ids": generator.integers(5, config.vocab_size, (batch_size, length)),
        "input_mask": np.ones((batch_size, length)),
        "segment_ids": np.repeat([[0] * (length // 2) + [1] * (length - length // 2)], batch_size, 0),
        "masked_lm_positions": np.sort(generator.integers(0, length, (batch_size, predictions))),
        "masked_lm_ids": generator.integers(5, config.vocab_size, (batch_size, predictions)),
        "next_sentence_labels": generator.integers(0, 2, (batch_size, 1)),
    }
    features = {name: tf.constant(value, tf.int32) for name, value in features.items()}
    return {**features, "masked_lm_weights": tf.ones((batch_size, predictions))}


def electra_batch(batch: dict) -> dict:
    """The same batch for an ELECTRA: it masks the tokens to predict, and has seeds for what is drawn for them."""
    ids, positions = batch["input_ids"].numpy(), batch["masked_lm_positions"].numpy()
    masked = ids.copy()
    np.put_along_axis(masked, positions, 4, axis=1)
    seeds = np.random.default_rng(1).integers(0, 2**31, (len(ids), 2))
    features = {"input_ids": masked, "original_ids": ids, "masked_lm_ids": np.take_along_axis(ids, positions, 1)}
    features |= {"sampling_seeds": seeds}
    batch = {name: value for name, value in batch.items() if name != "next_sentence_labels"}
    return batch | {name: tf.constant(value, tf.int32) for name, value in features.items()}


def repeated(batch: dict) -> tf.data.Dataset:
    """One batch again and again."""
    return tf.data.Dataset.from_tensors(batch).repeat()


def batches_of_records(
    files: str, config: BertConfig, batch_size: int, length: int, predictions: int, vocab_file: str, seed: int = 1
) -> tf.data.Dataset:
    """The endless batches that run_pretraining.py trains on, with the masks it draws if the records have none.

    Args:
      files: as in --input_file. length, predictions: as --max_seq_length and --max_predictions_per_seq.
    """
    settings = PretrainingSettings(
        files, "", do_train=True, nsp=True, max_seq_length=length, max_predictions_per_seq=predictions,
        train_batch_size=batch_size, vocab_file=vocab_file,
    )  # fmt: skip
    task = PretrainingTask(
        settings, config, "the benchmark's model", tf.distribute.OneDeviceStrategy("CPU:0"), EarlierRun("")
    )
    opened = task.data["input_file"]
    return records.training_batches(
        opened.index, opened.features, batch_size=batch_size, seed=seed, prepare=task.labeller(opened, seed)
    )


def records_of_texts(texts: str, folder: str, vocab_file: str, length: int) -> tuple[str, str]:
    """Makes records of the pairs of texts, without masks: (several pairs a row, one pair a row)."""
    files = f"{folder}/packed.tfrecord", f"{folder}/unpacked.tfrecord"
    for file, packs in zip(files, (True, False), strict=True):
        create_pretraining_data(
            texts, file, vocab_file, masking="dynamic", pack_sequences=packs, max_seq_length=length, show_progress=False
        )
    return files


def pairs_of(batch: dict) -> list[tuple[int, int]]:
    """(tokens, predictions) of each pair of a batch; padding is none."""
    numbers = batch.get("sequence_ids", batch["input_mask"]).numpy()  # of the pair in its row; 0: padding
    predicted = np.take_along_axis(numbers, batch["masked_lm_positions"].numpy(), axis=1)
    predicted = np.where(batch["masked_lm_weights"].numpy() > 0, predicted, 0)
    counts = [
        (int((row == number).sum()), int((row_predicted == number).sum()))
        for row, row_predicted in zip(numbers, predicted, strict=True)
        for number in range(1, numbers.max() + 1)
    ]
    return [(length, predictions) for length, predictions in counts if length]


def contents(batches: tf.data.Dataset, first: int, count: int) -> list[list[tuple[int, int]]]:
    """`pairs_of` of some batches."""
    return [pairs_of(batch) for batch in itertools.islice(batches, first, first + count)]
