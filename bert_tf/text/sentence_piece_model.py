"""A SentencePiece model from a Hugging Face tokenizer.json, whose Unigram model has the same pieces and scores.

The file is a protocol buffer, encoded by hand since the library's own classes need a newer runtime than TensorFlow has.
Field numbers (sentencepiece_model.proto): ModelProto pieces 1, trainer_spec 2, normalizer_spec 3; SentencePiece piece
1, score 2, type 3; TrainerSpec model_type 3, vocab_size 4, unk_id 40, bos_id 41, eos_id 42, pad_id 43; NormalizerSpec
precompiled_charsmap 2.
"""

import base64
import binascii
import struct
from collections.abc import Mapping

from bert_tf.system.example_bytes import pack
from bert_tf.text.tokenizer_files import parts_of

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_UNIGRAM = 1
_NONE = -1
_QUOTES = ({"String": "``"}, {"String": "''"})
_SPACES = {"Regex": " {2,}"}


def model_of_tokenizer_json(values: Mapping, pad_id: int) -> bytes:
    """The model that a tokenizer.json of an ALBERT was made of.

    A tokenizer.json doesn't say of which kind a piece is: those with the logarithm 0 of a probability, but for special
    tokens, are symbols that SentencePiece takes as they are.

    Args:
      values: the content of the file, whose model is Unigram. pad_id: of its padding token.

    Raises:
      ValueError: the file has rules or tokens that a SentencePiece model or ALBERT's preprocessing doesn't have.
    """
    model = values["model"]
    special = {token["id"] for token in values.get("added_tokens") or [] if token.get("special")}
    added = {token["id"] for token in values.get("added_tokens") or []}
    for wrong, reason in (
        (model.get("unk_id") is None, "no unknown token"),
        (model.get("byte_fallback"), "byte_fallback"),
        (added - special or max(added, default=0) >= len(model["vocab"]), "added tokens"),
    ):
        if wrong:
            raise ValueError(f"it has {reason}")
    _check_words(values.get("pre_tokenizer"))
    pieces = []
    for index, (piece, score) in enumerate(model["vocab"]):
        kind = _CONTROL if index in special or index == pad_id else _NORMAL if score else _USER_DEFINED
        kind = _UNKNOWN if index == model["unk_id"] else kind
        pieces.append(_text(1, _text(1, piece.encode()) + _float(2, score) + _number(3, kind)))
    numbers = {3: _UNIGRAM, 4: len(pieces), 40: model["unk_id"], 41: _NONE, 42: _NONE, 43: pad_id}
    trainer = b"".join(_number(field, number) for field, number in numbers.items())
    return b"".join(pieces) + _text(2, trainer) + _text(3, _text(2, _character_map(values.get("normalizer"))))


def _check_words(pre_tokenizer: Mapping | None) -> None:
    kinds = [part.get("type") for part in parts_of(pre_tokenizer, "pretokenizers")]
    metaspace = parts_of(pre_tokenizer, "pretokenizers")[-1:]
    begins = [part.get("prepend_scheme", "always") == "always" and part.get("add_prefix_space", True)
              and part.get("replacement") == "\u2581" for part in metaspace]  # fmt: skip
    if kinds not in (["WhitespaceSplit", "Metaspace"], ["Metaspace"]) or not all(begins):
        raise ValueError("it finds words in another way")


def _character_map(normalizer: Mapping | None) -> bytes:
    """What the model makes of characters, in SentencePiece's own form; empty: it leaves them."""
    parts = parts_of(normalizer, "normalizers")
    kinds = [part.get("type") for part in parts if part.get("type") != "Replace"]
    replaced = [part.get("pattern") for part in parts if part.get("type") == "Replace"]
    kinds = [kind for kind in kinds if kind != "Lowercase"]
    if kinds not in (["NFKD", "StripAccents", "Precompiled"], ["NFKD", "StripAccents"]) or any(
        pattern not in (*_QUOTES, _SPACES) for pattern in replaced
    ):
        raise ValueError("it normalizes text in another way")
    maps = [part.get("precompiled_charsmap") for part in parts if part.get("type") == "Precompiled"]
    try:
        return base64.b64decode(maps[0] if maps else "", validate=True)
    except (binascii.Error, TypeError):
        raise ValueError("its precompiled_charsmap is damaged") from None


def _number(field: int, value: int) -> bytes:
    return pack([8 * field, value % (1 << 64)])


def _float(field: int, value: float) -> bytes:
    return pack([8 * field + 5]) + struct.pack("<f", value)


def _text(field: int, value: bytes) -> bytes:
    return pack([8 * field + 2, len(value)]) + value
