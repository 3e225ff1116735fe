"""How good vectors of texts are (the correlation of their products with scores, and the search for partners), and what
run_similarity.py writes. Vectors of length 1 have cosines as products.

Shape legend: n examples, N texts of each, H hidden size.
"""

from collections.abc import Sequence

import numpy as np

from bert_tf.data.token_rows import GroupedRows
from bert_tf.tasks import outcome
from bert_tf.tasks.similarity.data import SimilarityExample

_RANKS, _DEPTH = (1, 5, 10), 10
_QUERIES_AT_ONCE = 1024


def products_of(vectors: np.ndarray, other: int = 1) -> np.ndarray:
    """float32 [n]: the products of the first and another text of vectors [n, N, H]."""
    return (vectors[:, 0] * vectors[:, other]).sum(-1)


def retrieval(vectors: np.ndarray, text_ids: np.ndarray) -> dict[str, float]:
    """Each first text searches its partners among the second and third texts of all examples.

    Args:
      vectors: [n, N, H]. text_ids: [n, N], equal numbers for equal texts; a text counts once, and may have several
        partners.

    Returns:
      By trec_eval's definitions (the library pytrec_eval), the mean over the different first texts: eval_accuracy_1, 5
      and 10, whether a partner is among the first k found; eval_mrr_10, of the rank of the first partner; and
      eval_ndcg_10.
    """
    import pytrec_eval

    queries, first = np.unique(text_ids[:, 0], return_index=True)
    texts, numbers = np.unique(text_ids[:, 1:].reshape(-1), return_index=True)
    corpus = vectors[:, 1:].reshape(-1, vectors.shape[-1])[numbers]
    partners = {str(query): {} for query in queries}
    for query, partner in text_ids[:, :2].tolist():
        partners[str(query)][str(partner)] = 1
    depth, run = min(_DEPTH, len(texts)), {}
    for begin in range(0, len(queries), _QUERIES_AT_ONCE):
        chosen = slice(begin, begin + _QUERIES_AT_ONCE)
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
        from bert_tf.tasks.classification.encode import METRICS

        scores, products = rows.labels["scores"], products_of(vectors)
        return {f"eval_{name}": float(METRICS[name](scores, products)) for name in ("spearman", "pearson")}
    results = retrieval(vectors, rows.labels["text_ids"])
    if rows.rows_per_example == 3:
        results["eval_triplet_accuracy"] = float((products_of(vectors) > products_of(vectors, 2)).mean())
    return results


def write_predictions(
    output_dir: str, examples: Sequence[SimilarityExample], vectors: np.ndarray, similarity: str = "cosine"
) -> list[str]:
    """Writes predictions.jsonl (see `outcome.write_predictions`) and test_results.tsv; returns their paths.

    The first has for each example its number `guid`, the `cosine` (or `dot`, as similarity says) of its first two
    texts, and the `score`, from 0 to 1, if there is one. The second has the cosines alone.
    """
    products = products_of(vectors).tolist()
    described = [
        {similarity: product} if example.score is None else {similarity: product, "score": example.score}
        for example, product in zip(examples, products, strict=True)
    ]
    return outcome.write_predictions(output_dir, "", examples, described, zip(products))
