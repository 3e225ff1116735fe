"""Tokenizers as TensorFlow ops: only those of word pieces have such a form."""

from bert_tf.system.messages import some
from bert_tf.text.graph_wordpiece import GraphWordPiece
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import FullTokenizer


class NoGraphError(ValueError):
    """A tokenizer can't be part of a graph."""


def graph_of(tokenizer: Tokenizer, split_unknown: bool = False) -> GraphWordPiece:
    """The rules of a tokenizer as TensorFlow ops, with `encode` and `tokenize`.

    split_unknown: see `Tokenizer.encode_with_offsets`.
    """
    try:
        if tokenizer.added_tokens:
            names = some([token.content for token in tokenizer.added_tokens.tokens])
            raise ValueError(f"added tokens ({names}) can't be cut out inside a graph")
        if not isinstance(tokenizer, FullTokenizer):
            raise ValueError(f"the pieces of a {tokenizer.huggingface_class} can't be found inside a graph")
        return GraphWordPiece(tokenizer, split_unknown)
    except (KeyError, RuntimeError, ValueError) as error:  # without [UNK], or with a piece of more than 256 bytes
        source, reason = tokenizer.vocab_file or tokenizer.huggingface_class, str(error).rstrip(".")
        raise NoGraphError(f"{source}: {reason}. Exports of this model take ids.") from error
