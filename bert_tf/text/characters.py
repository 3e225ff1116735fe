"""Character classes, how the original's basic tokenizer treats them, words of a text to tag, and added tokens."""

import dataclasses
import functools
import posixpath
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

from bert_tf.system.text_files import naming_file, read_json_if_there

# The blocks that the original calls CJK: each such character becomes a separate token. Hangul, Hiragana and Katakana
# are left out on purpose: their words are separated by spaces or split by the vocabulary.
_CJK = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)

# Without width: byte order mark, zero-width space, word joiner, zero. Joiners (U+200C, U+200D) change how letters look.
_INVISIBLE = "\ufeff\u200b\u2060\0"
_BLANK = "".join(char for char in map(chr, range(0x3001)) if char.isspace()) + _INVISIBLE
_NAME = {**dict.fromkeys(map(ord, _INVISIBLE)), **dict.fromkeys(map(ord, "\u00a0\u2007\u202f"), " ")}
# What the `tokenizers` library's regular expressions call whitespace (White_Space); `str.isspace` has four more.
WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
WHITESPACE += "\u2028\u2029\u202f\u205f\u3000"
_CIRCLED_LETTER = re.compile("[\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def convert_to_unicode(text: str | bytes) -> str:
    """`text` as str; bytes are decoded as UTF-8, without invalid ones. ValueError for other types."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"text must be str or bytes, not {type(text).__name__}; encode_batch takes several texts")


def as_text(text: str | bytes) -> str:
    """`text` as str without surrogates, which UTF-8 can't hold: each becomes U+FFFD, so that places stay the same."""
    text = convert_to_unicode(text)
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def trimmed(text: str) -> str:
    """A text without what can't be seen at its ends: whitespace of all kinds, byte order marks."""
    return text.strip(_BLANK)


def plain_name(text: str) -> str:
    """A name of a label or a column as it looks: in NFC, without what can't be seen, no-break spaces as spaces."""
    return unicodedata.normalize("NFC", trimmed(text.translate(_NAME)))


def is_whitespace(char: str) -> bool:
    return char in (" ", "\t", "\n", "\r") or unicodedata.category(char) == "Zs"


def is_control(char: str) -> bool:
    return char not in ("\t", "\n", "\r") and unicodedata.category(char) in ("Cc", "Cf")


def is_punctuation(char: str) -> bool:
    """True for categories P* and for every ASCII character that is not a letter, digit or space."""
    return char in string.punctuation or unicodedata.category(char).startswith("P")


def is_cjk(char: str) -> bool:
    return _CJK.match(char) is not None


def clean(char: str, drop_unassigned: bool = False, separate_cjk: bool = True) -> str | None:
    """The cleaned form of a character: None if it is dropped, a space for whitespace, spaces around a CJK one.

    drop_unassigned: any category C*, too, as in ELECTRA. separate_cjk: False leaves CJK characters parts of words.
    """
    if is_whitespace(char):
        return " "
    category = unicodedata.category(char)
    if char in "\0\ufffd" or category in ("Cc", "Cf") or (drop_unassigned and category[0] == "C"):
        return None
    return f" {char} " if separate_cjk and is_cjk(char) else char


def separate_whitespace(char: str) -> str:
    """A space for whitespace as `str.split` knows it, without any other cleaning (do_basic_tokenize: false)."""
    return " " if char.isspace() else char


def split_punctuation(char: str) -> str:
    return f" {char} " if is_punctuation(char) else char


def strip_accent(char: str) -> str | None:
    return None if unicodedata.category(char) == "Mn" else char


def strip_accent_and_split_punctuation(char: str) -> str | None:
    return strip_accent(char) and split_punctuation(char)


def is_mark(char: str) -> bool:
    return unicodedata.category(char)[0] == "M"


def is_word_character(char: str) -> bool:
    """Whether the `tokenizers` library's regular expressions take a character for part of a word (\\w)."""
    category = unicodedata.category(char)
    if category[0] in "LM" or category in ("Nd", "Nl", "Pc") or char in "\u200c\u200d":
        return True
    return category == "So" and _CIRCLED_LETTER.match(char) is not None


@functools.cache
def characters_in_use() -> list[str]:
    """All characters that this Python's Unicode assigns, and the CJK ones: the others are all treated alike."""
    # Beyond plane 3 only plane 14 is in use, and private use, which no rule names. Surrogates are not text.
    chars = [chr(code) for code in (*range(0x40000), *range(0xE0000, 0xF0000)) if not 0xD800 <= code <= 0xDFFF]
    return [char for char in chars if unicodedata.category(char) != "Cn" or is_cjk(char)]


# ---- words of a text, for models that tag words: as the texts that the model was trained on are split ----------------

# words: what whitespace separates, and each punctuation mark and Chinese character, as in most files of tagged words.
# characters: each character but whitespace. characters_and_spaces: each character.
SPLITS = ("words", "characters", "characters_and_spaces")

# What a character is to the words around it.
DROPPED, SPACE, ALONE, INSIDE = range(4)


def character_kind(char: str, split: str = "words") -> int:
    """DROPPED (a control character), SPACE, ALONE (a word of its own), or INSIDE a word. split: one of SPLITS."""
    if clean(char) is None:
        return DROPPED
    if is_whitespace(char):
        return ALONE if split == "characters_and_spaces" else SPACE
    return ALONE if split != "words" or is_cjk(char) or is_punctuation(char) else INSIDE


def split_words(text: str, split: str = "words", tokens: Iterable[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """For each word of `text` its first character and the one after the last; control characters make no word.

    split: one of SPLITS. tokens: the places of added tokens, each of which is a word of its own, whatever the split.
    """
    words, done = [], 0
    for start, end in (*tokens, (len(text), len(text))):
        before = SPACE
        for position in range(done, start):
            kind = character_kind(text[position], split)
            if kind == DROPPED:
                continue
            if kind == INSIDE and before == INSIDE:
                words[-1] = (words[-1][0], position + 1)
            elif kind != SPACE:
                words.append((position, position + 1))
            before = kind
        words += [(start, end)] if start < end else []
        done = end
    return words


# ---- added tokens ----------------------------------------------------------------------------------------------------

# Cut out of a text as a whole, by the rules of the `tokenizers` library, before the rest is tokenized. Models of
# Hugging Face have them next to their vocabulary: entity markers such as [E1], words of a field. A token that is not
# `normalized` is looked for in the text as it is; then the others, in what the tokenizer's normalization makes of
# the parts between. At each place the longest token counts. The tokens with a role ([CLS], [SEP], ...) are left out:
# written in a text they are text, since a text must not end its own row.

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
ADDED_TOKENS, SPECIAL_TOKENS_MAP = "added_tokens.json", "special_tokens_map.json"
DECODER = "added_tokens_decoder"


@dataclasses.dataclass(frozen=True)
class AddedToken:
    """A token of this kind; the flags are those of `tokenizers.AddedToken`.

    single_word: not inside a word. lstrip, rstrip: it includes the whitespace before or after it.
    normalized: it is looked for in normalized text, in its own normalized form.
    special: Hugging Face's decoder may leave it out.
    """

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


@dataclasses.dataclass(frozen=True)
class Part:
    """An added token, or what is between two of them.

    text: what is to be tokenized, which may be in normalized form.
    origins: for each character of `text`, the character of the whole text that it comes from.
    end: the character of the whole text after the last. token: None between tokens.
    """

    text: str
    origins: Sequence[int]
    end: int
    token: AddedToken | None = None


class Forms(dict[str, AddedToken]):
    """What is looked for in a text -> the token."""

    @functools.cached_property
    def pattern(self) -> re.Pattern:
        # Alternatives are tried in their order; of two forms that match at one place, the longer begins with the other.
        return re.compile("|".join(re.escape(form) for form in sorted(self, key=len, reverse=True)))


class AddedTokens:
    """The added tokens of a tokenizer without those with a role, sorted by id.

    normalize: text -> its normalized form. origins: text -> for each character of that, the one of the text that it
    comes from. written, normalized: what is looked for in the text, and in normalized text -> the token.
    """

    def __init__(self, tokens: Iterable[AddedToken] = (), normalize: Callable = str, origins: Callable | None = None):
        self.tokens = sorted(tokens, key=lambda token: token.id)
        self.ids = frozenset(token.id for token in self.tokens)
        self.normalize, self._origins = normalize, origins
        self.written, self.normalized = Forms(), Forms()
        for token in sorted(self.tokens, key=lambda token: not token.special):  # of two equal forms the first counts
            if not token.normalized:
                self.written.setdefault(token.content, token)
            elif form := normalize(token.content):
                self.normalized.setdefault(form, token)

    def __bool__(self) -> bool:
        return bool(self.tokens)

    @property
    def span_words(self) -> bool:
        return any(len(token.content.split()) > 1 for token in self.tokens)

    def occur(self, text: str) -> bool:
        is_written = self.written and self.written.pattern.search(text)
        return bool(is_written or (self.normalized and self.normalized.pattern.search(self.normalize(text))))

    def parts(self, text: str) -> list[Part]:
        parts = []
        for part in _cut(Part(text, range(len(text)), len(text)), self.written):
            form = self.normalize(part.text) if self.normalized and not part.token else ""
            if form and self.normalized.pattern.search(form):
                origins = self._origins(part.text) if self._origins else range(len(part.text))
                of_text = [part.origins[origin] for origin in origins]
                parts += _cut(dataclasses.replace(part, text=form, origins=of_text), self.normalized)
            else:
                parts.append(part)
        return parts

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where tokens are written in `text`, without the whitespace that they take: (begin, end) of each."""
        spans = []
        for part in self.parts(text) if self.tokens else ():
            if part.token and (written := text[part.origins[0] : part.end].strip(WHITESPACE)):
                start = text.index(written, part.origins[0])
                spans.append((start, start + len(written)))
        return spans


def _cut(part: Part, forms: Forms) -> list[Part]:
    """A part of a text, cut at the tokens that are looked for in this form."""
    if not forms:
        return [part]
    text, done, cuts = part.text, 0, []
    for match in forms.pattern.finditer(text):
        token, (start, end) = forms[match[0]], match.span()
        if token.single_word and any(map(is_word_character, text[max(start - 1, 0) : start] + text[end : end + 1])):
            continue
        if token.lstrip:
            start = max(len(text[:start].rstrip(WHITESPACE)), done)
        if token.rstrip:
            end = len(text) - len(text[end:].lstrip(WHITESPACE))
        cuts += [(done, start, None), (start, end, token)]
        done = end
    if not cuts:
        return [part]
    origins = [*part.origins, part.end]
    return [
        Part(text[start:end], origins[start:end], origins[end - 1] + 1 if token else origins[end], token)
        for start, end, token in (*cuts, (done, len(text), None))
        if start < end
    ]


# ---- what files say of them ------------------------------------------------------------------------------------------


def read_added_tokens(vocab_file: str, vocab: Mapping[str, int]) -> list[AddedToken]:
    """The added tokens that the files next to a vocabulary name, those with a role among them, sorted by their ids.

    As `transformers` reads them: tokenizer_config.json, or if that has no added_tokens_decoder special_tokens_map.json,
    added_tokens.json and tokenizer.json. A token in the vocabulary has its id there; the others follow it.
    """
    added, tokens, after = {}, {}, max(vocab.values(), default=-1) + 1
    numbered, unnumbered = _named_tokens(vocab_file, vocab)
    for values, path in numbered:
        with naming_file(path):
            token = _token_of(values["id"], values)
        added.setdefault(token.id, (token, path))
    added = {token.content: (token, path) for token, path in added.values()}
    for token, path in sorted(added.values(), key=lambda pair: pair[0].id):
        expected = vocab.get(token.content, after)
        if token.id != expected:
            raise ValueError(f"{path}: {token.content!r} has id {token.id}, but {vocab_file} gives it {expected}.")
        after += token.content not in vocab
        tokens[token.content] = token
    for values, path in unnumbered:
        with naming_file(path):
            if (content := values["content"]) and content not in tokens:
                tokens[content] = _token_of(vocab.get(content, after), {**values, "special": True})
                after += content not in vocab
    return sorted(tokens.values(), key=lambda token: token.id)


def _named_tokens(vocab_file: str, vocab: Mapping[str, int]) -> tuple[list, list]:
    """What files say of tokens, those with ids and those without: pairs of the values and the file."""
    directory = posixpath.dirname(vocab_file)
    names = (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS, TOKENIZER)
    config_file, map_file, added_file, json_file = (posixpath.join(directory, name) for name in names)
    is_json = vocab_file.endswith(TOKENIZER)
    json_file = vocab_file if is_json else json_file
    config, numbered = read_json_if_there(config_file) or {}, []
    with naming_file(config_file):
        described = (config.get(DECODER) or {}).items()
        numbered += [({**values, "id": index}, config_file) for index, values in described]
        unnumbered = [(token, config_file) for token in _specials_of(config, vocab)]
    if not described:
        with naming_file(map_file):
            roles = read_json_if_there(map_file) or {}
            # transformers looks for the latter after it has numbered those of added_tokens.json.
            later = {"additional_special_tokens": roles.pop("additional_special_tokens", ())}
            unnumbered += [(token, map_file) for token in _specials_of(roles, vocab)]
            special = {token["content"] for token, _ in unnumbered}
            unnumbered += [(token, map_file) for token in _specials_of(later, vocab)]
        with naming_file(added_file):
            for token, index in (read_json_if_there(added_file) or {}).items():
                numbered.append(({"id": index, "content": token, "special": token in special}, added_file))
    if not described or is_json:
        with naming_file(json_file):
            listed = (read_json_if_there(json_file) or {}).get("added_tokens") or ()
            numbered += [({**values}, json_file) for values in listed]
    return numbered, unnumbered


def _token_of(index: str | int, values: Mapping) -> AddedToken:
    content, special = values["content"], bool(values.get("special", False))
    if not isinstance(content, str) or not content or not str(index).isdecimal():
        raise TypeError(f"{index!r}: {content!r} is not a token")
    flags = {name: bool(values.get(name, False)) for name in ("single_word", "lstrip", "rstrip")}
    flags |= {"special": special, "normalized": bool(values.get("normalized", not special))}
    return AddedToken(int(index), content, **flags)


def _specials_of(values: Mapping, vocab: Mapping[str, int]) -> list[Mapping]:
    """The special tokens that a file names without their ids; many files name roles that the model does not have."""

    def described(token: str | Mapping) -> Mapping:
        return {"content": token} if isinstance(token, str) else {**token, "content": token["content"]}

    named = [value for key, value in values.items() if key.endswith("_token") and isinstance(value, str | dict)]
    named = [token for token in map(described, named) if token["content"] in vocab]
    further = values.get("extra_special_tokens") or values.get("additional_special_tokens") or ()
    return [*named, *map(described, further.values() if isinstance(further, dict) else further)]
