"""The names of the original's tokenization.py."""

import bert_tf.families  # noqa: F401  # whose tokenizers `from_pretrained` finds, too
from bert_tf.text.characters import convert_to_unicode
from bert_tf.text.characters import is_control as _is_control
from bert_tf.text.characters import is_punctuation as _is_punctuation
from bert_tf.text.characters import is_whitespace as _is_whitespace
from bert_tf.text.tokenizer_files import convert_by_vocab, load_vocab, validate_case_matches_checkpoint
from bert_tf.text.wordpiece import BasicTokenizer, FullTokenizer, WordpieceTokenizer, whitespace_tokenize

convert_tokens_to_ids = convert_ids_to_tokens = convert_by_vocab
printable_text = convert_to_unicode

__all__ = [
    "BasicTokenizer",
    "FullTokenizer",
    "WordpieceTokenizer",
    "_is_control",
    "_is_punctuation",
    "_is_whitespace",
    "convert_by_vocab",
    "convert_ids_to_tokens",
    "convert_to_unicode",
    "convert_tokens_to_ids",
    "load_vocab",
    "printable_text",
    "validate_case_matches_checkpoint",
    "whitespace_tokenize",
]
