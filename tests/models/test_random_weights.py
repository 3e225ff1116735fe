"""Random weights that are drawn late, or not at all, have the numbers of those drawn at once."""

import keras
import pytest
from helpers.tiny import TINY_CONFIG

from bert_tf.models import initialize, layers
from bert_tf.models.config import BertConfig
from bert_tf.models.task_models import BertForSequenceClassification, BertModel


def new_model(kind=BertForSequenceClassification, **config):
    keras.utils.set_random_seed(3)
    model = kind(BertConfig.from_dict({**TINY_CONFIG, **config}))
    model.build()
    return model


def bits(model) -> dict[str, bytes]:
    return {name: variable.numpy().tobytes() for name, variable in initialize.model_variables(model).items()}


@pytest.fixture
def drawn(monkeypatch):
    """The shapes of the random weights that were drawn."""
    shapes = []
    for kind in (keras.initializers.TruncatedNormal, keras.initializers.GlorotUniform):
        call = kind.__call__
        monkeypatch.setattr(
            kind,
            "__call__",
            lambda self, shape, dtype=None, call=call: shapes.append(tuple(shape)) or call(self, shape, dtype),
        )
    return shapes


def test_the_same_numbers_when_drawn_late():
    expected = bits(new_model())
    with layers.drawn_late():
        model = new_model()
        assert not model.bert.embeddings.word_embeddings.numpy().any()
        new_model()  # another model in the same context
    assert bits(model) == expected


def test_weights_of_a_checkpoint_are_not_drawn(drawn, tmp_path):
    keras.utils.set_random_seed(8)
    encoder = BertModel(BertConfig.from_dict(TINY_CONFIG))
    encoder.build()
    weights = initialize.model_weights(encoder)
    at_once = new_model()
    initialize.initialize(initialize.model_variables(at_once), weights)
    drawn.clear()
    with layers.drawn_late():
        late = new_model()
        initialize.initialize(initialize.model_variables(late), weights)
    assert bits(late) == bits(at_once)
    assert drawn == [(2, TINY_CONFIG["hidden_size"])]  # output_weights alone
    encoder.save_pretrained(str(tmp_path))
    drawn.clear()
    model = BertForSequenceClassification.from_pretrained(str(tmp_path), num_labels=5)
    assert drawn == [(5, TINY_CONFIG["hidden_size"])] and model.head.output_weights.numpy().all()


def test_normal_weights_are_not_drawn_twice(drawn):
    config = {"initializer_range": 0.5}
    at_once = new_model(**config)
    initialize.draw_normal_weights(at_once)
    drawn.clear()
    with layers.drawn_late():
        late = new_model(**config)
        initialize.draw_normal_weights(late)
    assert bits(late) == bits(at_once) and not drawn
