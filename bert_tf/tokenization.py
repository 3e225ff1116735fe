"""The tokenizer of the original BERT release: the same rules, the same pieces (original: tokenization.py).

Text is cleaned and split into basic tokens (words, punctuation marks, CJK characters), and each basic token is cut
into word pieces of a vocabulary, longest match first. Every rule about a character is written once, as a predicate
below; the passes over text are `str.translate` tables that ask the predicates once a character, and what a word between
spaces comes to is remembered, so that prose is tokenized at the speed of dictionary lookups, with the same results.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

from absl import logging

from bert_tf.text_files import read_text_lines

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# The blocks the original calls CJK: each such character becomes a token of its own. Hangul, Hiragana and Katakana are
# left out on purpose, their words are separated by spaces or cut by the vocabulary.
_CJK_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)

_COMPOSED_HANGUL = re.compile("[\uac00-\ud7a3]")

# Released models whose directory name tells the casing (original: validate_case_matches_checkpoint).
_UNCASED_MODELS = (
    "uncased_L-24_H-1024_A-16",
    "uncased_L-12_H-768_A-12",
    "multilingual_L-12_H-768_A-12",
    "chinese_L-12_H-768_A-12",
)
_CASED_MODELS = ("cased_L-12_H-768_A-12", "cased_L-24_H-1024_A-16", "multi_cased_L-12_H-768_A-12")

_CACHED_WORDS = 1 << 18  # about 60 MB when full; the words of 20 MB of novels fit
_CACHED_WORD_LENGTH = 64  # longer "words" (text without spaces) hardly ever come again


# ---- rules about one character --------------------------------------------------------------------------------------


def _is_whitespace(char: str) -> bool:
    """True for space, tab, newline, carriage return and category Zs."""
    return char in (" ", "\t", "\n", "\r") or unicodedata.category(char) == "Zs"


def _is_control(char: str) -> bool:
    """True for categories Cc and Cf, except tab, newline and carriage return, which count as whitespace."""
    return char not in ("\t", "\n", "\r") and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char: str) -> bool:
    """True for categories P* and for every ASCII sign that is no letter, digit or space ($ and ^ too, which Unicode
    calls symbols)."""
    code = ord(char)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(char).startswith("P")


def _is_cjk(char: str) -> bool:
    """True for the CJK ideographs that become tokens of their own."""
    code = ord(char)
    return any(first <= code <= last for first, last in _CJK_BLOCKS)


def _clean(char: str) -> str | None:
    if char in ("\0", "\ufffd") or _is_control(char):
        return None
    if _is_whitespace(char):
        return " "
    return f" {char} " if _is_cjk(char) else char


def _split_punctuation(char: str) -> str:
    return f" {char} " if _is_punctuation(char) else char


def _strip_accent_and_split_punctuation(char: str) -> str | None:
    return None if unicodedata.category(char) == "Mn" else _split_punctuation(char)


class _CharacterTable(dict):
    """A table for `str.translate` that asks `rule` the first time it meets a character."""

    def __init__(self, rule: Callable[[str], str | None]):
        super().__init__()
        self.rule = rule

    def __missing__(self, code: int) -> str | None:
        self[code] = result = self.rule(chr(code))
        return result


# ---- vocabulary files -----------------------------------------------------------------------------------------------


def load_vocab(vocab_file: str) -> dict[str, int]:
    """Reads a vocabulary: one token a line, the id is the line's number from 0 (original: load_vocab).

    Whitespace around a token is stripped. A blank line takes an id under the empty string; a token that comes twice
    keeps its first place in the order and its last id, as in the original. `check_vocab` reports both.

    A name that ends in .json is a tokenizer.json of Hugging Face, from which the vocabulary is taken.

    Raises:
      ValueError: the file is not UTF-8 (names the line and the byte offset), or a tokenizer.json of another kind.
    """
    if vocab_file.endswith(".json"):
        return _load_tokenizer_json(vocab_file)
    vocab = {}
    for index, line in enumerate(read_text_lines(vocab_file)):
        vocab[line.strip()] = index
    return vocab


def _load_tokenizer_json(path: str) -> dict[str, int]:
    """token -> id of a tokenizer.json, tokens added later included, in the order of the ids."""
    import tensorflow as tf

    with tf.io.gfile.GFile(path, "rb") as file:
        try:
            values = json.loads(file.read().decode("utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: no JSON in UTF-8: {error}") from None
    model = values.get("model") if isinstance(values, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict) or model.get("type") != "WordPiece":
        raise ValueError(f"{path} is no tokenizer.json with a WordPiece vocabulary, which is what BERT has.")
    vocab = {**model["vocab"], **{token["content"]: token["id"] for token in values.get("added_tokens") or ()}}
    ids = sorted(vocab.values())
    if ids != list(range(len(ids))):
        raise ValueError(f"{path}: the ids of its {len(ids)} tokens are not 0 to {len(ids) - 1}, each once.")
    return dict(sorted(vocab.items(), key=lambda item: item[1]))


def check_vocab(
    vocab: Mapping[str, int],
    vocab_file: str,
    required: Sequence[str] = SPECIAL_TOKENS,
    allow_duplicates: bool = False,
) -> None:
    """Refuses a vocabulary that would fail later or mean something else than its author thinks.

    `FullTokenizer` doesn't call this, since the original reads any file; the scripts do.

    Args:
      vocab: what `load_vocab(vocab_file)` gave.
      vocab_file: its path, read again to name the lines of duplicates.
      required: tokens that must be there.
      allow_duplicates: log duplicates and blank lines as a warning instead, for a published vocabulary that has them.

    Raises:
      ValueError: an empty file, a missing required token, a duplicate or a blank line; names the file and the lines.
    """
    if not vocab:
        raise ValueError(f"{vocab_file} is empty: a vocabulary holds one token a line")
    missing = [token for token in required if token not in vocab]
    if missing:
        raise ValueError(f"{vocab_file} lacks {', '.join(missing)}: a BERT vocabulary holds {' '.join(required)}")
    flaws = []
    if len(vocab) != max(vocab.values()) + 1 or "" in vocab:
        first_lines = {}
        for number, line in enumerate(read_text_lines(vocab_file), start=1):
            token = line.strip()
            if not token:
                flaws.append(f"line {number} is blank")
            elif token in first_lines:
                flaws.append(f"line {number} repeats {token!r} of line {first_lines[token]}")
            first_lines.setdefault(token, number)
    if flaws:
        more = f" and {len(flaws) - 5} more" if len(flaws) > 5 else ""
        message = f"{vocab_file}: {'; '.join(flaws[:5])}{more}. Each line must hold a token of its own"
        if not allow_duplicates:
            raise ValueError(message)
        logging.warning("%s; the last line of a repeated token gives its id", message)
    if vocab.get("[PAD]", 0) != 0:
        # Only a warning: padding is masked out, so such a model works, and renumbering would break its weights.
        logging.warning(
            "%s: [PAD] has id %d, but sequences are padded with id 0 as in the original", vocab_file, vocab["[PAD]"]
        )


# ---- helpers with the original's names ------------------------------------------------------------------------------


def casing_of_released_model(name: str) -> bool | None:
    """do_lower_case of a model that Google released under this name; None for any other name."""
    return True if name in _UNCASED_MODELS else False if name in _CASED_MODELS else None


def validate_case_matches_checkpoint(do_lower_case: bool, init_checkpoint: str | None) -> None:
    """Refuses a casing that contradicts the name of a released model in the checkpoint's path.

    Raises:
      ValueError: the path contains a known model's `<name>/bert_model.ckpt` and do_lower_case is the other casing.
    """
    match = re.match(r".*?([A-Za-z0-9_-]+)/bert_model.ckpt", init_checkpoint or "")
    needed = casing_of_released_model(match.group(1)) if match else None
    if needed is None or needed == bool(do_lower_case):
        return
    name, actual = match.group(1), "lower-cased" if do_lower_case else "cased"
    raise ValueError(
        f"--do_lower_case={do_lower_case} makes {actual} text, but --init_checkpoint={init_checkpoint} belongs to "
        f"{name}, which was trained the other way. Use --do_lower_case={needed} (or rename the directory if this is on "
        "purpose)."
    )


def convert_to_unicode(text: str | bytes) -> str:
    """`text` as str; bytes are read as UTF-8 and what is invalid in them is left out. ValueError for other types."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"text must be str or bytes, not {type(text).__name__}")


def printable_text(text: str | bytes) -> str:
    """`text` in the form that print and logging take, which is str (original: printable_text)."""
    return convert_to_unicode(text)


def convert_by_vocab(vocab: Mapping, items: Iterable) -> list:
    """Looks each item up in `vocab`. KeyError for an item that isn't there."""
    return [vocab[item] for item in items]


def convert_tokens_to_ids(vocab: Mapping[str, int], tokens: Iterable[str]) -> list[int]:
    """Ids of `tokens`. KeyError for a token that isn't in the vocabulary."""
    return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(inv_vocab: Mapping[int, str], ids: Iterable[int]) -> list[str]:
    """Tokens of `ids`. KeyError for an id outside the vocabulary."""
    return convert_by_vocab(inv_vocab, ids)


def whitespace_tokenize(text: str) -> list[str]:
    """Splits at runs of Unicode whitespace; an empty or blank text gives []."""
    return text.split()


# ---- the tokenizers -------------------------------------------------------------------------------------------------


class BasicTokenizer:
    """Splits text into words, punctuation marks and CJK characters (original: BasicTokenizer).

    In order: control characters, U+0000 and U+FFFD vanish and whitespace becomes a space; CJK characters are set apart;
    lower-casing; accents are stripped (NFD, then category Mn is dropped; nothing is composed again, so Hangul syllables
    become Jamo); punctuation marks are set apart. `[CLS]` in text has no protection and becomes three tokens.

    Args:
      do_lower_case: lower-case the text.
      strip_accents: None follows do_lower_case, as the original does. False keeps é as it is, and Hangul whole, in a
        lower-cased text.
    """

    def __init__(self, do_lower_case: bool = True, strip_accents: bool | None = None):
        self.do_lower_case = do_lower_case
        self.strip_accents = do_lower_case if strip_accents is None else strip_accents
        self._cleaning = _CharacterTable(_clean)
        self._splitting = _CharacterTable(
            _strip_accent_and_split_punctuation if self.strip_accents else _split_punctuation
        )

    def tokenize(self, text: str | bytes) -> list[str]:
        """Basic tokens of `text`."""
        return self.split_cleaned(convert_to_unicode(text).translate(self._cleaning))

    def words(self, text: str | bytes) -> list[str]:
        """The cleaned words between whitespace; `tokenize` is what `split_cleaned` gives for each of them in turn.

        That is a function of the whole word and nothing else: lower-casing a Greek capital sigma looks at both sides.
        """
        return convert_to_unicode(text).translate(self._cleaning).split()

    def split_cleaned(self, cleaned: str) -> list[str]:
        """Basic tokens of one or more of `words(text)`, separated by spaces."""
        # The original lower-cases and normalises word by word. Whitespace stops the context rule of sigma and the
        # reordering of combining marks alike, so the whole text at once gives the same.
        if self.do_lower_case:
            cleaned = cleaned.lower()
        if self.strip_accents and not cleaned.isascii():
            cleaned = unicodedata.normalize("NFD", cleaned)
        return cleaned.translate(self._splitting).split()

    def tokenize_with_origins(self, text: str) -> list[tuple[str, list[int]]]:
        """`tokenize`, with the character of `text` that each character of a token comes from."""
        # The steps of `tokenize`, character by character: (character, where it comes from).
        chars = [(new, place) for place, char in enumerate(text) for new in self._cleaning[ord(char)] or ""]
        if self.do_lower_case:
            lowered = "".join(char for char, _ in chars).lower()  # the whole: a sigma looks at both sides
            places = [place for char, place in chars for _ in char.lower()]
            chars = list(zip(lowered, places, strict=True))
        if self.strip_accents:
            chars = [(new, place) for char, place in chars for new in unicodedata.normalize("NFD", char)]
            start = 0
            for end in range(len(chars) + 1):  # runs of combining marks come in the order of their classes
                if end == len(chars) or not unicodedata.combining(chars[end][0]):
                    if end - start > 1:
                        chars[start:end] = sorted(chars[start:end], key=lambda pair: unicodedata.combining(pair[0]))
                    start = end + 1
        tokens, open_token = [], False
        for char, place in chars:
            for new in self._splitting[ord(char)] or "":
                if new.isspace():
                    open_token = False
                elif open_token:
                    tokens[-1][0].append(new)
                    tokens[-1][1].append(place)
                else:
                    tokens.append(([new], [place]))
                    open_token = True
        return [("".join(token), places) for token, places in tokens]


class WordpieceTokenizer:
    """Cuts words into the longest pieces of a vocabulary, from the left (original: WordpieceTokenizer).

    Pieces after a word's first are looked up with "##" before them. A word for which this fails at any point, or that
    has more than max_input_chars_per_word code points, becomes one unk_token.

    Args:
      vocab: the tokens; read when the tokenizer is made, don't change it afterwards.
      unk_token: stands for a word that can't be cut.
      max_input_chars_per_word: in code points.
    """

    def __init__(self, vocab: Mapping[str, int], unk_token: str = "[UNK]", max_input_chars_per_word: int = 200):
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        # No match is longer than the longest entry: a long word need not cost the square of its length.
        self._longest = max(map(len, vocab), default=0)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Word pieces of `text`, which is split at whitespace only and otherwise taken as it is."""
        pieces = []
        for word in whitespace_tokenize(convert_to_unicode(text)):
            pieces.extend(self.cut(word))
        return pieces

    def cut(self, word: str) -> list[str]:
        """Word pieces of one non-empty word."""
        if len(word) > self.max_input_chars_per_word:
            return [self.unk_token]
        if word in self.vocab:
            return [word]
        vocab, pieces, start = self.vocab, [], 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = prefix + word[start:end]
                if piece in vocab:
                    pieces.append(piece)
                    start = end
                    break
            else:
                return [self.unk_token]
        return pieces

    def cut_to_known(self, word: str) -> list[tuple[str, int]]:
        """Like `cut`, but what is unknown is one unk_token a character; with the characters of each piece."""
        vocab, pieces, start = self.vocab, [], 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                if prefix + word[start:end] in vocab:
                    pieces.append((prefix + word[start:end], end - start))
                    break
            else:
                pieces.append((self.unk_token, 1))
            start += pieces[-1][1]
        return pieces


class _WordCache(dict):
    """Remembers `compute(word)`, up to a number of words, then starts afresh (which follows a change of text)."""

    def __init__(self, compute: Callable[[str], tuple]):
        super().__init__()
        self.compute = compute

    def __missing__(self, word: str) -> tuple:
        result = self.compute(word)
        if len(word) <= _CACHED_WORD_LENGTH:
            if len(self) >= _CACHED_WORDS:
                self.clear()
            self[word] = result
        return result


class FullTokenizer:
    """Text to word pieces: BasicTokenizer, then WordpieceTokenizer (original: FullTokenizer).

        tokenizer = FullTokenizer("vocab.txt")
        tokenizer.tokenize("John Johanson's house")  # ['john', 'johan', '##son', "'", 's', 'house']
        tokenizer.encode_batch(["one", "two words"])  # lists of ids

    Args:
      vocab_file: see `load_vocab`.
      do_lower_case: must be as it was when the model was trained.
      strip_accents: None follows do_lower_case, as the original does; see `BasicTokenizer`.

    Attributes:
      vocab: token -> id, in the order of the file; don't change it, words already seen are remembered.
      inv_vocab: id -> token.
    """

    def __init__(self, vocab_file: str, do_lower_case: bool = True, strip_accents: bool | None = None):
        self.vocab = load_vocab(vocab_file)
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.basic_tokenizer = BasicTokenizer(do_lower_case, strip_accents)
        self.wordpiece_tokenizer = WordpieceTokenizer(self.vocab)
        self._pieces_of_word = _WordCache(self._cut_word)
        self._ids_of_word = _WordCache(self._encode_word)
        if self.basic_tokenizer.strip_accents and _COMPOSED_HANGUL.search("".join(self.vocab)):
            logging.warning(
                "%s holds composed Hangul syllables, but stripping accents takes them apart, so Korean words become "
                "[UNK]. If this vocabulary was made without stripping, use --strip_accents=false "
                "(strip_accents=False), or --do_lower_case=false for a cased one.",
                vocab_file,
            )

    @classmethod
    def from_pretrained(
        cls, path: str, do_lower_case: bool | None = None, strip_accents: bool | None = None
    ) -> "FullTokenizer":
        """The tokenizer of a model's directory: its vocabulary and its casing.

        Args:
          path: a directory (or weights in it) of any format.
          do_lower_case, strip_accents: must not contradict the directory; by default what it says, or True.

        Raises:
          FileNotFoundError: there is nothing at path.
          ValueError: a contradiction, or the directory has no vocabulary.
        """
        from bert_tf import model_files

        if not model_files.is_there(path):
            raise FileNotFoundError(f"{path} does not exist")
        files = model_files.read_model_files(path)
        if not files.vocab_file:
            raise ValueError(f"{files.directory} has no vocab.txt and no tokenizer.json.")
        casing = model_files.resolve_casing(do_lower_case, strip_accents, files.casing)
        return cls(files.vocab_file, bool(casing.do_lower_case), casing.strip_accents)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Word pieces of `text`."""
        pieces_of_word = self._pieces_of_word
        return [piece for word in self.basic_tokenizer.words(text) for piece in pieces_of_word[word]]

    def encode(self, text: str | bytes) -> list[int]:
        """`convert_tokens_to_ids(tokenize(text))`, faster. KeyError if [UNK] is needed and the vocabulary lacks it."""
        ids_of_word = self._ids_of_word
        return [index for word in self.basic_tokenizer.words(text) for index in ids_of_word[word]]

    def encode_with_offsets(self, text: str, split_unknown: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode`, and for each id the first character of `text` it stands for and the one after the last.

        An accent that was stripped belongs to the letter before it. Two pieces may share a character: a Hangul syllable
        that was taken apart.

        Args:
          split_unknown: take from an unknown word the pieces that are known, and one [UNK] for each other character.
            In a script without spaces one unknown character would else hide a whole clause.
        """
        ids, offsets = [], []
        cut, cut_to_known = self.wordpiece_tokenizer.cut, self.wordpiece_tokenizer.cut_to_known
        unknown = self.wordpiece_tokenizer.unk_token
        for token, places in self.basic_tokenizer.tokenize_with_origins(text):
            pieces = cut(token)
            if pieces != [unknown]:
                sizes = [len(piece) - (2 if number else 0) for number, piece in enumerate(pieces)]  # without "##"
            elif split_unknown:
                pieces, sizes = zip(*cut_to_known(token), strict=True)
            else:
                sizes = [len(token)]
            ids.extend(convert_by_vocab(self.vocab, pieces))
            start, known = 0, set(places)
            for size in sizes:
                own = places[start : start + size]
                first, last = min(own), max(own) + 1
                while last < len(text) and last not in known and unicodedata.category(text[last]).startswith("M"):
                    last += 1
                offsets.append((first, last))
                start += size
        return ids, offsets

    def encode_batch(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        """`encode` of each text: ids, without [CLS] and [SEP]."""
        return [self.encode(text) for text in texts]

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Ids of `tokens`. KeyError for a token that isn't in the vocabulary."""
        return convert_by_vocab(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Tokens of `ids`. KeyError for an id outside the vocabulary."""
        return convert_by_vocab(self.inv_vocab, ids)

    def _cut_word(self, word: str) -> tuple[str, ...]:
        cut = self.wordpiece_tokenizer.cut
        return tuple(piece for token in self.basic_tokenizer.split_cleaned(word) for piece in cut(token))

    def _encode_word(self, word: str) -> tuple[int, ...]:
        return tuple(convert_by_vocab(self.vocab, self._cut_word(word)))
