"""The tokenizer of the original BERT release: the same rules, the same pieces (original: tokenization.py).

The rules about characters are those of characters.py. The passes over text are `str.translate` tables that call them
once per character, and the pieces of each word are cached, so that prose takes a dictionary lookup for each word.
"""

import functools
import itertools
import os
import posixpath
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from absl import logging

from bert_tf.system.checks import true_or_false
from bert_tf.text import characters, tokenizer_files
from bert_tf.text.tokenizer import PieceTokenizer, special_tokens_of

# The prefix of every piece of a word but the first.
CONTINUATION = "##"

_LONGEST_WORD = 200  # in code points


class _CharacterTable(dict):
    """A table for `str.translate` that calls `rule` the first time it sees a character."""

    def __init__(self, rule: Callable[[str], str | None]):
        super().__init__()
        self.rule = rule

    def __missing__(self, code: int) -> str | None:
        self[code] = result = self.rule(chr(code))
        return result


_WITHOUT_ACCENTS = _CharacterTable(characters.strip_accent)


def whitespace_tokenize(text: str) -> list[str]:
    """Splits at runs of Unicode whitespace, as the original's function of this name."""
    return text.split()


def join_pieces(pieces: Iterable[str]) -> str:
    """The text that pieces spell, single spaces between basic tokens (original: run_squad.py, tok_text)."""
    text = " ".join(pieces)
    return " ".join(text.replace(" " + CONTINUATION, "").replace(CONTINUATION, "").split())


class BasicTokenizer:
    """Splits text into words, punctuation marks and CJK characters (original: BasicTokenizer).

    In order: control characters, U+0000 and U+FFFD are dropped and whitespace becomes a space; CJK characters are
    separated; lower-casing; accents are stripped (NFD, then category Mn is dropped; nothing is recomposed, so Hangul
    syllables become Jamo); punctuation marks are separated. `[CLS]` in text is not special and becomes three tokens.

    Args:
      do_lower_case: lower-case the text.
      strip_accents: None follows do_lower_case, as in the original. False keeps é and composed Hangul in lower case.
      drop_unassigned: drop unassigned and private-use characters and surrogates, too, as ELECTRA does.
      tokenize_chinese_chars: separate CJK characters.
      do_basic_tokenize: False only splits at whitespace.
      never_split: words that stay as they are.
    """

    def __init__(
        self,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        drop_unassigned: bool = False,
        *,
        tokenize_chinese_chars: bool = True,
        do_basic_tokenize: bool = True,
        never_split: Iterable[str] = (),
    ):
        true_or_false(do_lower_case=do_lower_case, strip_accents=strip_accents, do_basic_tokenize=do_basic_tokenize)
        self.do_lower_case = do_lower_case and do_basic_tokenize
        self.strip_accents = do_basic_tokenize and (do_lower_case if strip_accents is None else strip_accents)
        self.drop_unassigned, self.tokenize_chinese_chars = drop_unassigned, tokenize_chinese_chars
        self.do_basic_tokenize, self.never_split = do_basic_tokenize, frozenset(never_split)
        rule = functools.partial(characters.clean, drop_unassigned=drop_unassigned, separate_cjk=tokenize_chinese_chars)
        split = characters.strip_accent_and_split_punctuation if self.strip_accents else characters.split_punctuation
        if not do_basic_tokenize:
            rule, split = characters.separate_whitespace, str
        self._cleaning, self._splitting = _CharacterTable(rule), _CharacterTable(split)

    def tokenize(self, text: str | bytes) -> list[str]:
        return self.split_cleaned(characters.convert_to_unicode(text).translate(self._cleaning))

    def words(self, text: str | bytes) -> list[str]:
        """The cleaned words between whitespace; `tokenize` is `split_cleaned` of each of them in turn."""
        return characters.convert_to_unicode(text).translate(self._cleaning).split()

    def split_cleaned(self, cleaned: str) -> list[str]:
        """Basic tokens of one or more of `words(text)`, separated by spaces."""
        if self.never_split and not self.never_split.isdisjoint(words := cleaned.split()):
            parts = ([word] if word in self.never_split else self._split(word) for word in words)
            return [token for part in parts for token in part]
        return self._split(cleaned)

    def _split(self, cleaned: str) -> list[str]:
        return self._decomposed(cleaned).translate(self._splitting).split()

    def _decomposed(self, cleaned: str) -> str:
        # The original lower-cases and normalises word by word. Whitespace stops both the context rule of sigma and the
        # reordering of combining marks, so processing the whole text at once gives the same.
        cleaned = cleaned.lower() if self.do_lower_case else cleaned
        return unicodedata.normalize("NFD", cleaned) if self.strip_accents and not cleaned.isascii() else cleaned

    def clean(self, text: str) -> list[tuple[str, int]]:
        """The characters that cleaning makes of `text`, and the character of `text` that each comes from."""
        return [(new, position) for position, char in enumerate(text) for new in self._cleaning[ord(char)] or ""]

    def normalize(self, text: str) -> str:
        """`text` as it is before punctuation marks are separated; whitespace and CJK characters have spaces."""
        text = self._decomposed(text.translate(self._cleaning))
        return text.translate(_WITHOUT_ACCENTS) if self.strip_accents and not text.isascii() else text

    def origins(self, text: str) -> list[int]:
        """The character of `text` that each character of `normalize(text)` comes from."""
        chars = self._normalized(self.clean(text))
        return [position for char, position in chars if not self.strip_accents or characters.strip_accent(char)]

    def tokenize_with_origins(self, text: str) -> list[tuple[str, list[int]]]:
        """`tokenize`, with the character of `text` that each character of a token comes from."""
        if not self.never_split:
            return self._tokens(self._normalized(self.clean(text)))
        tokens = []
        for is_space, group in itertools.groupby(self.clean(text), lambda pair: pair[0].isspace()):
            letters, positions = zip(*(word := list(group)), strict=True)
            if (token := "".join(letters)) in self.never_split:
                tokens.append((token, list(positions)))
            elif not is_space:
                tokens += self._tokens(self._normalized(word))
        return tokens

    def _normalized(self, chars: list[tuple[str, int]]) -> list[tuple[str, int]]:
        if self.do_lower_case:
            lowered = "".join(char for char, _ in chars).lower()  # the whole word: a sigma looks at both sides
            positions = [position for char, position in chars for _ in char.lower()]
            chars = list(zip(lowered, positions, strict=True))
        if self.strip_accents:
            chars = [(new, position) for char, position in chars for new in unicodedata.normalize("NFD", char)]
            # Runs of combining marks are sorted by their classes.
            runs = itertools.groupby(chars, lambda pair: unicodedata.combining(pair[0]) > 0)
            by_class = functools.partial(sorted, key=lambda pair: unicodedata.combining(pair[0]))
            chars = [pair for marked, run in runs for pair in (by_class(run) if marked else run)]
        return chars

    def _tokens(self, chars: list[tuple[str, int]]) -> list[tuple[str, list[int]]]:
        split = ((new, position) for char, position in chars for new in self._splitting[ord(char)] or "")
        groups = itertools.groupby(split, lambda pair: pair[0].isspace())
        tokens = [zip(*token, strict=True) for is_space, token in groups if not is_space]
        return [("".join(letters), list(positions)) for letters, positions in tokens]


class WordpieceTokenizer:
    """Splits words into the longest pieces of a vocabulary, from the left (original: WordpieceTokenizer).

    All pieces but a word's first are looked up with the prefix "##". A word for which this fails at any point, or that
    has more than max_input_chars_per_word code points, becomes one unk_token.

    Args:
      vocab: the tokens; read only when the tokenizer is created, so don't change it afterwards.
      unk_token: the token for a word that can't be split into pieces.
      max_input_chars_per_word: in code points.
      never_split: words that are one token or, if the vocabulary lacks them, unknown.
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        unk_token: str = "[UNK]",
        max_input_chars_per_word: int = _LONGEST_WORD,
        never_split: Collection[str] = (),
    ):
        if isinstance(vocab, str):  # in which every part of the string would be a piece
            raise TypeError(f"vocab must be that of a FullTokenizer, or load_vocab(path), not {vocab!r:.80}")
        self.vocab, self.unk_token = vocab, unk_token
        self.max_input_chars_per_word, self.never_split = max_input_chars_per_word, never_split
        # No match is longer than the longest token, so long words don't take quadratic time.
        self._longest = max(map(len, vocab), default=0)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Word pieces of `text`, which is only split at whitespace."""
        words = whitespace_tokenize(characters.convert_to_unicode(text))
        return [piece for word in words for piece in self.cut(word)]

    def cut(self, word: str) -> list[str]:
        if word in self.never_split:
            return [word if word in self.vocab else self.unk_token]
        if len(word) > self.max_input_chars_per_word:
            return [self.unk_token]
        if word in self.vocab:
            return [word]
        pieces = self._longest_pieces(word, is_whole=True)
        return [self.unk_token] if "" in pieces[-1:] else pieces

    def cut_with_sizes(self, word: str, split_unknown: bool = False) -> list[tuple[str, int]]:
        """`cut`, with each piece's number of characters.

        split_unknown: split an unknown word, however long, into known pieces and an unk_token for other characters.
        """
        pieces = self.cut(word)
        if pieces == [self.unk_token]:
            if not split_unknown:
                return [(self.unk_token, len(word))]
            pieces = self._longest_pieces(word)
        return [
            (piece, len(piece) - (len(CONTINUATION) if number else 0)) if piece else (self.unk_token, 1)
            for number, piece in enumerate(pieces)
        ]

    def _longest_pieces(self, word: str, is_whole: bool = False) -> list[str]:
        """The longest piece at each position, "" for one character that begins none; is_whole: none after that."""
        vocab, pieces, start = self.vocab, [], 0
        while start < len(word):
            prefix = CONTINUATION if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = prefix + word[start:end]
                if piece in vocab:
                    pieces.append(piece)
                    start = end
                    break
            else:
                pieces.append("")
                start = len(word) if is_whole else start + 1
        return pieces


class WordCache(dict):
    """Caches `compute(word)` for a number of words, then starts again empty, which adapts to a change of text."""

    def __init__(self, compute: Callable[[str], Sequence]):
        super().__init__()
        self.compute = compute

    def __missing__(self, word: str) -> Sequence:
        result = self.compute(word)
        if len(word) <= 64:  # longer "words" (text without spaces) rarely occur again
            if len(self) >= 1 << 18:  # about 60 MB; the words of 20 MB of novels fit
                self.clear()
            self[word] = result
        return result


class WordPieces(PieceTokenizer):
    """The base of tokenizers whose vocabulary is a list of word pieces, in a vocab.txt, and whose rows are BERT's.

    vocab_file: see `load_vocab`; ValueError if it has texts and no special token.
    """

    cls_token, sep_token, unk_token, mask_token, pad_token = "[CLS]", "[SEP]", "[UNK]", "[MASK]", "[PAD]"
    pad_id = 0
    begin_tokens, between_tokens, end_tokens, second_segment = ("[CLS]",), ("[SEP]",), ("[SEP]",), 1
    vocab_name = tokenizer_files.VOCAB

    def __init__(self, vocab_file: str):
        self.vocab_file = vocab_file = os.fspath(vocab_file)
        self.inv_vocab = dict(enumerate(tokenizer_files.read_tokens(vocab_file)))
        self.vocab = {token: index for index, token in self.inv_vocab.items()}
        self.read_names_and_side(posixpath.dirname(vocab_file))
        lacks_all = self.vocab.keys().isdisjoint(special := special_tokens_of(self))
        if lacks_all and any(len(token.split()) > 1 for token in self.vocab):  # the original reads lists of words
            raise ValueError(f"{vocab_file} has texts and no {', '.join(special)}: it is not a vocabulary.")

    def _decode(self, ids):
        return join_pieces(self.convert_ids_to_tokens(ids))

    @staticmethod
    def is_continuation(token: str) -> bool:
        return token.startswith(CONTINUATION)

    def files(self) -> dict[str, bytes]:
        return {tokenizer_files.VOCAB: tokenizer_files.vocabulary_bytes(self.vocab_file)}

    def check_vocabulary(self) -> None:
        tokenizer_files.check_vocab(self.vocab, self.vocab_file, special_tokens_of(self))
        if (index := self.vocab[self.pad_token]) != self.pad_id:
            # Only a warning: padding is masked out, so such a model works, and renumbering would break its weights.
            logging.warning(f"{self.vocab_file}: {self.pad_token} has id {index}, but {self.pad_id} pads the rows")


class FullTokenizer(WordPieces):
    """Text to word pieces: BasicTokenizer, then WordpieceTokenizer (original: FullTokenizer).

        tokenizer = FullTokenizer("vocab.txt")
        tokenizer.tokenize("John Johanson's house")  # ['john', 'johan', '##son', "'", 's', 'house']
        tokenizer.encode_batch(["one", "two words"])  # lists of ids
        model(tokenizer(["one", "two words"]))  # arrays of input_ids, input_mask, segment_ids

    As in the original, rows are padded with id 0, whatever the id of [PAD] in the vocabulary.

    Args:
      vocab_file: see `load_vocab`.
      do_lower_case: as when the model was trained.
      strip_accents: None follows do_lower_case, as the original does; see `BasicTokenizer`.
      max_input_chars_per_word: see `WordpieceTokenizer`.
      rules: further arguments of `BasicTokenizer`. Special tokens in never_split have no effect.

    Attributes:
      vocab: token -> id, in the order of the file; don't change it: words already seen are cached.
      inv_vocab: id -> token.
    """

    huggingface_class = "BertTokenizer"
    vocab_kind = "word pieces"
    takes_strip_accents = answers_by_words = True
    vocab_files = (tokenizer_files.VOCAB, f"assets/{tokenizer_files.VOCAB}", characters.TOKENIZER)
    drop_unassigned = False
    as_text = staticmethod(characters.convert_to_unicode)

    def __init__(
        self,
        vocab_file: str,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        *,
        max_input_chars_per_word: int = _LONGEST_WORD,
        never_split: Iterable[str] = (),
        **rules: bool,
    ):
        super().__init__(vocab_file)
        never_split = frozenset(never_split) - {*special_tokens_of(self)}
        basic = BasicTokenizer(do_lower_case, strip_accents, self.drop_unassigned, never_split=never_split, **rules)
        self.basic_tokenizer, self.do_lower_case = basic, basic.do_lower_case
        self.wordpiece_tokenizer = WordpieceTokenizer(self.vocab, self.unk_token, max_input_chars_per_word, never_split)
        added = characters.read_added_tokens(self.vocab_file, self.vocab)
        self.set_added_tokens(added, basic.normalize, basic.origins)
        self._pieces_of_word = WordCache(self._cut_word)
        self._ids_of_word = WordCache(self._encode_word)

    @classmethod
    def from_file(cls, vocab_file: str, casing: tokenizer_files.Casing) -> "FullTokenizer":
        """The tokenizer of a vocab.txt or tokenizer.json, with the rules of the files next to it."""
        lowers = casing.do_lower_case
        if lowers is None:
            lowers = tokenizer_files.lowers_by_pieces(vocab_file, tokenizer_files.read_tokens(vocab_file))
        return cls(vocab_file, lowers, casing.strip_accents, **tokenizer_files.word_rules(vocab_file))

    def _tokenize(self, text: str) -> list[str]:
        pieces_of_word = self._pieces_of_word
        return [piece for word in self.basic_tokenizer.words(text) for piece in pieces_of_word[word]]

    def _encode(self, text: str) -> list[int]:
        ids_of_word = self._ids_of_word
        return [index for word in self.basic_tokenizer.words(text) for index in ids_of_word[word]]

    def _encode_with_offsets(self, text: str, split_unknown: bool):
        ids, spans, kept = [], [], []
        for token, positions in self.basic_tokenizer.tokenize_with_origins(text):
            start = 0
            for piece, size in self.wordpiece_tokenizer.cut_with_sizes(token, split_unknown):
                covered = positions[start : start + size]
                ids.append(self.vocab[piece])
                spans.append((min(covered), max(covered) + 1))
                start += size
            kept += positions
        return ids, spans, kept

    def _words(self, text: str) -> list[str]:
        return self.basic_tokenizer.tokenize(text)

    def settings(self) -> dict:
        basic = self.basic_tokenizer
        settings = {name: getattr(basic, name) for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")}
        if not basic.do_basic_tokenize:
            settings["do_basic_tokenize"] = False
        if basic.never_split:
            settings["never_split"] = sorted(basic.never_split)
        if (longest := self.wordpiece_tokenizer.max_input_chars_per_word) != _LONGEST_WORD:
            settings["max_input_chars_per_word"] = longest
        return {**super().settings(), **settings}

    def _cut_word(self, word: str) -> tuple[str, ...]:
        cut = self.wordpiece_tokenizer.cut
        return tuple(piece for token in self.basic_tokenizer.split_cleaned(word) for piece in cut(token))

    def _encode_word(self, word: str) -> tuple[int, ...]:
        return tuple(tokenizer_files.convert_by_vocab(self.vocab, self._cut_word(word)))


class ElectraTokenizer(FullTokenizer):
    """ELECTRA's (original: model/tokenization.py): characters of every category C* are dropped, and strip_accents only
    matters when lower-casing."""

    drop_unassigned = True

    def __init__(self, vocab_file: str, do_lower_case: bool = True, strip_accents: bool | None = None, **rules):
        super().__init__(vocab_file, do_lower_case, strip_accents if do_lower_case else False, **rules)


class RobertaWordPieceTokenizer(FullTokenizer):
    """Word pieces for a RoBERTa, as KLUE's: rows of one segment, padded with the padding token."""

    second_segment = 0

    def __init__(self, vocab_file: str, do_lower_case: bool = True, strip_accents: bool | None = None, **rules):
        super().__init__(vocab_file, do_lower_case, strip_accents, **rules)
        self.pad_id = self.special_id(self.pad_token)
