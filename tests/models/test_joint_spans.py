"""The base of the joint heads for questions."""

import pytest

from bert_tf.models.electra.config import ElectraConfig
from bert_tf.models.electra.question_answering import ElectraForQuestionAnswering
from bert_tf.models.joint_spans import JointSpanModel

HOOKS = ("outside", "start_scores", "end_scores", "answerable_score")


@pytest.mark.parametrize("missing", [*HOOKS, HOOKS])
def test_a_head_without_all_its_scores_cannot_be_built(missing):
    missing = missing if isinstance(missing, tuple) else (missing,)
    own = {name: getattr(ElectraForQuestionAnswering, name) for name in HOOKS if name not in missing}
    kind = type(JointSpanModel)("Partial", (JointSpanModel,), own)
    config = ElectraConfig(vocab_size=100)
    with pytest.raises(TypeError, match=f"abstract class Partial .*{', '.join(sorted(missing))}".replace(", ", ".*")):
        kind(config, 5, 5, None, "spans")
    with pytest.raises(TypeError, match="abstract class JointSpanModel"):
        JointSpanModel(config, 5, 5, None, "spans")
