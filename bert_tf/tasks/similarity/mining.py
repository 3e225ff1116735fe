"""Hard negatives: texts that a model takes for the partner of another one, although they are not.

The rule is that of sentence-transformers' mine_hard_negatives with relative_margin.
"""

import itertools
import json
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.system.storage import write_text_file
from bert_tf.tasks.similarity.data import Columns, SimilarityExample

COLUMNS = Columns("anchor", "positive", "negative")
_AT_ONCE = 1024  # anchors


def write_hard_negatives(
    path: str, examples: Sequence[SimilarityExample], vectors_of, count: int, margin: float
) -> None:
    """Writes JSON lines of anchor, positive and negative for pairs that belong together.

    Of the partners of all pairs, the negatives of a text are the `count` nearest to it that are neither its own nor it
    itself, and whose cosine with it is less than that of its own (of several the farthest), by `margin` of that.

    Args:
      vectors_of: texts -> float32 [n, H], of length 1.
    """
    partners: dict[str, dict[str, None]] = {}
    for example in examples:
        partners.setdefault(example.texts[0], {})[example.texts[1]] = None
    anchors, corpus = list(partners), list(dict.fromkeys(example.texts[1] for example in examples))
    number_of = {text: number for number, text in enumerate(corpus)}
    queries, texts = vectors_of(anchors), vectors_of(corpus)
    if count >= len(corpus):
        raise ValueError(f"--mine_hard_negatives={count}: --train_file has only {len(corpus)} different second texts.")
    lines, with_negatives, pairs = [], 0, sum(map(len, partners.values()))
    for begin in range(0, len(anchors), _AT_ONCE):
        scores = queries[begin : begin + _AT_ONCE] @ texts.T
        for anchor, row in zip(anchors[begin:], scores, strict=False):
            farthest = min(row[number_of[positive]] for positive in partners[anchor])
            row[row > farthest - abs(farthest) * margin] = -np.inf
            row[[number_of[text] for text in (*partners[anchor], anchor) if text in number_of]] = -np.inf
            best = [corpus[number] for number in np.argsort(-row, kind="stable")[:count] if row[number] > -np.inf]
            with_negatives += len(partners[anchor]) if best else 0
            lines += itertools.product([anchor], partners[anchor], best)
    if not lines:
        raise ValueError(
            f"--mine_hard_negatives: no other text is farther than the partner by --negatives_margin={margin:g} in any "
            f"of {pairs} pairs: give a smaller margin, or more pairs."
        )
    rows = (json.dumps(dict(zip(COLUMNS.texts, line, strict=True)), ensure_ascii=False) for line in lines)
    write_text_file(path, "".join(row + "\n" for row in rows))
    logging.info(
        "Hard negatives: %d of %d pairs have one or more, the others are left out; %d rows in %s, which is trained on.",
        with_negatives,
        pairs,
        len(lines),
        path,
    )
