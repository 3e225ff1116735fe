"""SentencePiece with ALBERT's own preprocessing (original: tokenization.py, preprocess_text and encode_pieces).

A text is stripped, runs of whitespace become a space, characters are decomposed (NFKD) and combining marks dropped,
also in cased models; then it is lower-cased, and the pieces of a unigram model (Kudo 2018) are found by the
`sentencepiece` library, which normalises further by rules in the model's file. `▁` marks the beginning of a word.

The original splits a piece that ends in a digit and a comma, `▁2019,`, into the pieces of `2019` and a comma. On Python
3 the split pieces begin a word even inside one (`9,` becomes `▁9` `,`), where Python 2 would have given `9` `,`; this
module follows the original as it runs on Python 3. Hugging Face's tokenizer does neither, splits at whitespace first,
and replaces `` and '' by ": a directory with its tokenizer.json gets its ids, so that models that were fine-tuned with
them see the same (`HuggingFaceSentencePiece`).
"""

import posixpath
import re
import string
import unicodedata
from collections.abc import Iterable

import sentencepiece

from bert_tf.system.local_files import names_in
from bert_tf.system.text_files import read_bytes, understood
from bert_tf.text.added_tokens import read_added_tokens
from bert_tf.text.casing import TOKENIZER, TOKENIZER_CONFIG, Casing, find_vocab_file, first_existing, is_there
from bert_tf.text.characters import text_of
from bert_tf.text.library_tokenizer import LibraryTokenizer, check_special_tokens, read_tokenizer_json
from bert_tf.text.sentence_piece_model import model_of_tokenizer_json
from bert_tf.text.tokenizer import WITHOUT_GRAPH, Tokenizer
from bert_tf.text.tokenizer_files import name_special_tokens, read_tokenizer_config, special_tokens_of

MODEL = "spiece.model"
WORD_START = "\u2581"
_RELEASED_MODEL = "30k-clean.model"
_SPECIAL_CHARACTERS = frozenset(string.punctuation) - frozenset("'<=>")
_INSIDE_A_WORD = frozenset(string.ascii_letters) | _SPECIAL_CHARACTERS


class SentencePieceTokenizer(Tokenizer):
    """ALBERT's tokenizer, by the rules of the original.

        tokenizer = SentencePieceTokenizer("30k-clean.model")
        tokenizer.tokenize("Hello world")  # ['▁hello', '▁world']

    Args:
      model_file: a SentencePiece model with ALBERT's special tokens.
      do_lower_case: as when the model was trained; all released models are uncased.

    Attributes:
      pieces: token -> id of the model's own pieces, to which `vocab` adds the added tokens.

    Raises:
      ValueError: the model can't be parsed, or lacks a special token; names the file.
    """

    cls_token, sep_token, unk_token, mask_token, pad_token = "[CLS]", "[SEP]", "<unk>", "[MASK]", "<pad>"
    begin_tokens, between_tokens, end_tokens, second_segment = ("[CLS]",), ("[SEP]",), ("[SEP]",), 1
    graph_form = "bert_tf.text.graph_sentence_piece.GraphSentencePiece"
    huggingface_class = "AlbertTokenizer"
    vocab_name, vocab_kind = f"{MODEL} (or {_RELEASED_MODEL})", "SentencePiece"

    def __init__(self, model_file: str, do_lower_case: bool = True):
        self.do_lower_case = do_lower_case
        self.model, self.vocab_file = read_bytes(model_file), model_file
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(self.model)
        except RuntimeError:
            raise ValueError(
                f"{model_file} is no SentencePiece model, or is damaged: take the .model file of the model itself."
            ) from None
        name_special_tokens(self, posixpath.dirname(model_file))
        names = list(map(self._processor.id_to_piece, range(self._processor.get_piece_size())))
        self._ids = self._read_vocabulary(names)
        self.set_added_tokens(read_added_tokens(model_file, self.vocab), self.preprocess, self._origins)
        check_special_tokens(self, model_file)
        self._special = frozenset(special_tokens_of(self))
        # The ids of pieces that end in a digit and a comma -> what they are split into, and its ids.
        self._split_pieces = {
            index: self._split_comma(piece) for piece, index in self.pieces.items() if _ends_in_digit_comma(piece)
        }
        self.split_ids = {
            index: [self.pieces.get(part, self.unk_id) for part in parts] for index, parts in self._split_pieces.items()
        }

    def _read_vocabulary(self, names: list[str]) -> list[int]:
        """Sets `vocab`, `inv_vocab` and `pieces`; returns the id of each piece of the model, here its number."""
        self.inv_vocab = dict(enumerate(names))
        self.vocab = self.pieces = {token: index for index, token in self.inv_vocab.items()}
        return list(self.inv_vocab)

    @classmethod
    def find_file(cls, directory: str) -> str | None:
        """A directory's tokenizer.json; else its SentencePiece model (spiece.model, 30k-clean.model, or the only .model
        file); else its vocab.txt, as the Chinese models have.

        Raises:
          ValueError: there are several SentencePiece models.
        """
        return first_existing(directory, (TOKENIZER,)) or find_model(directory) or find_vocab_file(directory)

    @classmethod
    def from_file(cls, vocab_file: str, casing: Casing) -> "SentencePieceTokenizer":
        """The tokenizer of a .model file."""
        directory = posixpath.dirname(vocab_file)
        if read_tokenizer_config(directory).get("keep_accents"):
            raise ValueError(
                f"{posixpath.join(directory, TOKENIZER_CONFIG)}: keep_accents needs the {TOKENIZER} of the model, "
                "since the original's rules drop accents."
            )
        return cls(vocab_file, casing.do_lower_case is not False)  # as all released models, if nothing says it

    @property
    def cased(self) -> bool:
        """Whether upper and lower case are distinguished."""
        return not self.do_lower_case

    # --- text to pieces ----------------------------------------------------------------------------------------------

    def preprocess(self, text: str | bytes) -> str:
        """`preprocess_text` in the model's casing."""
        return preprocess_text(text, self.do_lower_case)

    def score(self, index: int) -> float:
        """The logarithm of a piece's probability in the model."""
        return self._processor.get_score(index)

    def normalize_prepared(self, prepared: str) -> str:
        """What the model's own rules make of a preprocessed text; its pieces are parts of this."""
        return self._processor.normalize(prepared)

    def _words(self, text: str) -> list[str]:
        return self.normalize_prepared(self.preprocess(text)).replace(WORD_START, " ").split()

    def _tokenize(self, text: str) -> list[str]:
        pieces = []
        for piece in self._processor.encode(self.preprocess(text), out_type=str):
            pieces += self._split_comma(piece) if _ends_in_digit_comma(piece) else [piece]
        return pieces

    def _encode(self, text: str) -> list[int]:
        return self._ids_of(self._processor.encode(self.preprocess(text)))

    def encode_batch(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        if self.added_tokens:
            return super().encode_batch(texts)
        return [self._ids_of(numbers) for numbers in self._processor.encode([self.preprocess(text) for text in texts])]

    def _ids_of(self, numbers: list[int]) -> list[int]:
        """Ids of pieces by their numbers in the model, with commas behind digits split off."""
        ids = [self._ids[number] for number in numbers]
        if self.split_ids.keys().isdisjoint(ids):
            return ids
        return [part for index in ids for part in self.split_ids.get(index, (index,))]

    def _split_comma(self, piece: str) -> list[str]:
        return [*self._processor.encode(piece[:-1].replace(WORD_START, ""), out_type=str), ","]

    def _encode_with_offsets(self, text: str, split_unknown: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        prepared, origins = self._preprocess_with_origins(text)
        known, spans = {*origins}, self._spans(prepared)
        ids, offsets, place = [], [], 0
        for piece in self._processor.encode(prepared, out_type=str):
            index = self.pieces.get(piece, self.unk_id) if piece not in self._special else self.unk_id
            for part, size in self.parts(index, piece):
                covered = [span for span in spans[place : place + size] if span]
                place += size
                ids.append(part)
                if covered:
                    begin, end = origins[covered[0][0]], origins[covered[-1][1] - 1] + 1
                    while end < len(text) and end not in known and unicodedata.category(text[end])[0] == "M":
                        end += 1
                else:
                    begin = end = next((origins[span[0]] for span in spans[place:] if span), len(text))
                offsets.append((begin, end))
        return ids, offsets

    def _spans(self, prepared: str) -> list[tuple[int, int] | None]:
        """For each character of which the model makes pieces, the characters of `prepared` that it stands for, None for
        the beginning of a word."""
        normalized, starts = self._processor.normalize(prepared, with_offsets=True)
        place = int(normalized.startswith(WORD_START))  # which stands for nothing: the model begins each text with it
        spans = [(0, 0)] * place
        while place < len(normalized):
            start, after = starts[place], place + 1
            while after < len(normalized) and starts[after] == start:
                after += 1
            end = starts[after]
            while end > start + 1 and not self.normalize_prepared(prepared[end - 1]):
                end -= 1  # dropped by the model
            count = after - place
            # A symbol that the model takes as it is has a character for each; others stand for all.
            each = [(start + number, start + number + 1) for number in range(count)]
            spans += each if count == end - start else [(start, max(end, start + 1))] * count
            place = after
        return [None if char == WORD_START else span for char, span in zip(normalized, spans, strict=True)]

    def parts(self, index: int, piece: str) -> list[tuple[int, int]]:
        """(id, number of characters) of a piece, or of what it is split into."""
        if index not in self.split_ids:
            return [(index, len(piece))]
        parts, left = [], len(piece) - 1
        *numbers, comma = self.split_ids[index]
        for number, token in enumerate(self._split_pieces[index][:-1]):
            begins = token.startswith(WORD_START) and not (number == 0 and piece.startswith(WORD_START))
            size = min(len(token) - begins, left) if number < len(numbers) - 1 else left
            parts.append((numbers[number], size))
            left -= size
        return [*parts, (comma, 1)]

    def _preprocess_with_origins(self, text: str) -> tuple[str, list[int]]:
        """`preprocess`, with the character of `text` that each of its characters comes from."""
        text, chars = text_of(text), []
        for number, word in enumerate(re.finditer(r"\S+", text)):
            chars += [(" ", word.start() - 1)] if number else []
            for place, char in enumerate(word[0], start=word.start()):
                decomposed = unicodedata.normalize("NFKD", char)
                chars += [(part, place) for part in decomposed if not unicodedata.combining(part)]
        prepared = "".join(char for char, _ in chars)
        if not self.do_lower_case:
            return prepared, [place for _, place in chars]
        return prepared.lower(), [place for char, place in chars for _ in char.lower()]

    def _origins(self, text: str) -> list[int]:
        return self._preprocess_with_origins(text)[1]

    # --- pieces to text ----------------------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int]) -> str:
        """The text that the pieces spell, with single spaces between words."""
        special = {*special_tokens_of(self), *(token.content for token in self.added_tokens.tokens)}
        tokens = self.convert_ids_to_tokens(ids)
        text = "".join(f" {token} " if token in special else token for token in tokens)
        return " ".join(text.replace(WORD_START, " ").split())

    @staticmethod
    def is_continuation(token: str) -> bool:
        """Whether a piece continues a word: not if `is_start_piece`, and special tokens don't."""
        return not is_start_piece(token) and token not in ("[CLS]", "[SEP]", "[MASK]")

    def files(self) -> dict[str, bytes]:
        """spiece.model, as it was read."""
        return {MODEL: self.model}

    def settings(self) -> dict:
        """See `Tokenizer.settings`."""
        return {**super().settings(), "do_lower_case": self.do_lower_case, "keep_accents": False}


class HuggingFaceSentencePiece(LibraryTokenizer):
    """ALBERT's tokenizer by the rules of a Hugging Face tokenizer.json, with the ids that `transformers` gives.

    Its `files` have a spiece.model: the one beside it, or else one made of it.

    Raises:
      ValueError: the file is damaged, of another kind of tokenizer, or lacks a special token; names it.
    """

    cls_token, sep_token, unk_token, mask_token, pad_token = "[CLS]", "[SEP]", "<unk>", "[MASK]", "<pad>"
    begin_tokens, between_tokens, end_tokens, second_segment = ("[CLS]",), ("[SEP]",), ("[SEP]",), 1
    is_continuation = staticmethod(SentencePieceTokenizer.is_continuation)
    decode = SentencePieceTokenizer.decode
    huggingface_class = SentencePieceTokenizer.huggingface_class
    vocab_name, vocab_kind = SentencePieceTokenizer.vocab_name, SentencePieceTokenizer.vocab_kind
    find_file = SentencePieceTokenizer.find_file

    def __init__(self, vocab_file: str):
        directory = posixpath.dirname(vocab_file)
        values = {}
        name_special_tokens(self, directory)
        library, added = read_tokenizer_json(vocab_file, "Unigram", self, values.update)
        super().__init__(library, vocab_file, {TOKENIZER: read_bytes(vocab_file)}, added)
        beside = is_there(model_file := posixpath.join(directory, MODEL))
        first = "" if beside else f"let convert_checkpoint.py write the model with a {MODEL}, and there "
        advice = f"If a text may get other ids in rare cases, {first}move {TOKENIZER} away, so that {MODEL} is read by "
        advice += "the original's rules."
        try:
            self._files[MODEL] = read_bytes(model_file) if beside else model_of_tokenizer_json(values, self.pad_id)
        except ValueError as error:
            advice = f"Nor can a {MODEL} be made of it: {error}. {WITHOUT_GRAPH}"
        self._no_graph = f"{vocab_file}: a tokenizer with Hugging Face's rules can't be part of a graph. {advice}"

    def settings(self) -> dict:
        """See `Tokenizer.settings`."""
        return {**super().settings(), "do_lower_case": not self.cased}

    @classmethod
    def from_file(cls, vocab_file: str, casing: Casing) -> "HuggingFaceSentencePiece":
        """The tokenizer of a tokenizer.json, which says itself whether it lower-cases."""
        with understood(vocab_file):
            return cls(vocab_file)

    def to_graph(self, split_unknown: bool = False):
        """There is no graph: between pieces of equal scores the library decides by sums in double precision, word by
        word, which no op does.

        Raises:
          ValueError: always; says what to do instead.
        """
        raise ValueError(self._no_graph)


def preprocess_text(text: str | bytes, do_lower_case: bool) -> str:
    """What ALBERT's data tools do to a text before it is split (original: preprocess_text)."""
    text = " ".join(text_of(text).split())
    if not text.isascii():
        text = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return text.lower() if do_lower_case else text


def is_start_piece(piece: str) -> bool:
    """Whether a piece begins a word for whole-word and n-gram masking (original: _is_start_piece_sp): it begins with ▁
    or <, is a punctuation mark, or has a character that is neither an ASCII letter nor a punctuation mark. Here `'`,
    `=`, `>` and `<` are no punctuation marks."""
    return piece.startswith((WORD_START, "<")) or piece in _SPECIAL_CHARACTERS or not _INSIDE_A_WORD.issuperset(piece)


def _ends_in_digit_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def find_model(directory: str) -> str | None:
    """A directory's SentencePiece model (spiece.model, 30k-clean.model, or the only .model file), None without one.

    Raises:
      ValueError: it has several; names them.
    """
    if file := first_existing(directory, (MODEL, _RELEASED_MODEL, f"assets/{_RELEASED_MODEL}")):
        return file
    names = [name for name in names_in(directory) if name.endswith(".model")]
    if len(names) > 1:
        raise ValueError(
            f"{directory} has several SentencePiece models: {', '.join(names)}. Call the right one {MODEL}."
        )
    return posixpath.join(directory, names[0]) if names else None
