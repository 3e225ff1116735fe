"""What the files beside a vocabulary say about its tokenizer, in the terms of Hugging Face: tokenizer_config.json,
special_tokens_map.json, tokenizer.json, config.json."""

import posixpath
from collections.abc import Mapping

from bert_tf.system.text_files import read_json_if_there, understood
from bert_tf.text.casing import TOKENIZER, TOKENIZER_CONFIG
from bert_tf.text.tokenizer import ROLES, Tokenizer

SPECIAL_TOKENS_MAP = "special_tokens_map.json"
# The pre-tokenizers of a tokenizer.json of word pieces: that of BERT, and whitespace alone.
_WORDS_BY_BERT, _WORDS_BY_WHITESPACE = ["BertPreTokenizer"], ["WhitespaceSplit"]


def read_tokenizer_config(directory: str) -> dict:
    """tokenizer_config.json; {} without one."""
    return read_json_if_there(posixpath.join(directory, TOKENIZER_CONFIG)) or {}


def kind_of_model(model: Mapping) -> str:
    """BPE, Unigram, WordPiece, ...: the type of the model of a tokenizer.json, which old files don't name."""
    unnamed = "BPE" if "merges" in model else "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"
    return model.get("type") or unnamed


def parts_of(values: Mapping | None, name: str) -> list[dict]:
    """A normalizer's or pre-tokenizer's parts in a tokenizer.json, whether it is a sequence or a single one.

    Args:
      name: "normalizers" or "pretokenizers".
    """
    if not values:
        return []
    return values.get(name, []) if values.get("type") == "Sequence" else [values]


def name_special_tokens(tokenizer: Tokenizer, directory: str) -> None:
    """Gives the tokens with a role, and those of rows, the names in tokenizer_config.json or special_tokens_map.json;
    without these they keep the names of the class."""
    named = [read_json_if_there(posixpath.join(directory, name)) for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP)]
    renamed = {}
    for role in ROLES:
        name = f"{role}_token"
        for values in filter(lambda values: isinstance(values, dict), named):
            token = values.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                renamed[getattr(tokenizer, name)] = token
                setattr(tokenizer, name, token)
                break
    for name in ("begin_tokens", "between_tokens", "end_tokens"):
        setattr(tokenizer, name, tuple(renamed.get(token, token) for token in getattr(tokenizer, name)))


def special_tokens_of(tokenizer: Tokenizer | type[Tokenizer]) -> list[str]:
    """The tokens with a role, which stand for no text."""
    return list(dict.fromkeys(getattr(tokenizer, f"{role}_token") for role in ROLES))


def word_rules(vocab_file: str) -> dict:
    """How text becomes word pieces, beside the casing: the arguments of `FullTokenizer` of these names.

    tokenizer_config.json comes first, then the tokenizer.json beside the vocabulary.

    Raises:
      ValueError: the tokenizer.json has rules that `FullTokenizer` does not have; names it and the rule.
    """
    directory = posixpath.dirname(vocab_file)
    config = read_tokenizer_config(directory)
    path = vocab_file if vocab_file.endswith(".json") else posixpath.join(directory, TOKENIZER)
    rules = {}
    with understood(path):
        if isinstance((values := read_json_if_there(path) or {}).get("model"), dict):
            rules = _rules_of_json(values, path)
    names = ("tokenize_chinese_chars", "do_basic_tokenize", "never_split", "max_input_chars_per_word")
    rules |= {name: config[name] for name in names if config.get(name) is not None}
    kinds = {"never_split": list, "max_input_chars_per_word": int}
    for name, value in rules.items():
        if not isinstance(value, kinds.get(name, bool)):
            file = posixpath.join(directory, TOKENIZER_CONFIG) if name in config else path
            raise ValueError(f"{file}: {name} is {value!r}, but must be of type {kinds.get(name, bool).__name__}.")
    return rules


def _rules_of_json(values: Mapping, path: str) -> dict:
    model = values["model"]
    if kind_of_model(model) != "WordPiece":
        return {}
    words = [part.get("type") for part in parts_of(values.get("pre_tokenizer"), "pretokenizers")]
    normalizers = parts_of(values.get("normalizer"), "normalizers")
    kinds = [part.get("type") for part in normalizers]
    is_berts = kinds == ["BertNormalizer"] and normalizers[0].get("clean_text", True) and words == _WORDS_BY_BERT
    found = None
    if (prefix := model.get("continuing_subword_prefix", "##")) != "##":
        found = f"continues words by {prefix!r}"
    elif not is_berts and (kinds or words != _WORDS_BY_WHITESPACE):
        kinds, words = (" + ".join(map(str, names)) or "none" for names in (kinds, words))
        found = f"has the normalizer {kinds} and the pre-tokenizer {words}"
    if found:
        raise ValueError(f"{path}: it {found}, which is no rule of BERT's word pieces: not supported.")
    rules = {"do_basic_tokenize": is_berts}
    if is_berts:
        rules["tokenize_chinese_chars"] = normalizers[0].get("handle_chinese_chars", True)
    if "max_input_chars_per_word" in model:
        rules["max_input_chars_per_word"] = model["max_input_chars_per_word"]
    return rules
