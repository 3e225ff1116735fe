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
from collections.abc import Callable, Iterable, Mapping, Sequence

from bert_tf.system.text_files import read_json_if_there, understood
from bert_tf.text.characters import WHITESPACE, is_word_character

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
ADDED_TOKENS, SPECIAL_TOKENS_MAP = "added_tokens.json", "special_tokens_map.json"
DECODER = "added_tokens_decoder"


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
      text: what is to be tokenized, which may be in normalized form.
      places: for each character of `text`, the character of the whole text that it comes from.
      end: the character of the whole text after the last. token: None between tokens.
    """

    text: str
    places: Sequence[int]
    end: int
    token: AddedToken | None = None


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


class AddedTokens:
    """The added tokens of a tokenizer.

    Args:
      tokens: those with a role are not among them.
      normalize: text -> its normalized form. origins: text -> for each character of the normalized form, the one of the
        text that it comes from. Default: the tokenizer has no normalization.

    Attributes:
      tokens: sorted by id. ids: theirs.
      written, normalized: what is looked for in the text, and in normalized text -> the token.
    """

    def __init__(
        self,
        tokens: Iterable[AddedToken] = (),
        normalize: Callable[[str], str] = str,
        origins: Callable[[str], Sequence[int]] | None = None,
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
        for part in _cut(Part(text, range(len(text)), len(text)), self.written):
            form = self.normalize(part.text) if self.normalized and not part.token else ""
            if form and self.normalized.pattern.search(form):
                origins = self._origins(part.text) if self._origins else range(len(part.text))
                places = [part.places[place] for place in origins]
                parts += _cut(dataclasses.replace(part, text=form, places=places), self.normalized)
            else:
                parts.append(part)
        return parts

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where tokens are written in `text`, without the whitespace that they take: the first character of each and
        the one after the last."""
        places = []
        for part in self.parts(text) if self.tokens else ():
            if part.token and (written := text[part.places[0] : part.end].strip(WHITESPACE)):
                start = text.index(written, part.places[0])
                places.append((start, start + len(written)))
        return places


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
    places = [*part.places, part.end]
    return [
        Part(text[start:end], places[start:end], places[end - 1] + 1 if token else places[end], token)
        for start, end, token in (*cuts, (done, len(text), None))
        if start < end
    ]


# --- files -----------------------------------------------------------------------------------------------------------


def decoder_of(tokens: Iterable[AddedToken]) -> dict[str, dict]:
    """Tokens as the added_tokens_decoder of a tokenizer_config.json."""
    decoder = {}
    for token in tokens:
        values = dataclasses.asdict(token)
        decoder[str(values.pop("id"))] = values
    return decoder


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
    found, tokens, after = {}, {}, max(vocab.values(), default=-1) + 1
    numbered, unnumbered = _named_tokens(vocab_file, vocab)
    for values, path in numbered:
        with understood(path):
            token = _token_of(values["id"], values)
        found.setdefault(token.id, (token, path))
    found = {token.content: (token, path) for token, path in found.values()}
    for token, path in sorted(found.values(), key=lambda pair: pair[0].id):
        expected = vocab.get(token.content, after)
        if token.id != expected:
            known = "the id there is" if token.content in vocab else "the vocabulary's next is"
            raise ValueError(
                f"{path}: {token.content!r} has id {token.id}, but {known} {expected} ({vocab_file}). Take all files "
                "from the same model."
            )
        after += token.content not in vocab
        tokens[token.content] = token
    for values, path in unnumbered:
        with understood(path):
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
    with understood(config_file):
        described = (config.get(DECODER) or {}).items()
        numbered += [({**values, "id": index}, config_file) for index, values in described]
        unnumbered = [(token, config_file) for token in _specials_of(config, vocab)]
    if not described:
        with understood(map_file):
            roles = read_json_if_there(map_file) or {}
            # transformers looks for the latter after it has numbered those of added_tokens.json.
            later = {"additional_special_tokens": roles.pop("additional_special_tokens", ())}
            unnumbered += [(token, map_file) for token in _specials_of(roles, vocab)]
            special = {token["content"] for token, _ in unnumbered}
            unnumbered += [(token, map_file) for token in _specials_of(later, vocab)]
        with understood(added_file):
            for token, index in (read_json_if_there(added_file) or {}).items():
                numbered.append(({"id": index, "content": token, "special": token in special}, added_file))
    if not described or is_json:
        with understood(json_file):
            listed = (read_json_if_there(json_file) or {}).get("added_tokens") or ()
            numbered += [({**values}, json_file) for values in listed]
    return numbered, unnumbered


def _token_of(index: str | int, values: Mapping) -> AddedToken:
    content, special = values["content"], bool(values.get("special", False))
    if not isinstance(content, str) or not content:
        raise TypeError(f"token {index} has no content")
    if not str(index).isdecimal():
        raise TypeError(f"{index!r} is not the id of a token")
    flags = {name: bool(values.get(name, False)) for name in ("single_word", "lstrip", "rstrip")}
    return AddedToken(
        int(index), content, **flags, normalized=bool(values.get("normalized", not special)), special=special
    )


def _specials_of(values: Mapping, vocab: Mapping[str, int]) -> list[Mapping]:
    """The special tokens that a file names without their ids; those with a role only if the vocabulary has them, since
    many files name roles that the model does not have."""

    def described(token: str | Mapping) -> Mapping:
        return {"content": token} if isinstance(token, str) else {**token, "content": token["content"]}

    named = [value for key, value in values.items() if key.endswith("_token") and isinstance(value, str | dict)]
    named = [token for token in map(described, named) if token["content"] in vocab]
    further = values.get("extra_special_tokens") or values.get("additional_special_tokens") or ()
    return [*named, *map(described, further.values() if isinstance(further, dict) else further)]
