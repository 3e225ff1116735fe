"""XLM-RoBERTa (Conneau et al. 2020): RoBERTa's layers, SentencePiece of 100 languages.

The tokenizer has no rules of its own but fairseq's ids: `<s>`, `<pad>`, `</s>` and `<unk>` come first, where the model
has `<unk>`, `<s>` and `</s>`; its other pieces follow, and `<mask>` comes last. A folder with a tokenizer.json gets the
ids of the `tokenizers` library, one with sentencepiece.bpe.model alone those of the `sentencepiece` library.
docs/models.md says where the two differ.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import ClassVar

from bert_tf.families import roberta
from bert_tf.families.config import arguments_of_size
from bert_tf.text.characters import TOKENIZER, as_text
from bert_tf.text.sentence_piece import HuggingFaceSentencePiece, SentencePieceTokenizer
from bert_tf.text.tokenizer import Tokenizer, WithOffsets, special_tokens_of
from bert_tf.text.tokenizer_files import WORD_START, Casing

_MODEL = "sentencepiece.bpe.model"
_FIRST = ("<unk>", "<s>", "</s>")  # of the model
_FIRST_IDS = (3, 0, 2)
_SHIFT = 1  # of the other pieces


class _Rows(Tokenizer):
    cls_token, sep_token, unk_token, mask_token, pad_token = "<s>", "</s>", "<unk>", "<mask>", "<pad>"
    begin_tokens, between_tokens, end_tokens, second_segment = ("<s>",), ("</s>", "</s>"), ("</s>",), 0
    huggingface_class, transformers_differs = "XLMRobertaTokenizer", ""
    vocab_name, model_name = _MODEL, _MODEL
    vocab_files = (TOKENIZER, "*.model")
    mask_takes_spaces = True

    @staticmethod
    def is_continuation(token: str) -> bool:
        return not token.startswith((WORD_START, "<s>", "</s>", "<unk>", "<mask>", "<pad>"))

    def settings(self) -> dict:
        names = ("do_lower_case", "keep_accents", "model_input_names")  # of ALBERT
        settings = {name: value for name, value in super().settings().items() if name not in names}
        return {**settings, "bos_token": self.cls_token, "eos_token": self.sep_token}


class FairseqSentencePiece(_Rows, SentencePieceTokenizer):
    """The ids of a sentencepiece.bpe.model.

        tokenizer = FairseqSentencePiece("sentencepiece.bpe.model")
        tokenizer.tokenize("안녕하세요 world")  # ['▁안녕하세요', '▁world']

    model_file: a SentencePiece model whose first pieces are <unk>, <s> and </s>.
    """

    splits_commas = False

    def __init__(self, model_file: str):
        super().__init__(model_file, do_lower_case=False)
        masks = [token for token in self.described_tokens if token.content == self.mask_token]
        self.mask_takes_spaces = masks[0].lstrip if masks else True

    @classmethod
    def from_file(cls, vocab_file: str, casing: Casing) -> "FairseqSentencePiece":
        return cls(vocab_file)

    def _read_vocabulary(self, names: list[str]) -> list[int]:
        if tuple(names[: len(_FIRST)]) != _FIRST:
            raise ValueError(f"{self.vocab_file}: its first pieces are not {', '.join(_FIRST)}, as XLM-R's are.")
        ids = [*_FIRST_IDS, *range(len(_FIRST) + _SHIFT, len(names) + _SHIFT)]
        self.pieces = dict(sorted(zip(names, ids, strict=True), key=lambda item: item[1]))
        special = {self.pad_token: 1, self.mask_token: len(names) + _SHIFT}
        self.vocab = dict(sorted({**self.pieces, **special}.items(), key=lambda item: item[1]))
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        return ids

    def preprocess(self, text: str | bytes) -> str:
        return as_text(text)

    def _preprocess_with_origins(self, text: str) -> tuple[str, list[int]]:
        return text, list(range(len(text)))


class XLMRobertaTokenizer(_Rows, HuggingFaceSentencePiece):
    """The ids of a tokenizer.json with a Unigram model; its `files` have the sentencepiece.bpe.model next to it."""

    def encode(self, text: str | bytes, add_special_tokens: bool = False) -> list[int]:
        ids = self.encode_with_offsets(as_text(text))[0]
        return [*self.begin_ids, *ids, *self.end_ids] if add_special_tokens else ids

    def tokenize(self, text: str | bytes) -> list[str]:
        tokens = super().tokenize(text)
        return tokens if self._names.isdisjoint(tokens) else self.convert_ids_to_tokens(self.encode(text))

    def encode_batch(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        texts = list(texts)
        special, rows = {self.vocab[name] for name in self._names}, super().encode_batch(texts)
        return [ids if special.isdisjoint(ids) else self.encode(text) for text, ids in zip(texts, rows, strict=True)]

    def encode_with_offsets(self, text: str, split_unknown: bool = False, dropped_marks: bool = True) -> WithOffsets:
        found = []
        for index, span in zip(*super().encode_with_offsets(text), strict=True):
            name = self.inv_vocab[index]
            # The names of these tokens are pieces of the model, too; in a text they are text.
            halves = (name[:1], name[1:]) if name in self._names else ()
            parts = [part.id for half in halves for part in self._library.model.tokenize(half)]
            found += [(part, span) for part in parts or [index]]
        return [index for index, _ in found], [span for _, span in found]

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        return frozenset({*special_tokens_of(self)} - {self.unk_token})


FairseqSentencePiece.in_json = XLMRobertaTokenizer


@dataclasses.dataclass(eq=False)
class XLMRobertaConfig(roberta.RobertaConfig):
    """Sizes and rates of an XLM-RoBERTa, whose arguments are those of a RoBERTa."""

    vocab_size: int = 250002

    model_type, title = "xlm-roberta", "XLM-RoBERTa"
    released_vocab_size = 250002
    sizes: ClassVar = {"xlm_roberta_base": arguments_of_size(12, 768), "xlm_roberta_large": arguments_of_size(24, 1024)}


FAMILY = dataclasses.replace(
    roberta.FAMILY,
    config_class=XLMRobertaConfig,
    tokenizer_class=FairseqSentencePiece,
    other_tokenizers=(XLMRobertaTokenizer,),
    own_prefix="roberta",
)
