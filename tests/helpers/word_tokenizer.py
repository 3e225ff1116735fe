"""A small tokenizer that is not WordPiece, with other special tokens, rows and padding."""

import re

from bert_tf.text.tokenizer import Tokenizer


class WordTokenizer(Tokenizer):
    """Words separated by spaces, with the rows of RoBERTa: `<s> a </s></s> b </s>`, one segment, padding 1."""

    cls_token, sep_token, unk_token, mask_token, pad_token = "<s>", "</s>", "<unk>", "<mask>", "<pad>"
    huggingface_class = "WordTokenizer"
    pad_id = 1
    begin_tokens, between_tokens, end_tokens, second_segment = ("<s>",), ("</s>", "</s>"), ("</s>",), 0

    def __init__(self, words=("a", "b", "c", "+d")):
        tokens = ("<s>", "<pad>", "</s>", "<unk>", *words, "<mask>")
        self.vocab = {token: number for number, token in enumerate(tokens)}
        self.inv_vocab = dict(enumerate(tokens))

    @classmethod
    def from_file(cls, vocab_file, casing):
        return cls()

    @property
    def cased(self):
        return True

    def tokenize(self, text):
        return text.split()

    def encode(self, text):
        return [self.vocab.get(token, self.unk_id) for token in self.tokenize(text)]

    def encode_with_offsets(self, text, split_unknown=False):
        found = list(re.finditer(r"\S+", text))
        return [self.vocab.get(word[0], self.unk_id) for word in found], [word.span() for word in found]

    def _decode(self, ids):
        return " ".join(self.convert_ids_to_tokens(ids)).replace(" +", "")

    def normalize(self, text):
        return " ".join(text.split())

    def files(self):
        return {"words.txt": "\n".join(self.vocab).encode()}

    @staticmethod
    def is_continuation(token):
        return token.startswith("+")
