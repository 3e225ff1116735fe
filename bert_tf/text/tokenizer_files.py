"""What a model's directory says about its tokenizer: the vocabulary, whether it is cased, how it splits text."""

import dataclasses
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

from absl import logging

from bert_tf.system import hub, text_files
from bert_tf.system.messages import abbreviated_list, warn_once
from bert_tf.system.text_files import Folder
from bert_tf.text.characters import TOKENIZER, TOKENIZER_CONFIG

VOCAB, MODEL, RELEASED_MODEL = "vocab.txt", "spiece.model", "30k-clean.model"
JSON_VOCAB, MERGES = "vocab.json", "merges.txt"  # of byte-level BPE
WORD_START = "\u2581"  # of SentencePiece: how a space is written

# What sentence-transformers writes before the normalizer of BERT, of a model with do_lower_case.
_LOWERCASE = {"type": "Lowercase"}

# Released models whose directory name implies the casing (original: validate_case_matches_checkpoint): do_lower_case.
_RELEASED_MODELS = {
    **dict.fromkeys(("uncased_L-24_H-1024_A-16", "uncased_L-12_H-768_A-12"), True),
    **dict.fromkeys(("multilingual_L-12_H-768_A-12", "chinese_L-12_H-768_A-12"), True),
    **dict.fromkeys(("electra_small", "electra_base", "electra_large"), True),
    **dict.fromkeys(("cased_L-12_H-768_A-12", "cased_L-24_H-1024_A-16", "multi_cased_L-12_H-768_A-12"), False),
}
# Google's later releases (24 sizes, whole-word masking) follow this pattern.
_RELEASED_NAME = re.compile(r"(?:wwm_|bert_)?(un)?cased_L-\d+_H-\d+_A-\d+(?:-\d+)?")


@dataclasses.dataclass(frozen=True)
class Casing:
    """How a model's text is normalised before it is split. strip_accents: None to follow do_lower_case.

    source: where the casing was found, for messages.
    """

    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    source: str = ""


def find_model(folder: Folder) -> str | None:
    """A folder's SentencePiece model (spiece.model, 30k-clean.model, or the only .model file), None without one."""
    names = [name for name in (MODEL, RELEASED_MODEL, f"assets/{RELEASED_MODEL}") if name in folder.names][:1]
    names = names or [name for name in folder.names if name.endswith(".model") and "/" not in name]
    if len(names) > 1:
        raise ValueError(f"{folder.path} has several SentencePiece models, {', '.join(names)}: call one {MODEL}.")
    return posixpath.join(folder.path, names[0]) if names else None


@dataclasses.dataclass(frozen=True)
class TokenizerFacts:
    """config: tokenizer_config.json. model: config.json. named: the tokenizer_class of one. source: its file."""

    folder: Folder
    config: Mapping
    model: Mapping
    named: str
    source: str


def read_facts(folder: Folder) -> TokenizerFacts:
    paths = [posixpath.join(folder.path, name) for name in (TOKENIZER_CONFIG, "config.json")]
    files = {path: text_files.read_json(path) for path in paths if posixpath.basename(path) in folder.names}
    source = next((path for path, values in files.items() if values.get("tokenizer_class")), "")
    named = str(files[source]["tokenizer_class"]).removesuffix("Fast") if source else ""
    config, model = (files.get(path, {}) for path in paths)
    return TokenizerFacts(folder, config, model, named, source)


def max_length_of(facts: TokenizerFacts) -> int | None:
    """The longest row in training, if tokenizer_config.json has it."""
    length = facts.config.get("model_max_length")
    # Hugging Face writes 10^30 for "no limit".
    return length if isinstance(length, int) and 0 < length < 1_000_000 else None


def read_casing(path: str) -> Casing:
    """The casing that the files next to a vocabulary say."""
    return casing_of(read_facts(text_files.list_folder(path)))


def casing_of(facts: TokenizerFacts) -> Casing:
    """A model's casing by tokenizer_config.json, else tokenizer.json, else the folder's name."""
    directory, values, of_json = facts.folder.path, facts.config, None
    if TOKENIZER in facts.folder.names:
        json_file = posixpath.join(directory, TOKENIZER)
        with text_files.naming_file(json_file):
            normalizers = components_of(text_files.read_json(json_file).get("normalizer"), "normalizers")
            of_json, lowers_first = _casing_of(normalizers, json_file)
        if of_json and lowers_first:  # which nothing in tokenizer_config.json changes
            return of_json
    path = posixpath.join(directory, TOKENIZER_CONFIG)
    for name in ("do_lower_case", "strip_accents"):
        _check_kind(values, name, path)
    if values.get("do_lower_case") is not None:
        return Casing(values["do_lower_case"], values.get("strip_accents"), path)
    if facts.named in ("BertJapaneseTokenizer", "KoBertTokenizer", "KoBERTTokenizer", "XLNetTokenizer"):  # by default
        return Casing(False, None, facts.source)
    if of_json:
        return of_json
    name = posixpath.basename(hub.name_of(directory.rstrip("/"))).partition("@")[0]
    match = _RELEASED_NAME.fullmatch(name)
    released = bool(match[1]) if match else _RELEASED_MODELS.get(name)
    return Casing(released, None, f"the name of {directory}") if released is not None else Casing()


def _casing_of(normalizers: Sequence[Mapping], path: str) -> tuple[Casing | None, bool]:
    """The casing of normalizers, and whether they lower-case before BERT's own."""
    *before, last = normalizers or [{}]
    if last.get("type") != "BertNormalizer" or not all(part == _LOWERCASE for part in before):
        return None, False
    for name in ("lowercase", "strip_accents"):
        _check_kind(last, name, path)
    lowers, strips = bool(last.get("lowercase")), last.get("strip_accents")
    return Casing(lowers or bool(before), lowers if before and strips is None else strips, path), bool(before)


def _check_kind(values: Mapping, name: str, path: str, kind: type = bool) -> None:
    if not isinstance(values.get(name), kind | None):
        raise ValueError(f"{path}: {name} is {values[name]!r}, but must be of type {kind.__name__}.")


def resolve_casing(do_lower_case: bool | None, strip_accents: bool | None, *known: Casing) -> Casing:
    """The casing to use: that of the model, which flags, if given, may repeat but not contradict.

    known: casings of the model's directories; the first known one counts. If nothing says it, the pieces do
    (`lowers_by_pieces`).
    """
    stated = next((casing for casing in known if casing.do_lower_case is not None), None)
    if stated is None:
        return Casing(do_lower_case, strip_accents, "the flag" if do_lower_case is not None else "")
    strips = stated.do_lower_case if stated.strip_accents is None else stated.strip_accents
    for flag, given, value in (
        ("do_lower_case", do_lower_case, stated.do_lower_case),
        ("strip_accents", strip_accents, strips),
    ):
        if given not in (None, value):
            raise ValueError(f"{flag}={given} contradicts {stated.source}, which has {flag}={value}. Leave it out.")
    strip_accents = stated.strip_accents if strip_accents is None else strip_accents
    logging.info("Casing from %s: do_lower_case=%s.", stated.source, stated.do_lower_case)
    return Casing(stated.do_lower_case, strip_accents, stated.source)


def lowers_by_pieces(vocab_file: str, tokens: Iterable[str]) -> bool:
    """Whether text is lower-cased if no file says so, with a warning: if no piece has a letter A-Z."""
    cased = any(re.search("[A-Z]", token) for token in tokens if not re.fullmatch(r"\[.*\]|<.*>", token))
    message = "%s: no file says whether text is lower-cased; it is%s, as %s of its pieces have capital letters."
    warn_once(("casing", vocab_file), message, vocab_file, *((" not", "some") if cased else ("", "none")))
    return not cased


def validate_case_matches_checkpoint(do_lower_case: bool, init_checkpoint: str | None) -> None:
    match = re.match(r".*?([A-Za-z0-9_-]+)/bert_model.ckpt", init_checkpoint or "")
    needed = _RELEASED_MODELS.get(match.group(1)) if match else None
    if needed is None or needed == do_lower_case:
        return
    raise ValueError(f"--init_checkpoint={init_checkpoint} was trained with --do_lower_case={needed}: give it so.")


# ---- vocabulary files ------------------------------------------------------------------------------------------------


def vocabulary_lines(vocab_file: str) -> list[str]:
    """The lines of a vocab.txt, without a byte order mark, or the tokens of a tokenizer.json by their ids."""
    if vocab_file.endswith(".json"):
        return list(_load_tokenizer_json(vocab_file))
    lines = list(text_files.read_text_lines(vocab_file))
    return [line.removeprefix("\ufeff") or line for line in lines[:1]] + lines[1:]


def vocabulary_bytes(vocab_file: str) -> bytes:
    """The content of a vocab.txt with this vocabulary: of a vocab.txt its own bytes."""
    if not vocab_file.endswith(".json"):
        return text_files.read_bytes(vocab_file)
    return "".join(token + "\n" for token in vocabulary_lines(vocab_file)).encode()


def read_tokens(vocab_file: str) -> list[str]:
    """The token of each id: `vocabulary_lines` without the whitespace around each, as the original reads them."""
    lines = vocabulary_lines(vocab_file)
    return lines if vocab_file.endswith(".json") else [line.strip() for line in lines]


def convert_by_vocab(vocab: Mapping, items: Iterable, unknown=None) -> list:
    """Looks up each item in `vocab`. unknown: for an item that it lacks; None: there is none."""
    if isinstance(items, str | bytes):
        raise TypeError(f"tokens or ids must be a list, not {items!r:.80}; a text has encode")
    items = items.numpy() if hasattr(items, "numpy") else items  # a tensor's numbers can't be looked up
    return [vocab[item] if unknown is None else vocab.get(item, unknown) for item in items]


def load_vocab(vocab_file: str) -> dict[str, int]:
    """Reads a vocabulary: one token per line, the id is the line number from 0 (original: load_vocab).

    Only a newline ends a line, and whitespace around a token is stripped. A token that looks blank gives its id to the
    empty string; one that appears twice keeps its first place in the order and its last id. Also of a tokenizer.json.
    """
    return {token: index for index, token in enumerate(read_tokens(vocab_file))}


def _load_tokenizer_json(path: str) -> dict[str, int]:
    """token -> id, in the order of the ids, with the added tokens that are between the others."""
    values = text_files.read_json(path)
    model = values.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict) or model.get("type") != "WordPiece":
        raise ValueError(f"{path} is not a tokenizer.json with a WordPiece vocabulary, as BERT needs.")
    with text_files.naming_file(path):
        last = max(model["vocab"].values(), default=-1)
        between = [token for token in values.get("added_tokens") or () if token["id"] <= last]
        vocab = {**model["vocab"], **{token["content"]: token["id"] for token in between}}
        ids = sorted(vocab.values())
    if ids != list(range(len(ids))):
        raise ValueError(f"{path}: the ids of its {len(ids)} tokens are not 0 to {len(ids) - 1}, each once.")
    return dict(sorted(vocab.items(), key=lambda item: item[1]))


def check_vocab(vocab: Mapping[str, int], vocab_file: str, required: Sequence[str]) -> None:
    """Raises if `vocab`, read from `vocab_file`, lacks required tokens or has empty lines; warns of repeated tokens."""
    if missing := [token for token in required if token not in vocab]:
        raise ValueError(f"{vocab_file} lacks {', '.join(missing)}, which a vocabulary of word pieces must have")
    if len(vocab) == max(vocab.values()) + 1 and "" not in vocab:
        return
    empty, repeated, first_lines = [], [], {}
    for number, line in enumerate(vocabulary_lines(vocab_file), start=1):
        token = line.strip()
        if not line:
            empty.append(str(number))
        elif token and token in first_lines:
            repeated.append(f"line {number} repeats {token!r} of line {first_lines[token]}")
        first_lines.setdefault(token, number)
    if empty:
        raise ValueError(f"{vocab_file}: empty lines shift the ids of the tokens below: {abbreviated_list(empty)}")
    if repeated:
        logging.warning("%s: %s; each has the id of its last line.", vocab_file, abbreviated_list(repeated, "; "))


# ---- rules -----------------------------------------------------------------------------------------------------------


def read_tokenizer_config(directory: str) -> dict:
    return text_files.read_json_if_there(posixpath.join(directory, TOKENIZER_CONFIG)) or {}


def kind_of_model(model: Mapping) -> str:
    """The type of the model of a tokenizer.json, which old files don't name: BPE, Unigram, WordPiece, ..."""
    unnamed = "BPE" if "merges" in model else "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"
    return str(model.get("type") or unnamed)


def components_of(values: Mapping | None, name: str) -> list[Mapping]:
    """The components of a tokenizer.json's normalizer, say, with these `name`d: "normalizers"; one is its own."""
    if not values:
        return []
    return values.get(name, []) if values.get("type") == "Sequence" else [values]


def word_rules(vocab_file: str) -> dict:
    """The arguments of `FullTokenizer` but the casing, by tokenizer_config.json, else tokenizer.json."""
    directory = posixpath.dirname(vocab_file)
    config = read_tokenizer_config(directory)
    path = vocab_file if vocab_file.endswith(".json") else posixpath.join(directory, TOKENIZER)
    with text_files.naming_file(path):
        rules = _rules_of_json(text_files.read_json_if_there(path) or {}, path)
    names = ("tokenize_chinese_chars", "do_basic_tokenize", "never_split", "max_input_chars_per_word")
    rules |= {name: config[name] for name in names if config.get(name) is not None}
    kinds = {"never_split": list, "max_input_chars_per_word": int}
    for name in rules:
        _check_kind(rules, name, f"{directory}/{TOKENIZER_CONFIG}" if name in config else path, kinds.get(name, bool))
    return rules


def _rules_of_json(values: Mapping, path: str) -> dict:
    model = values.get("model")
    if not isinstance(model, dict) or kind_of_model(model) != "WordPiece":
        return {}
    words = [part.get("type") for part in components_of(values.get("pre_tokenizer"), "pretokenizers")]
    normalizers = components_of(values.get("normalizer"), "normalizers")
    kinds = [part.get("type") for part in normalizers if part != _LOWERCASE or part is normalizers[-1]]
    is_berts = (kinds, words) == (["BertNormalizer"], ["BertPreTokenizer"]) and normalizers[-1].get("clean_text", True)
    reason = None
    if (prefix := model.get("continuing_subword_prefix", "##")) != "##":
        reason = f"continues words by {prefix!r}"
    elif not is_berts and (kinds or words != ["WhitespaceSplit"]):
        kinds, words = (" + ".join(map(str, names)) or "none" for names in (kinds, words))
        reason = f"has the normalizer {kinds} and the pre-tokenizer {words}"
    if reason:
        raise ValueError(f"{path}: it {reason}, which is not a rule of BERT's word pieces: not supported.")
    rules = {"do_basic_tokenize": is_berts}
    if is_berts:
        rules["tokenize_chinese_chars"] = normalizers[-1].get("handle_chinese_chars", True)
    if "max_input_chars_per_word" in model:
        rules["max_input_chars_per_word"] = model["max_input_chars_per_word"]
    return rules
