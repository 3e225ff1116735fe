"""Tiny models of every family, each with a tokenizer of its kind."""

import pathlib

import keras
import pytest
import tokenizers

from bert_tf.families import family_named
from helpers.outputs import enlarge
from helpers.paths import GOLDEN

# family -> where its vocabulary is, and the largest id + 1
_VOCABULARIES = {
    "bert": (GOLDEN / "vocab.txt", 30522),
    "distilbert": (GOLDEN / "vocab.txt", 30522),
    "electra": (GOLDEN / "vocab.txt", 30522),
    "roberta": (GOLDEN / "tokenization" / "roberta" / "vocab.json", 601),
    "albert": (GOLDEN / "tokenization" / "albert" / "tiny.model", 560),
    "xlm-roberta": (GOLDEN / "tokenization" / "xlm-roberta" / "sentencepiece.bpe.model", 502),
}
NAMES = list(_VOCABULARIES)


def tiny_config(name: str, vocab_size: int = 100, max_length: int = 18, dropout: float | None = None, **others):
    """A configuration of two layers, of families that can have it with narrower embeddings."""
    kind = family_named(name).config_class
    if "embedding_size" in kind.keys():  # noqa: SIM118
        others = {"embedding_size": 24, **others}
    if dropout is not None:
        others |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return kind(
        vocab_size=vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=max_length + 2 * kind.padding_has_a_position, **others,
    )  # fmt: skip


def save_model(
    folder: pathlib.Path, name: str, model_class, *, seed=7, format="bert_tf", max_length=64, config=None, **arguments
) -> str:
    """Saves a model of a family with random weights, large enough for its outputs to differ; returns its directory.

    config: keys of the configuration. arguments: of the class.
    """
    vocab_file, vocab_size = _VOCABULARIES[name]
    if name in ("albert", "xlm-roberta") and format == "huggingface":
        # As on the hub: without a tokenizer.json, transformers needs a protobuf that is newer than TensorFlow's.
        save = save_albert_tokenizer if name == "albert" else save_xlm_roberta_tokenizer
        save(vocab_file, folder.parent / "tokenizer")
        vocab_file = folder.parent / "tokenizer" / "tokenizer.json"
    keras.utils.set_random_seed(seed)
    model = enlarge(model_class(tiny_config(name, vocab_size, max_length, **(config or {})), **arguments), seed)
    casing = {"do_lower_case": True} if family_named(name).tokenizer_class.takes_strip_accents else {}
    model.save_pretrained(str(folder), vocab_file=str(vocab_file), format=format, **casing)
    return str(folder)


def save_albert_tokenizer(model_file, directory):
    """Writes a directory with tokenizer.json; returns the tokenizer of transformers."""
    return _save_tokenizer("AlbertTokenizer", *pieces_of(model_file.read_bytes()), directory)


def save_xlm_roberta_tokenizer(model_file, directory):
    pieces, characters = pieces_of(model_file.read_bytes())
    first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    vocab, mask = [*first, *pieces[3:], ("<mask>", 0.0)], tokenizers.AddedToken("<mask>", lstrip=True, special=True)
    return _save_tokenizer("XLMRobertaTokenizer", vocab, characters or None, directory, mask_token=mask)


def pieces_of(model: bytes) -> tuple[list, bytes]:
    pytest.importorskip("transformers")
    from transformers.utils import sentencepiece_model_pb2_new

    proto = sentencepiece_model_pb2_new.ModelProto.FromString(model)
    return [(piece.piece, piece.score) for piece in proto.pieces], proto.normalizer_spec.precompiled_charsmap


def _save_tokenizer(name, vocab, characters, directory, **tokens):
    import transformers

    tokenizer = getattr(transformers, name)(vocab=vocab, _spm_precompiled_charsmap=characters, **tokens)
    tokenizer.save_pretrained(directory)
    return tokenizer
