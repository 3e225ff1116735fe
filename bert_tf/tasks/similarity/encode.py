"""Texts that are compared to token ids, a row for each text.

Shape legend: n examples, N texts of each.
"""

from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.token_rows import GroupedRows
from bert_tf.tasks.similarity.data import SimilarityExample
from bert_tf.text.tokenizer import Tokenizer


def encode_examples(
    examples: Sequence[SimilarityExample],
    tokenizer: Tokenizer,
    max_seq_length: int,
    lower: bool = False,
    prompt: str = "",
) -> GroupedRows:
    """Token rows of examples with the same number of texts, each text for itself: [CLS] text [SEP].

    Labels: text_ids int32 [n, N], equal numbers for equal texts; scores float32 [n], where examples have them.

    Args:
      max_seq_length: longer texts lose their last tokens.
      lower: see `sentence_settings.SentenceSettings`. prompt: what is put before every text.
    """
    token_rows.check_room(tokenizer, max_seq_length)
    texts = [(prompt + text).strip() for example in examples for text in example.texts]
    rows, truncated = token_rows.rows_of_texts(texts, tokenizer, max_seq_length, lower)
    if truncated:
        logging.warning(
            "Longer than max_seq_length=%d tokens, of which the %s are lost: %d of %d texts.",
            max_seq_length,
            tokenizer.lost,
            truncated,
            len(rows),
        )
    numbers = {}
    ids = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)
    labels = {"text_ids": ids.reshape(len(examples), -1)}
    if examples[0].score is not None:
        labels["scores"] = np.array([example.score for example in examples], np.float32)
    return GroupedRows(
        rows.ids, rows.offsets, rows.second_starts, labels, len(examples[0].texts), truncated, pad_id=rows.pad_id
    )
