"""transformers' tokenizer of an ALBERT, made of a SentencePiece model."""

import pytest


def save_albert_tokenizer(model_file, directory):
    """Writes a directory with tokenizer.json; returns the tokenizer of transformers."""
    transformers = pytest.importorskip("transformers")
    from transformers.utils import sentencepiece_model_pb2_new

    proto = sentencepiece_model_pb2_new.ModelProto.FromString(model_file.read_bytes())
    tokenizer = transformers.AlbertTokenizer(
        vocab=[(piece.piece, piece.score) for piece in proto.pieces],
        _spm_precompiled_charsmap=proto.normalizer_spec.precompiled_charsmap,
    )
    tokenizer.save_pretrained(directory)
    return tokenizer
