"""Rows for words that a vocabulary of word pieces lacks, as run_domain.py adds them; they must be trained then."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from bert_tf.models.configuration.families import family_of_variables
from bert_tf.models.configuration.variable_names import word_table
from bert_tf.weights.tensor_files import Weights, base_name

OUTPUT_BIAS = "cls/predictions/output_bias"


def add_words(
    weights: Weights, vocabulary: Sequence[str], words: Sequence[str], tokenize: Callable[[str], list[str]]
) -> tuple[Weights, list[str], list[str]]:
    """Appends words to a vocabulary, and rows to the word table and the masked-LM bias.

    A row is the mean of those of the word's pieces so far, taken in float64 and rounded once; its Adam moments are 0.

    Words already in the vocabulary are left out. The weights' tables grow when they are read; the lines that are
    returned say what was done.
    """
    table = word_table(family_of_variables(weights.shapes).model_type)
    ids = {token.strip(): number for number, token in enumerate(vocabulary)}
    pieces = {word: tokenize(word) for word in words if word not in ids}
    first, size = len(vocabulary), max(weights.shapes[table][0], len(vocabulary) + len(pieces))

    def read(name: str) -> np.ndarray:
        value, of = weights.read(name), base_name(name)
        if of not in (table, OUTPUT_BIAS):
            return value
        grown = np.zeros((size, *value.shape[1:]), value.dtype)
        grown[: len(value)] = value
        for row, cut in enumerate(pieces.values(), first):
            grown[row] = value[[ids[piece] for piece in cut]].mean(axis=0, dtype=np.float64) if of == name else 0.0
        return grown

    grows = (table, OUTPUT_BIAS)
    shapes = {name: (size, *of[1:]) if base_name(name) in grows else of for name, of in weights.shapes.items()}
    report = [f"{word!r}: row {row}, the mean of {' '.join(pieces[word])}." for row, word in enumerate(pieces, first)]
    return dataclasses.replace(weights, shapes=shapes, reader=read), [*vocabulary, *pieces], report
