"""Token rows, and masks drawn for them."""

import numpy as np
import tensorflow as tf

from bert_tf.pretraining import mask_rules
from bert_tf.pretraining.masking import Masking
from bert_tf.text.wordpiece import FullTokenizer

CLS, SEP, MASK = 2, 3, 4
VOCAB = {"[PAD]": 0, "[UNK]": 1, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK}
VOCAB |= {f"##{number}" if number % 3 == 0 else f"w{number}": number for number in range(5, 100)}


def tokenizer_of(vocab, kind=FullTokenizer):
    tokenizer = kind.__new__(kind)
    tokenizer.vocab, tokenizer.vocab_file, tokenizer.pad_id = vocab, "v.txt", 0
    return tokenizer


def masking(**settings):
    return Masking(tokenizer_of(VOCAB), **{"max_predictions_per_seq": 20, **settings})


def random_pairs(count, lengths, seed=0) -> list[tuple[list[int], list[int]]]:
    generator = np.random.default_rng(seed)
    pairs = []
    for length in generator.integers(*lengths, count):
        first = int(generator.integers(3, length - 1))
        ids = generator.integers(5, 100, length).tolist()
        pairs.append(([CLS, *ids[1 : first - 1], SEP], [*ids[first:-1], SEP]))
    return pairs


def rows_of(packed, length, most) -> dict[str, tf.Tensor]:
    """A list of pairs for each row -> the tensors as read from records."""
    ids, lengths = np.zeros((len(packed), length), "int32"), np.zeros((len(packed), 2 * most), "int32")
    labels = np.zeros((len(packed), most), "int32")
    for number, pairs in enumerate(packed):
        tokens = [token for pair in pairs for part in pair for token in part]
        ids[number, : len(tokens)] = tokens
        sizes = [len(part) for pair in pairs for part in pair]
        lengths[number, : len(sizes)] = sizes
        labels[number, : len(pairs)] = np.arange(len(pairs)) % 2
    rows = {"input_ids": ids, "segment_lengths": lengths, "next_sentence_labels": labels}
    return {name: tf.constant(value) for name, value in rows.items()}


def packed_rows(count, most=4, lengths=(5, 16), seed=0) -> list[list[tuple[list[int], list[int]]]]:
    sizes = np.random.default_rng(seed + 99).integers(1, most + 1, count)
    pairs = iter(random_pairs(int(sizes.sum()), lengths, seed))
    return [[next(pairs) for _ in range(size)] for size in sizes]


def mask(rows, seed=1, step=0, rule=mask_rules.bert, masking=masking, **settings) -> dict[str, np.ndarray]:
    features = rule(rows, seed, step, masking(**settings))
    return {name: value.numpy() for name, value in features.items()}
