"""Models and exports as version 0.1.0 (commit c2844e91) wrote them still answer with its numbers."""

import json
import tarfile

import numpy as np
from helpers.paths import GOLDEN
from scipy.special import softmax

from bert_tf import Predictor

FOLDER = GOLDEN / "first_release"
TEXTS = ["good film", "very bad , the films"]


def test_a_model_and_an_export_of_an_earlier_version(tmp_path):
    with tarfile.open(FOLDER / "export.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected = softmax(json.loads((FOLDER / "logits.json").read_text()), axis=1)
    for path in (FOLDER / "classifier", tmp_path / "export", tmp_path / "export" / "1"):
        predictor = Predictor(str(path))
        assert predictor.labels == ["negative", "positive"]
        answers = [[answer["probabilities"][label] for label in predictor.labels] for answer in predictor(TEXTS)]
        np.testing.assert_allclose(answers, expected, atol=1e-6)
