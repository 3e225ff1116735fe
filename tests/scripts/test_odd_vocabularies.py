"""A vocabulary as Google's Chinese one, with tokens that look blank or appear twice: trained with, written beside the
best model, read again, in a graph, and answered with, all on disk."""

import numpy as np
import tensorflow as tf
from helpers.op_by_op import op_by_op
from helpers.tiny import ONE_LAYER

from bert_tf import BertForSequenceClassification, Predictor
from bert_tf.models.config import BertConfig
from bert_tf.system import storage
from bert_tf.text.graphs import graph_of
from bert_tf.text.wordpiece import FullTokenizer

# The id of "good" is that of its last line, 9, and those after U+2028 would shift if it ended a line.
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2028", "good", "\u3000", "bad", "good", "##s", "\u5317"]
TEXTS = ["good bads \u5317", "\u2028good\u3000bad", "\u5317\u5317 goods", ""]


def test_model_and_graph_have_the_same_ids(tmp_path):
    pieces = [*PIECES, *(f"w{number}" for number in range(ONE_LAYER["vocab_size"] - len(PIECES)))]
    storage.write_text_file(str(tmp_path / "vocab.txt"), "".join(piece + "\n" for piece in pieces))
    content = (tmp_path / "vocab.txt").read_bytes()
    best = tmp_path / "best_model"
    config = BertConfig.from_dict({**ONE_LAYER, "initializer_range": 0.5})
    model = BertForSequenceClassification(config, labels=["down", "up"])
    model.build()
    model.save_pretrained(str(best), vocab_file=str(tmp_path / "vocab.txt"), do_lower_case=True)
    assert (best / "vocab.txt").read_bytes() == content
    predictor = Predictor(str(best))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"))
    assert tokenizer.encode(TEXTS[0]) == [9, 8, 10, 11] and tokenizer.vocab_size == ONE_LAYER["vocab_size"]
    assert predictor.tokenizer.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    predictor.model.save_pretrained(str(tmp_path / "again"), vocab_file=str(best / "vocab.txt"), do_lower_case=True)
    assert (tmp_path / "again" / "vocab.txt").read_bytes() == content
    with op_by_op():
        assert graph_of(predictor.tokenizer).encode(tf.constant(TEXTS)).to_list() == tokenizer.encode_batch(TEXTS)
    expected, found = (
        [answer["probabilities"]["up"] for answer in one.predict(TEXTS)]
        for one in (predictor, Predictor(str(tmp_path / "again")))
    )
    assert len({round(value, 5) for value in expected}) == len(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-6)
