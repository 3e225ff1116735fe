"""What run_similarity.py writes: how alike texts are, and a picture of that beside the scores."""

import json
import posixpath
from collections.abc import Sequence

import numpy as np

from bert_tf.system.atomic import write_text_file
from bert_tf.tasks.similarity import metrics
from bert_tf.tasks.similarity.data import SimilarityExample


def write_predictions(output_dir: str, examples: Sequence[SimilarityExample], vectors: np.ndarray) -> list[str]:
    """Writes predictions.jsonl and test_results.tsv; returns their paths.

    The first has for each example its number `guid`, the `cosine` of its first two texts, and the `score`, from 0 to 1,
    if there is one. The second has the cosines alone.
    """
    lines, table = [], []
    for example, cosine in zip(examples, metrics.cosines(vectors).tolist(), strict=True):
        record = {"guid": example.guid, "cosine": cosine}
        if example.score is not None:
            record["score"] = example.score
        lines.append(json.dumps(record) + "\n")
        table.append(f"{cosine}\n")
    paths = [posixpath.join(output_dir, name) for name in ("predictions.jsonl", "test_results.tsv")]
    for path, content in zip(paths, (lines, table), strict=True):
        write_text_file(path, "".join(content))
    return paths


def write_picture(output_dir: str, scores: np.ndarray, vectors: np.ndarray, results: dict) -> None:
    """Writes similarity.png: the cosine of each pair of the dev set over its score."""
    from bert_tf.training import plots

    title = f"Dev set, step {results['global_step']}: Spearman {results['eval_spearman']:.3f}"
    path = posixpath.join(output_dir, "similarity.png")
    plots.plot_cosines(scores, metrics.cosines(vectors), path, title=title)
