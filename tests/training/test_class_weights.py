"""--class_weights: its forms, and what is refused."""

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from bert_tf.tasks.classification.label_checks import class_weights

LABELS = ["긍정", "부정", "b=c"]


def test_balanced_as_in_scikit_learn_where_a_class_that_never_occurs_is_said(caplog):
    ids = np.array([0] * 7 + [1] * 2 + [2])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=ids)
    np.testing.assert_allclose(class_weights("balanced", LABELS, ids), expected)
    with caplog.at_level("INFO", logger="absl"):
        found = class_weights("balanced", LABELS, np.array([0, 0, 0, 1]))
    assert found == pytest.approx([4 / (2 * 3), 2.0, 1.0])
    assert "occur nowhere in the training data and have weight 1: b=c" in caplog.text


def test_weights_by_name(caplog):
    with caplog.at_level("INFO", logger="absl"):
        assert class_weights("부정=2.5, b=c=0.5", LABELS, np.array([0])) == [1.0, 2.5, 0.5]
    assert "are not named and have weight 1: 긍정" in caplog.text
    assert "긍정 1, 부정 2.5, b=c 0.5" in caplog.text


@pytest.mark.parametrize("text, message", [
    ("good=1", "no such label: good. The labels are 긍정, 부정, b=c"),
    *((text, f"{text}: .* is not LABEL=WEIGHT with a label of its own and a positive number; or give balanced")
      for text in ("긍정", "긍정=x", "긍정=nan", "긍정=0", "긍정=1,긍정=2")),
])  # fmt: skip
def test_what_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        class_weights(text, LABELS, np.array([0]))
