"""A warning where a vocabulary does not fit the texts, whoever encodes them: too many of their tokens are unknown."""

import re

import numpy as np
from absl import logging

from bert_tf.text.tokenizer import Tokenizer, special_tokens_of

_MANY = 0.05  # of all tokens of texts
_FEWEST = 3  # fewer say nothing, unless all are unknown


def watch_unknown(tokenizer: Tokenizer, ids: np.ndarray) -> None:
    """Counts the unknown tokens of texts that were just encoded; warns, once for each tokenizer, if they are many.

    Args:
      ids: of whole rows or of texts alone, without [UNK] for words that have no piece.
    """
    found = tokenizer.__dict__.setdefault("_watched", {"tokens": 0, "unknown": 0, "is_warned": False})
    if found["is_warned"]:
        return
    ids = np.asarray(ids)
    special = [tokenizer.vocab.get(token) for token in special_tokens_of(tokenizer) if token != tokenizer.unk_token]
    special = [index for index in special if index is not None]
    found["tokens"] += len(ids) - np.count_nonzero(np.isin(ids, special))
    found["unknown"] += np.count_nonzero(ids == tokenizer.vocab.get(tokenizer.unk_token))
    share, unknown = found["unknown"] / max(found["tokens"], 1), found["unknown"]
    if share > _MANY and (unknown >= _FEWEST or unknown == found["tokens"]):
        found["is_warned"] = True
        logging.warning(
            f"{100 * share:.0f} % of the tokens of the texts are {tokenizer.unk_token}: "
            f"{tokenizer.vocab_file or 'the vocabulary'} does not fit them{_reason(tokenizer)}. The multilingual "
            "models know 104 languages, for example multi_cased_L-12_H-768_A-12."
        )


def _reason(tokenizer: Tokenizer) -> str:
    """What may be wrong with how texts are read, and the setting that changes it."""
    words = [token for token in tokenizer.vocab if not re.fullmatch(r"\[.*\]|<.*>", token)]
    has_capitals = any(re.search("[A-Z]", token) for token in words)
    is_latin = sum(re.search("[a-z]", token) is not None for token in words) > len(words) / 2
    if has_capitals and not tokenizer.cased:
        return " as they are read (lower-cased, but its pieces have capital letters; do_lower_case=False keeps them)"
    if tokenizer.cased and tokenizer.takes_strip_accents and is_latin and not has_capitals:
        return " as they are read (capital letters stay, but its pieces have none; do_lower_case=True lowers them)"
    if tokenizer.takes_strip_accents and tokenizer.basic_tokenizer.strip_accents:
        way = "accents are stripped, Korean syllables taken apart"
        return f" as they are read ({way}; strip_accents=False keeps them)"
    return ""
