"""Fills [MASK] in plain sentences: a quick look at what a pre-trained model knows.

Shape legend: B batch, S sequence length, P masks per text, V vocabulary.
"""

from collections.abc import Sequence

import keras
import numpy as np
from scipy.special import softmax

from bert_tf.models.initialize import check_trained
from bert_tf.models.task_models import BertForMaskedLM, BertForPreTraining
from bert_tf.serving.base_predictor import list_of
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.unknown_tokens import watch_unknown

_TEXTS_PER_BATCH = 32


def fill_mask(
    model: BertForPreTraining | BertForMaskedLM, tokenizer: Tokenizer, texts: Sequence[str] = (), top_k: int = 5
) -> list[list[list[tuple[str, float]]]]:
    """The most probable tokens at every [MASK] of every text; all masks of a text are filled at once.

        guesses = fill_mask(model, tokenizer, ["The capital of [MASK] is [MASK]."])
        guesses[0][1][0]  # the best guess for the second mask of the first text: (token, probability)

    Each text is one segment, [CLS] text [SEP]. Guesses are word pieces: a piece that begins with "##" continues the
    word before it. Texts of different lengths share a batch; padding is masked out.

    Args:
      model: with trained weights (see `bert_tf.load_weights`).
      tokenizer: with the vocabulary and casing that the model was trained with.
      texts: sentences with one or more literal "[MASK]".
      top_k: guesses for each mask.

    Returns:
      For each text, for each [MASK] in reading order, a list of top_k pairs (token, probability), the most probable
      first.

    Raises:
      TypeError: there is no tokenizer, `texts` is a single string, or an entry is none.
      ValueError: the model has no masked-LM head, or a random one, as its weights lacked it; a text has no [MASK], or
        more word pieces than the model has positions; `top_k` is not between 1 and the size of the vocabulary;
        vocabulary and model don't match.
    """
    if not isinstance(tokenizer, Tokenizer):
        line = "fill_mask(model, bert_tf.read_tokenizer(path), texts)"
        raise TypeError(f"the second argument is the model's tokenizer, not {tokenizer!r:.80}; write {line}")
    texts = list_of(texts, "texts", "strings", "fill_mask(model, tokenizer, [text])")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{number}] must be a string, not {text!r:.80}")
    if "masked_lm_positions" not in getattr(model, "known_inputs", ()):
        raise ValueError(f"fill_mask needs a masked-LM head: {type(model).__name__} has none, BertForMaskedLM has one.")
    check_trained(model, unread=("cls/seq_relationship/",))
    vocab_size = tokenizer.vocab_size
    if vocab_size > model.config.vocab_size:
        raise ValueError(
            f"The vocabulary has {vocab_size} tokens, but the model has only {model.config.vocab_size} (vocab_size in "
            "bert_config.json): it was trained with another vocabulary."
        )
    needed = (*tokenizer.begin_tokens, *tokenizer.end_tokens, tokenizer.mask_token, tokenizer.unk_token)
    missing = [token for token in needed if token not in tokenizer.vocab]
    if missing:
        raise ValueError(f"The vocabulary has no {', '.join(missing)}.")
    if not 1 <= top_k <= vocab_size:
        raise ValueError(f"top_k={top_k} must be between 1 and the size of the vocabulary, {vocab_size}.")
    encoded = [_encode(tokenizer, text, model.config.max_length) for text in texts]
    watch_unknown(tokenizer, np.array([index for ids, _ in encoded for index in ids], np.int32))
    guesses = []
    for start in range(0, len(encoded), _TEXTS_PER_BATCH):
        guesses.extend(_fill_batch(model, tokenizer, encoded[start : start + _TEXTS_PER_BATCH], top_k))
    return guesses


def _encode(tokenizer: Tokenizer, text: str, max_length: int) -> tuple[list[int], list[int]]:
    """The token ids and segment ids of a text with masks."""
    if tokenizer.mask_token not in text:
        raise ValueError(
            f"There is no {tokenizer.mask_token} in {_shortened(text)}: write it in place of the word to guess."
        )
    ids, segments = tokenizer.build_inputs(tokenizer.encode_masked(text))
    if len(ids) > max_length:
        raise ValueError(
            f"{_shortened(text)} has {len(ids)} word pieces including special tokens; the model has positions for "
            f"{max_length} (max_position_embeddings). Shorten it."
        )
    return ids, segments


def _fill_batch(model, tokenizer: Tokenizer, encoded: list[tuple[list[int], list[int]]], top_k: int) -> list:
    masks = [np.flatnonzero(np.array(ids) == tokenizer.mask_id) for ids, _ in encoded]
    input_ids = np.full((len(encoded), max(len(ids) for ids, _ in encoded)), tokenizer.pad_id, np.int32)  # [B, S]
    input_mask, segment_ids = np.zeros_like(input_ids), np.zeros_like(input_ids)
    positions = np.zeros((len(encoded), max(map(len, masks))), np.int32)  # [B, P]
    for row, (ids, segments) in enumerate(encoded):
        input_ids[row, : len(ids)] = ids
        segment_ids[row, : len(ids)] = segments
        input_mask[row, : len(ids)] = 1
        positions[row, : len(masks[row])] = masks[row]
    features = {
        "input_ids": input_ids,
        "input_mask": input_mask,
        "segment_ids": segment_ids,
        "masked_lm_positions": positions,
    }
    outputs = model(features, training=False)
    logits = outputs if isinstance(model, BertForMaskedLM) else outputs["masked_lm_logits"]  # [B, P, V]
    # The embedding table may be larger than the vocabulary (some models round its size up): skip the extra rows.
    logits = np.asarray(keras.ops.convert_to_numpy(logits), np.float64)[..., : tokenizer.vocab_size]
    return [
        [_best(scores, tokenizer, top_k) for scores in logits[row, : len(places)]] for row, places in enumerate(masks)
    ]


def _best(scores: np.ndarray, tokenizer: Tokenizer, top_k: int) -> list[tuple[str, float]]:
    """The top_k (token, probability) of one mask's logits [V]."""
    probabilities = softmax(scores)
    order = np.argsort(-scores, kind="stable")[:top_k].tolist()
    return [
        (tokenizer.spell(token), float(probabilities[index]))
        for token, index in zip(tokenizer.convert_ids_to_tokens(order), order, strict=True)
    ]


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
