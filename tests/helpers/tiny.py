"""A minimal model and records for it."""

import pathlib

import keras
import numpy as np

from bert_tf import BertConfig, BertModel
from helpers.record_files import example_of, write_records

TINY_CONFIG = BertConfig(100, 32, 2, 2, 64, max_position_embeddings=32, type_vocab_size=2).to_dict()
# For runs of whole scripts, which spend most of their time tracing: a second layer would not test anything more.
ONE_LAYER = {**TINY_CONFIG, "num_hidden_layers": 1}


def write_encoder(folder: pathlib.Path, pieces: list[str], config=ONE_LAYER, do_lower_case: bool | None = True) -> None:
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces))
    keras.utils.set_random_seed(0)
    model = BertModel(BertConfig.from_dict(config))
    model.save_pretrained(str(folder / "encoder"), vocab_file=str(folder / "vocab.txt"), do_lower_case=do_lower_case)


def write_pretraining_records(path, count, max_seq_length=16, max_predictions_per_seq=3, seed=0, mask_of_last=1):
    """Random pre-training examples in the original's format; mask_of_last: input_mask in the last record."""
    generator, payloads = np.random.default_rng(seed), []
    for number in range(count):
        ids = generator.integers(5, TINY_CONFIG["vocab_size"], max_seq_length)
        positions = np.sort(generator.choice(np.arange(1, max_seq_length), max_predictions_per_seq, replace=False))
        lists = {
            "input_ids": ids,
            "input_mask": np.full(max_seq_length, mask_of_last if number == count - 1 else 1),
            "segment_ids": (np.arange(max_seq_length) > max_seq_length // 2).astype(int),
            "masked_lm_positions": positions,
            "masked_lm_ids": ids[positions],
            "next_sentence_labels": generator.integers(0, 2, 1),
            "masked_lm_weights": np.ones(max_predictions_per_seq),
        }
        payloads.append(example_of({name: value.tolist() for name, value in lists.items()}))
    write_records(path, payloads)
