"""What run_similarity.py writes: how alike texts are, and a picture of that beside the scores."""

import posixpath
from collections.abc import Sequence

import numpy as np

from bert_tf.system.atomic import write_text_file
from bert_tf.tasks import predictions
from bert_tf.tasks.similarity import metrics
from bert_tf.tasks.similarity.data import SimilarityExample


def write_predictions(
    output_dir: str, examples: Sequence[SimilarityExample], vectors: np.ndarray, as_csv: bool = False
) -> list[str]:
    """Writes predictions.jsonl (see `predictions.write`) and test_results.tsv; returns their paths.

    The first has for each example its number `guid`, the `cosine` of its first two texts, and the `score`, from 0 to 1,
    if there is one. The second has the cosines alone.
    """
    cosines = metrics.cosines(vectors).tolist()
    described = [
        {"cosine": cosine} if example.score is None else {"cosine": cosine, "score": example.score}
        for example, cosine in zip(examples, cosines, strict=True)
    ]
    table = posixpath.join(output_dir, "test_results.tsv")
    write_text_file(table, "".join(f"{cosine}\n" for cosine in cosines))
    return [*predictions.write(output_dir, "", examples, described, as_csv), table]


def write_picture(output_dir: str, scores: np.ndarray, vectors: np.ndarray, results: dict) -> None:
    """Writes similarity.png: the cosine of each pair of the dev set over its score."""
    from bert_tf.training import plots

    title = f"Dev set, step {results['global_step']}: Spearman {results['eval_spearman']:.3f}"
    path = posixpath.join(output_dir, "similarity.png")
    plots.plot_cosines(scores, metrics.cosines(vectors), path, title=title)
