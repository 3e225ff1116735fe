"""Fills [MASK] in plain sentences: a quick look at what a pre-trained model knows.

Shape legend: B batch, S sequence length, P masks per text, V vocabulary.
"""

from collections.abc import Sequence

import keras
import numpy as np

from bert_tf.data.token_rows import TokenRows, check_tokenizer, flatten
from bert_tf.models.initialize import check_trained
from bert_tf.models.task_models import BertForMaskedLM, BertForPreTraining
from bert_tf.store.head_config import softmax
from bert_tf.system.checks import list_of_strings
from bert_tf.text import watch_unknown
from bert_tf.text.tokenizer import Tokenizer

_TEXTS_PER_BATCH = 32


def fill_mask(
    model: BertForPreTraining | BertForMaskedLM, tokenizer: Tokenizer, texts: Sequence[str] = (), top_k: int = 5
) -> list[list[list[tuple[str, float]]]]:
    """The most probable tokens at every [MASK] of every text; all masks of a text are filled at once.

        guesses = fill_mask(model, tokenizer, ["The capital of [MASK] is [MASK]."])
        guesses[0][1][0]  # the best guess for the second mask of the first text: (token, probability)

    Guesses are word pieces: one that begins with "##" continues the word before it.

    Args:
      model, tokenizer: see `bert_tf.load_weights` and `bert_tf.read_tokenizer`.
      texts: each with one or more literal "[MASK]".

    Returns:
      For each text, for each [MASK] in reading order, a list of top_k pairs (token, probability), the likeliest first.

    Raises:
      TypeError: there is no tokenizer; `texts` is a single string, or an entry is none; names its place.
      ValueError: the model has no masked-LM head, or a random one, as its weights lacked it; a text has no [MASK], or
        more word pieces than the model has positions; vocabulary and model don't match.
    """
    check_tokenizer(tokenizer)
    texts = list_of_strings(texts, "texts", "fill_mask(model, tokenizer, [text])")
    if "masked_lm_positions" not in getattr(model, "known_inputs", ()):
        raise ValueError(f"fill_mask needs a masked-LM head: {type(model).__name__} has none, BertForMaskedLM has one.")
    check_trained(model, unread=("cls/seq_relationship/",))
    if tokenizer.vocab_size > model.config.vocab_size:
        sizes = f"has {tokenizer.vocab_size} tokens, but the model has only {model.config.vocab_size}"
        raise ValueError(f"The vocabulary {sizes} (vocab_size): it was trained with another vocabulary.")
    for text in texts:
        if tokenizer.mask_token not in text:
            raise ValueError(f"There is no {tokenizer.mask_token} in {text!r:.80}: write it for the word to guess.")
    ids, offsets = flatten([tokenizer.build_inputs(tokenizer.encode_masked(text))[0] for text in texts])
    watch_unknown(tokenizer, ids)
    rows = TokenRows(ids, offsets, np.diff(offsets).astype(np.int32), {}, pad_id=tokenizer.pad_id)
    guesses = []
    for start in range(0, len(texts), _TEXTS_PER_BATCH):
        chosen = np.arange(start, min(start + _TEXTS_PER_BATCH, len(texts)))
        guesses += _fill_batch(model, tokenizer, rows.batch(chosen, int(rows.lengths[chosen].max())), top_k)
    return guesses


def _fill_batch(model, tokenizer: Tokenizer, features: dict[str, np.ndarray], top_k: int) -> list:
    masks = [np.flatnonzero(ids == tokenizer.mask_id) for ids in features["input_ids"]]
    positions = np.zeros((len(masks), max(map(len, masks))), np.int32)  # [B, P]
    for row, masks_of_row in enumerate(masks):
        positions[row, : len(masks_of_row)] = masks_of_row
    outputs = model({**features, "masked_lm_positions": positions}, training=False)
    logits = outputs if isinstance(model, BertForMaskedLM) else outputs["masked_lm_logits"]  # [B, P, V]
    # The embedding table may be larger than the vocabulary (some models round its size up): skip the extra rows.
    logits = np.asarray(keras.ops.convert_to_numpy(logits), np.float64)[..., : tokenizer.vocab_size]
    guesses = []
    for row, masks_of_row in enumerate(masks):
        guesses.append([])
        for scores in logits[row, : len(masks_of_row)]:
            best = np.argsort(-scores, kind="stable")[:top_k].tolist()
            tokens = map(tokenizer.spell, tokenizer.convert_ids_to_tokens(best))
            guesses[-1].append([*zip(tokens, softmax(scores)[best].tolist(), strict=True)])
    return guesses
