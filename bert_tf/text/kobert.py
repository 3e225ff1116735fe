"""SentencePiece of Korean BERTs (KoBERT): the pieces' ids are lines of a vocab.txt beside the .model.

The rules are those of KoBertTokenizer (monologg/kobert) and KoBERTTokenizer (skt/kobert-base-v1), which descend from
Hugging Face's XLNetTokenizer: ALBERT's preprocessing, before it two quotation marks in a row become one, and a piece
that ends in a digit and a comma is split without beginning a new word.
"""

import posixpath
import re

from bert_tf.text.casing import TOKENIZER_CONFIG, Casing, first_existing
from bert_tf.text.sentence_piece import WORD_START, SentencePieceTokenizer, find_model
from bert_tf.text.tokenizer_files import read_tokenizer_config
from bert_tf.text.vocab import VOCAB, check_vocab, read_tokens, vocabulary_bytes

_TWO_QUOTES = re.compile("``|''")
# What tokenizer_config.json may say; nothing else has been published.
_ONLY = {"remove_space": True, "keep_accents": False, "sp_model_kwargs": {}}


class KoBertTokenizer(SentencePieceTokenizer):
    """The tokenizer of KoBERT.

        tokenizer = KoBertTokenizer("vocab.txt")  # with tokenizer_78b3253a26.model beside it
        tokenizer.tokenize("한국어 모델")  # ['▁한국', '어', '▁모델']

    Args:
      vocab_file: a vocab.txt with a .model beside it, or a .model whose own numbers are the ids.
      do_lower_case: as when the model was trained; the published ones are cased.

    Raises:
      ValueError: there is no .model, it can't be parsed, or a special token is missing; names the file.
    """

    cls_token, sep_token, unk_token, mask_token, pad_token = "[CLS]", "[SEP]", "[UNK]", "[MASK]", "[PAD]"
    graph_form = None  # its pieces are of composed characters, see `GraphSentencePiece`
    huggingface_class = "KoBertTokenizer"
    vocab_name, vocab_kind = f"{VOCAB} (with its .model)", "SentencePiece"

    def __init__(self, vocab_file: str, do_lower_case: bool = False):
        model_file, self._vocab_file = vocab_file, None
        if not vocab_file.endswith(".model"):
            self._vocab_file, model_file = vocab_file, find_model(posixpath.dirname(vocab_file))
            if model_file is None:
                raise ValueError(
                    f"{vocab_file} has pieces of SentencePiece ({WORD_START}), but there is no .model beside it: put "
                    "that of the same model there."
                )
        super().__init__(model_file, do_lower_case)
        self.vocab_file = vocab_file

    @classmethod
    def find_file(cls, directory: str) -> str | None:
        """A directory's vocab.txt, or else its SentencePiece model."""
        return first_existing(directory, (VOCAB,)) or find_model(directory)

    @classmethod
    def from_file(cls, vocab_file: str, casing: Casing) -> "KoBertTokenizer":
        """The tokenizer of a vocab.txt or .model."""
        directory = posixpath.dirname(vocab_file)
        config = read_tokenizer_config(directory)
        for name, value in _ONLY.items():
            if config.get(name, value) not in (value, None):
                raise ValueError(
                    f"{posixpath.join(directory, TOKENIZER_CONFIG)}: {name} is {config[name]}; only {value} is "
                    "supported."
                )
        return cls(vocab_file, bool(casing.do_lower_case) and casing.source != "the default")

    def _read_vocabulary(self, names: list[str]) -> list[int]:
        if self._vocab_file is None:
            return super()._read_vocabulary(names)
        self.inv_vocab = dict(enumerate(read_tokens(self._vocab_file)))
        self.vocab = self.pieces = {token: index for index, token in self.inv_vocab.items()}
        unknown = self.vocab.get(self.unk_token, 0)
        return [self.vocab.get(name, unknown) for name in names]

    def check_vocabulary(self) -> None:
        """See `vocab.check_vocab`."""
        if self._vocab_file is not None:
            check_vocab(self.vocab, self._vocab_file, ())

    def preprocess(self, text: str | bytes) -> str:
        """ALBERT's preprocessing of a text without two quotation marks in a row."""
        return super().preprocess(_with_quotes(text if isinstance(text, str) else text.decode("utf-8", "ignore")))

    def _encode_with_offsets(self, text: str, split_unknown: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        ids, offsets = super()._encode_with_offsets(text)
        pairs = _pairs_of_quotes(text)
        return ids, [(begin, end + (end > begin and end - 1 in pairs)) for begin, end in offsets]

    def _preprocess_with_origins(self, text: str) -> tuple[str, list[int]]:
        pairs = _pairs_of_quotes(text)
        places = [place for place in range(len(text)) if place - 1 not in pairs]
        prepared, origins = super()._preprocess_with_origins(_with_quotes(text))
        return prepared, [places[origin] for origin in origins]

    def _split_comma(self, piece: str) -> list[str]:
        first, *others = super()._split_comma(piece)
        if piece.startswith(WORD_START) or not first.startswith(WORD_START):
            return [first, *others]
        return [*([first[1:]] if len(first) > 1 else []), *others]

    @staticmethod
    def is_continuation(token: str) -> bool:
        """Whether a piece begins no word, and stands for text."""
        return not token.startswith((WORD_START, "[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]"))

    def files(self) -> dict[str, bytes]:
        """spiece.model and vocab.txt, as they were read."""
        vocabulary = {} if self._vocab_file is None else {VOCAB: vocabulary_bytes(self._vocab_file)}
        return {**super().files(), **vocabulary}


def _with_quotes(text: str) -> str:
    return _TWO_QUOTES.sub('"', text)


def _pairs_of_quotes(text: str) -> set[int]:
    """Where two quotation marks that become one begin."""
    return {found.start() for found in _TWO_QUOTES.finditer(text)}
