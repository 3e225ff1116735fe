"""Fills [MASK] in plain sentences: a quick look at what a pre-trained model knows.

Shape legend: B batch, S sequence length, P masks per text, V vocabulary.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_tf.data.token_rows import check_tokenizer, rows_of_pairs
from bert_tf.serving.predictor import Answerer
from bert_tf.store.head_config import softmax
from bert_tf.store.open import open_model
from bert_tf.system.checks import list_of_strings
from bert_tf.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bert_tf.models.task_models import BertForMaskedLM, BertForPreTraining

_TEXTS_PER_BATCH, _UNLIMITED = 32, 1 << 20


class _MaskFiller(Answerer):
    tasks = ("masked_lm",)


def fill_mask(
    model: "BertForPreTraining | BertForMaskedLM | str",
    tokenizer: Tokenizer | None = None,
    texts: Sequence[str] = (),
    top_k: int = 5,
) -> list[list[list[tuple[str, float]]]]:
    """The most probable tokens at every [MASK] of every text; all masks of a text are filled at once.

        guesses = fill_mask("google-bert/bert-base-cased", texts=["The capital of [MASK] is [MASK]."])
        guesses[0][1][0]  # the best guess for the second mask of the first text: (token, probability)

    Guesses are word pieces: one that begins with "##" continues the word before it.

    Args:
      model: a directory of any format, or a name on the hub, computed as by `Predictor`; or a model of Keras.
      tokenizer: that of the model; None: the directory's.
      texts: each with one or more literal "[MASK]".

    Returns:
      For each text, for each [MASK] in reading order, a list of top_k pairs (token, probability), the likeliest first.

    Raises:
      TypeError: there is no tokenizer; `texts` is a single string, or an entry is none; names its place.
      ValueError: the model has no masked-LM head, or a random one, as its weights lacked it; a text has no [MASK], or
        more word pieces than the model has positions; vocabulary and model don't match.
    """
    if isinstance(model, str | os.PathLike):
        filler = _MaskFiller(open_model(model, part="generator"))
        tokenizer, config, compute = tokenizer or filler.tokenizer, filler.files.config, filler.runtime.compute
    else:
        from bert_tf.models.initialize import check_trained

        if "masked_lm_positions" not in getattr(model, "known_inputs", ()):
            needs = "fill_mask needs a masked-LM head"
            raise ValueError(f"{needs}: {type(model).__name__} has none, BertForMaskedLM has one.")
        check_trained(model, unread=("cls/seq_relationship/",))
        config, compute = model.config, functools.partial(model, training=False)
    check_tokenizer(tokenizer)
    texts = list_of_strings(texts, "texts", "fill_mask(model, tokenizer, [text])")
    if tokenizer.vocab_size > config.vocab_size:
        sizes = f"has {tokenizer.vocab_size} tokens, but the model has only {config.vocab_size}"
        raise ValueError(f"The vocabulary {sizes} (vocab_size): it was trained with another vocabulary.")
    for text in texts:
        if tokenizer.mask_token not in text:
            raise ValueError(f"There is no {tokenizer.mask_token} in {text!r:.80}: write it for the word to guess.")
    rows, _ = rows_of_pairs([(tokenizer.encode_masked(text), ()) for text in texts], tokenizer, _UNLIMITED)
    if (longest := rows.lengths.max(initial=0)) > config.max_length:
        limit = f"at most {config.max_length}, as max_position_embeddings says"
        raise ValueError(f"The length of input_ids is {longest}, but must be {limit}.")
    guesses = []
    for start in range(0, len(texts), _TEXTS_PER_BATCH):
        chosen = np.arange(start, min(start + _TEXTS_PER_BATCH, len(texts)))
        guesses += _fill_batch(compute, tokenizer, rows.batch(chosen, int(rows.lengths[chosen].max())), top_k)
    return guesses


def _fill_batch(compute: Callable, tokenizer: Tokenizer, features: dict[str, np.ndarray], top_k: int) -> list:
    masks = [np.flatnonzero(ids == tokenizer.mask_id) for ids in features["input_ids"]]
    positions = np.zeros((len(masks), max(map(len, masks))), np.int32)  # [B, P]
    for row, masks_of_row in enumerate(masks):
        positions[row, : len(masks_of_row)] = masks_of_row
    outputs = compute({**features, "masked_lm_positions": positions})
    logits = outputs["masked_lm_logits"] if isinstance(outputs, dict) else outputs  # [B, P, V]
    # The embedding table may be larger than the vocabulary (some models round its size up): skip the extra rows.
    logits = np.asarray(logits, np.float64)[..., : tokenizer.vocab_size]
    guesses = []
    for row, masks_of_row in enumerate(masks):
        guesses.append([])
        for scores in logits[row, : len(masks_of_row)]:
            best = np.argsort(-scores, kind="stable")[:top_k].tolist()
            tokens = map(tokenizer.spell, tokenizer.convert_ids_to_tokens(best))
            guesses[-1].append([*zip(tokens, softmax(scores)[best].tolist(), strict=True)])
    return guesses
