"""Hard negatives beside their definition."""

import json

import numpy as np
import pytest

from bert_tf.tasks.similarity import encode
from bert_tf.tasks.similarity.data import SimilarityExample
from bert_tf.tasks.similarity.encode import write_hard_negatives

# Text -> its vector. "a" has two partners, of which "far" counts for the margin.
ANGLES = {"a": 0, "near": 10, "far": 40, "b": 90, "of b": 95, "c": 70, "of c": 60, "itself": 180}
ANGLES["twin"] = ANGLES["near"]
PAIRS = [("a", "near"), ("a", "far"), ("b", "of b"), ("c", "of c"), ("itself", "itself"), ("b", "of b")]
PAIRS += [("near", "twin")]


def vectors_of(texts):
    angles = np.deg2rad([ANGLES[text] for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)


def mined(path, count, margin):
    examples = [SimilarityExample(str(number), pair) for number, pair in enumerate(PAIRS)]
    write_hard_negatives(str(path), examples, vectors_of, count, margin)
    return [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("margin", [0.0, 0.05, 0.3])
def test_negatives_are_those_of_the_definition(tmp_path, count, margin, monkeypatch):
    monkeypatch.setattr(encode, "_AT_ONCE", 2)
    expected, corpus = [], list(dict.fromkeys(pair[1] for pair in PAIRS))
    for anchor in dict.fromkeys(pair[0] for pair in PAIRS):
        own = list(dict.fromkeys(pair[1] for pair in PAIRS if pair[0] == anchor))
        cosine = {text: float((vectors_of([anchor]) @ vectors_of([text]).T)[0, 0]) for text in corpus}
        farthest = min(cosine[text] for text in own)
        allowed = [text for text in corpus if text not in (*own, anchor) and cosine[text] <= farthest * (1 - margin)]
        best = sorted(allowed, key=cosine.get, reverse=True)[:count]
        expected += [(anchor, positive, negative) for positive in own for negative in best]
    assert mined(tmp_path / "mined.jsonl", count, margin) == expected
    assert {line[0] for line in expected} == {"a", "b", "c", "itself", "near"}


def test_a_margin_that_leaves_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="farther than the partner by --negatives_margin=3 in any of 6 pairs"):
        mined(tmp_path / "mined.jsonl", 1, 3)
    with pytest.raises(ValueError, match="^--mine_hard_negatives=6: --train_file has only 6 different second texts"):
        mined(tmp_path / "mined.jsonl", 6, 0)
    assert not list(tmp_path.iterdir())
