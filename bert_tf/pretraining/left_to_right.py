"""The left-to-right language model of the paper's ablations: each token is predicted from those before it.

Paper: Devlin et al. 2019, section 5.1, "LTR & No NSP". What it leaves open is decided as follows:

* Every token but [CLS] is predicted, the [SEP]s too, from the output one place before it; no token is masked or
  replaced. In packed rows nothing is predicted over the border of two sequences.
* The model has `"attention": "causal"` in its bert_config.json. The constraint therefore holds in fine-tuning as well,
  as in the paper; and as [CLS] sees nothing but itself, it is the last token ([SEP]) that the pooler reads, in
  pre-training with next sentence prediction and in fine-tuning.

The labels have the form of masked LM, with the positions of all tokens, so that model and loss are those of masked LM.

Shape legend: B batch, S sequence length, P predictions per row of masked records, M pairs per row.
"""

from collections.abc import Mapping

import tensorflow as tf

from bert_tf.pretraining.dynamic_masking import arrange_rows, write_tokens


@tf.autograph.experimental.do_not_convert
def predict_next_tokens(rows: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Labels of a batch of pre-training records, masked or unmasked.

    Args:
      rows: as for `dynamic_masking.mask_rows`, or the seven features of masked records, whose tokens are put back.

    Returns:
      the features of `dynamic_masking.mask_rows` with `masked_lm_positions`, `masked_lm_ids` and `masked_lm_weights`
      [B, S - 1]: places 0 to S - 2, the tokens after them, and 1 where there is one in the same sequence (the ids are
      0 where there is none). `pooled_positions` are those of the last token of each sequence.
    """
    if "segment_lengths" in rows:
        features, pair, starts = arrange_rows(rows)
        same = tf.equal(pair[:, 1:], pair[:, :-1])
        if "pooled_positions" in features:
            features["pooled_positions"] = tf.where(features["next_sentence_weights"] > 0, starts[:, 1:] - 1, 0)
    else:
        ids, is_prediction = rows["input_ids"], rows["masked_lm_weights"] > 0
        positions = tf.where(is_prediction, rows["masked_lm_positions"], ids.shape[1])
        features = dict(rows) | {"input_ids": write_tokens(ids, positions, rows["masked_lm_ids"])}
        same = True
    following = features["input_ids"][:, 1:]
    known = same & tf.cast(features["input_mask"][:, 1:], tf.bool)
    places = tf.range(following.shape[1], dtype=tf.int32)
    return features | {
        "masked_lm_positions": tf.tile(places[None], [following.shape[0], 1]),
        "masked_lm_ids": tf.where(known, following, 0),
        "masked_lm_weights": tf.cast(known, tf.float32),
    }
