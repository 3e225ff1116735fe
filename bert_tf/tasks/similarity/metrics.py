"""How good vectors are, what is written of them, and hard negatives.

Shape legend: n examples, N texts of each.
"""

import itertools
import json
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.data.token_rows import GroupedRows
from bert_tf.system.storage import write_text_file
from bert_tf.tasks.similarity.data import Columns, SimilarityExample

_RANKS, _DEPTH = (1, 5, 10), 10
_AT_ONCE = 1024  # queries or anchors


def products_of(vectors: np.ndarray, other: int = 1) -> np.ndarray:
    """float32 [n]: the products of the first and another text of vectors [n, N, H]."""
    return (vectors[:, 0] * vectors[:, other]).sum(-1)


def retrieval(vectors: np.ndarray, text_ids: np.ndarray) -> dict[str, float]:
    """Scores of a search, with each first text, for its partners among the second and third texts of all examples.

    By trec_eval's definitions; the mean over the different first texts of eval_accuracy_1, 5 and 10 (whether a partner
    is among the first k), eval_mrr_10 and eval_ndcg_10.

    vectors: [n, N, H]. text_ids: [n, N], equal numbers for equal texts: each counts once, and can have partners.
    """
    import pytrec_eval

    queries, first = np.unique(text_ids[:, 0], return_index=True)
    texts, numbers = np.unique(text_ids[:, 1:].reshape(-1), return_index=True)
    corpus = vectors[:, 1:].reshape(-1, vectors.shape[-1])[numbers]
    partners = {str(query): {} for query in queries}
    for query, partner in text_ids[:, :2].tolist():
        partners[str(query)][str(partner)] = 1
    depth, run = min(_DEPTH, len(texts)), {}
    for begin in range(0, len(queries), _AT_ONCE):
        chosen = slice(begin, begin + _AT_ONCE)
        scores = vectors[first[chosen], 0] @ corpus.T
        best = np.argpartition(-scores, depth - 1, axis=-1)[:, :depth]
        for query, row, chosen_texts in zip(queries[chosen], scores, best, strict=True):
            run[str(query)] = {str(texts[number]): float(row[number]) for number in chosen_texts}
    names = {f"success_{rank}": f"eval_accuracy_{rank}" for rank in _RANKS}
    names |= {"recip_rank": "eval_mrr_10", "ndcg_cut_10": "eval_ndcg_10"}
    measures = {f"success.{','.join(map(str, _RANKS))}", "recip_rank", f"ndcg_cut.{_DEPTH}"}
    results = pytrec_eval.RelevanceEvaluator(partners, measures).evaluate(run)
    return {name: float(np.mean([values[key] for values in results.values()])) for key, name in names.items()}


def evaluate(rows: GroupedRows, vectors: np.ndarray) -> dict[str, float]:
    """eval_spearman and eval_pearson, by SciPy, where examples have scores (0 where nothing varies), else those of
    `retrieval`; of triplets eval_triplet_accuracy, too: the share of those whose second text is nearer to the first
    than the third is."""
    if "scores" in rows.labels:
        from bert_tf.tasks.classification.metrics import METRICS

        scores, products = rows.labels["scores"], products_of(vectors)
        return {f"eval_{name}": float(METRICS[name](scores, products)) for name in ("spearman", "pearson")}
    results = retrieval(vectors, rows.labels["text_ids"])
    if rows.rows_per_example == 3:
        results["eval_triplet_accuracy"] = float((products_of(vectors) > products_of(vectors, 2)).mean())
    return results


# --- hard negatives ---------------------------------------------------------------------------------------------------


MINED_COLUMNS = Columns("anchor", "positive", "negative")


def write_hard_negatives(
    path: str, examples: Sequence[SimilarityExample], vectors_of, count: int, margin: float
) -> None:
    """Writes JSON lines of anchor, positive and negative for pairs that belong together.

    The negatives of a text are the `count` nearest of other texts' partners whose cosine with it is less than that of
    its farthest partner, by `margin` of that.

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
    rows = (json.dumps(dict(zip(MINED_COLUMNS.texts, line, strict=True)), ensure_ascii=False) for line in lines)
    write_text_file(path, "".join(row + "\n" for row in rows))
    message = "Hard negatives: %d of %d pairs have one or more, the others are left out; %d rows in %s, which is "
    logging.info(message + "trained on.", with_negatives, pairs, len(lines), path)
