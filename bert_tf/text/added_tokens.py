"""Added tokens: cut out of a text as a whole, by the rules of the `tokenizers` library, before the rest is tokenized.

Models of Hugging Face have them beside their vocabulary: entity markers such as [E1], words of a field. A token that is
not `normalized` is looked for in the text as it is; then the others, in what the tokenizer's normalization makes of the
parts between. At each place the longest token counts. The tokens with a role ([CLS], [SEP], ...) are left out: written
in a text they are text, since a text must not end its own row.
"""

import dataclasses
import functools
import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from bert_tf.system.text_files import read_json_if_there, understood

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
ADDED_TOKENS, SPECIAL_TOKENS_MAP = "added_tokens.json", "special_tokens_map.json"
ADDED_FILES = (ADDED_TOKENS, SPECIAL_TOKENS_MAP)
DECODER = "added_tokens_decoder"
# What the library's regular expressions call whitespace (Unicode: White_Space); `str.isspace` has four more.
WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
WHITESPACE += "\u2028\u2029\u202f\u205f\u3000"
_JOIN_CONTROLS = "\u200c\u200d"
_CIRCLED_LETTERS = ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))


@dataclasses.dataclass(frozen=True)
class AddedToken:
    """A token of this kind; the flags are those of `tokenizers.AddedToken`.

    Attributes:
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

    Attributes:
      text: what is to be tokenized, in normalized form if `places` is not None.
      start, end: its characters of the whole text. token: None between tokens.
      places: for each character of `text`, the character of the whole text that it comes from.
    """

    text: str
    start: int
    end: int
    token: AddedToken | None = None
    places: Sequence[int] | None = None


class Forms(dict[str, AddedToken]):
    """What is looked for in a text -> the token."""

    @property
    def expression(self) -> str:
        """A regular expression, for Python and RE2, that finds the longest form at each place."""
        # Alternatives are tried in their order; of two forms that match at one place, the longer begins with the other.
        return "|".join(re.escape(form) for form in sorted(self, key=len, reverse=True))

    @functools.cached_property
    def pattern(self) -> re.Pattern:
        """`expression`, compiled."""
        return re.compile(self.expression)


def _own_places(text: str) -> range:
    return range(len(text))


class AddedTokens:
    """The added tokens of a tokenizer.

    Args:
      tokens: those with a role are not among them.
      normalize: text -> its normalized form. origins: text -> for each character of the normalized form, the one of the
        text that it comes from. None: the tokenizer has no normalization.

    Attributes:
      tokens: sorted by id. ids: theirs.
      written, normalized: what is looked for in the text, and in normalized text -> the token.
    """

    def __init__(
        self,
        tokens: Iterable[AddedToken] = (),
        normalize: Callable[[str], str] = str,
        origins: Callable[[str], Sequence[int]] = _own_places,
    ):
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
        """Whether a token has whitespace in it."""
        return any(len(token.content.split()) > 1 for token in self.tokens)

    def occur(self, text: str) -> bool:
        """Whether the form of a token is anywhere in `text`."""
        if self.written and self.written.pattern.search(text):
            return True
        return bool(self.normalized and self.normalized.pattern.search(self.normalize(text)))

    def parts(self, text: str) -> list[Part]:
        """`text`, cut into added tokens and what is between them."""
        parts = []
        for part in _cut(Part(text, 0, len(text)), self.written):
            form = self.normalize(part.text) if self.normalized and not part.token else ""
            if form and self.normalized.pattern.search(form):
                places = [part.start + place for place in self._origins(part.text)]
                parts += _cut(dataclasses.replace(part, text=form, places=places), self.normalized)
            else:
                parts.append(part)
        return parts

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where tokens are written in `text`, without the whitespace that they take: the first character of each and
        the one after the last."""
        places = []
        for part in self.parts(text) if self.tokens else ():
            if part.token and (written := text[part.start : part.end].strip(WHITESPACE)):
                start = text.index(written, part.start)
                places.append((start, start + len(written)))
        return places

    def encode(self, text: str, encode: Callable[[str], Iterable[int]]) -> list[int]:
        """The ids of `text`, of which `encode` gives those between added tokens."""
        return [index for part in self.parts(text) for index in ([part.token.id] if part.token else encode(part.text))]

    def tokenize(self, text: str, tokenize: Callable[[str], Iterable[str]]) -> list[str]:
        """The pieces of `text`, of which `tokenize` gives those between added tokens."""
        return [
            piece
            for part in self.parts(text)
            for piece in ([part.token.content] if part.token else tokenize(part.text))
        ]

    def encode_with_offsets(
        self, text: str, encode: Callable[[str], tuple[list[int], list[tuple[int, int]]]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode`, and for each id the first character of `text` that it covers and the one after the last."""
        ids, offsets = [], []
        for part in self.parts(text):
            if part.token:
                ids.append(part.token.id)
                offsets.append((part.start, part.end))
                continue
            own, places = encode(part.text)
            ids += own
            offsets += _offsets_in_text(part, places, text)
        return ids, offsets


def decoder_of(tokens: Iterable[AddedToken]) -> dict[str, dict]:
    """Tokens as the added_tokens_decoder of a tokenizer_config.json."""
    decoder = {}
    for token in tokens:
        values = dataclasses.asdict(token)
        decoder[str(values.pop("id"))] = values
    return decoder


def is_word_character(char: str) -> bool:
    """Whether the library's regular expressions take a character for part of a word (Unicode: \\w)."""
    category = unicodedata.category(char)
    if category[0] in "LM" or category in ("Nd", "Nl", "Pc") or char in _JOIN_CONTROLS:
        return True
    return category == "So" and any(first <= ord(char) <= last for first, last in _CIRCLED_LETTERS)


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
        cuts += [(None, done, start)] if done < start else []
        cuts.append((token, start, end))
        done = end
    cuts += [(None, done, len(text))] if done < len(text) else []
    return [_part_of(part, *cut) for cut in cuts]


def _part_of(part: Part, token: AddedToken | None, start: int, end: int) -> Part:
    places = part.places
    if places is None:
        return Part(part.text[start:end], part.start + start, part.start + end, token)
    first = places[start] if start else part.start
    after = places[end] if end < len(places) else part.end
    if token:
        first, after = places[start], places[end - 1] + 1
    return Part(part.text[start:end], first, after, token, None if token else places[start:end])


def _offsets_in_text(part: Part, offsets: Iterable[tuple[int, int]], text: str) -> Iterator[tuple[int, int]]:
    """Offsets in a part as those in the whole text; a mark that was normalized away belongs to what is before it."""
    if part.places is None:
        yield from ((part.start + first, part.start + after) for first, after in offsets)
        return
    kept = {*part.places}
    for first, after in offsets:
        begin = part.places[first] if first < len(part.places) else part.end
        end = part.places[after - 1] + 1 if after > first else begin
        while after > first and end < part.end and end not in kept and unicodedata.category(text[end])[0] == "M":
            end += 1
        yield begin, end


# --- files -----------------------------------------------------------------------------------------------------------


def read_added_tokens(vocab_file: str, vocab: Mapping[str, int]) -> list[AddedToken]:
    """The added tokens that the files beside a vocabulary name, those with a role among them, as `transformers` reads
    them: tokenizer_config.json, or if that has no added_tokens_decoder special_tokens_map.json, added_tokens.json and
    tokenizer.json.

    Args:
      vocab: token -> id, of the vocabulary without them.

    Returns:
      sorted by their ids. A token in the vocabulary has its id there; the others follow it.

    Raises:
      ValueError: a file can't be understood, or gives a token another id; names it.
    """
    directory = posixpath.dirname(vocab_file)
    config_file, map_file, added_file, tokenizer_file = (
        posixpath.join(directory, name) for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS, TOKENIZER)
    )
    config, found = read_json_if_there(config_file) or {}, {}
    with understood(config_file):
        described = {_id(index): values for index, values in (config.get(DECODER) or {}).items()}
        _add(found, ((index, values, config_file) for index, values in described.items()))
        unnumbered = [(token, config_file) for token in _specials_of(config, vocab)]
    if not described:
        if values := read_json_if_there(map_file):
            with understood(map_file):
                # transformers looks for the latter after it has numbered those of added_tokens.json.
                later = {"additional_special_tokens": values.pop("additional_special_tokens", ())}
                unnumbered += [(token, map_file) for token in _specials_of(values, vocab)]
                specials = {_content(token) for token, _ in unnumbered}
                unnumbered += [(token, map_file) for token in _specials_of(later, vocab)]
        else:
            specials = {_content(token) for token, _ in unnumbered}
        if values := read_json_if_there(added_file):
            with understood(added_file):
                _add(
                    found,
                    (
                        (_id(index), {"content": token, "special": token in specials}, added_file)
                        for token, index in values.items()
                    ),
                )
    if not described or vocab_file.endswith(TOKENIZER):
        path = vocab_file if vocab_file.endswith(TOKENIZER) else tokenizer_file
        with understood(path):
            listed = (read_json_if_there(path) or {}).get("added_tokens") or ()
            _add(found, ((_id(values["id"]), values, path) for values in listed))
    by_content = {token.content: (token, path) for token, path in found.values()}
    tokens, after = [], max(vocab.values(), default=-1) + 1
    for token, path in sorted(by_content.values(), key=lambda pair: pair[0].id):
        expected = vocab.get(token.content, after)
        if token.id != expected:
            known = "the id there is" if token.content in vocab else "the vocabulary's next is"
            raise ValueError(
                f"{path}: {token.content!r} has id {token.id}, but {known} {expected} ({vocab_file}). Take all files "
                "from the same model."
            )
        after += token.content not in vocab
        tokens.append(token)
    for values, path in unnumbered:
        with understood(path):
            content = _content(values)
            if content and content not in by_content:
                token = _token_of(vocab.get(content, after), values if isinstance(values, dict) else {}, content, True)
                after += content not in vocab
                by_content[content] = token, path
                tokens.append(token)
    return sorted(tokens, key=lambda token: token.id)


def _add(found: dict, tokens: Iterable[tuple[int, Mapping, str]]) -> None:
    for index, values, path in tokens:
        found.setdefault(index, (_token_of(index, values, values["content"], values.get("special", False)), path))


def _token_of(index: int, values: Mapping, content: str, special: bool) -> AddedToken:
    if not isinstance(content, str) or not content:
        raise TypeError(f"token {index} has no content")
    flags = {name: bool(values.get(name, False)) for name in ("single_word", "lstrip", "rstrip")}
    normalized = bool(values.get("normalized", not special))
    return AddedToken(index, content, **flags, normalized=normalized, special=bool(special))


def _id(index: str | int) -> int:
    if not str(index).isdecimal():
        raise TypeError(f"{index!r} is not the id of a token")
    return int(index)


def _content(token: str | Mapping) -> str:
    return token if isinstance(token, str) else token["content"]


def _specials_of(values: Mapping, vocab: Mapping[str, int]) -> list:
    """The special tokens that a file names without their ids, as strings or with their flags; those with a role only
    if the vocabulary has them, since many files name roles that the model does not have."""
    named = [value for key, value in values.items() if key.endswith("_token") and isinstance(value, str | dict)]
    named = [token for token in named if _content(token) in vocab]
    further = values.get("extra_special_tokens") or values.get("additional_special_tokens") or ()
    return [*named, *(further.values() if isinstance(further, dict) else further)]
