"""The files of sentence-transformers that say how a model makes vectors of texts.

A directory of sentence-transformers has modules.json, a list of steps: the encoder, often in the directory itself; a
pooling with its config.json; sometimes a normalization. Any other model directory has none of these files.
"""

import dataclasses
import json
import posixpath
from collections.abc import Mapping
from typing import Any

from bert_tf.families.config import BertConfig
from bert_tf.store.head_config import SENTENCES_CONFIG
from bert_tf.system.checks import check_integer
from bert_tf.system.messages import naming_flag
from bert_tf.system.text_files import exists, naming_file, read_json, read_json_if_there

POOLINGS = ("mean", "cls", "max")
SIMILARITIES = ("cosine", "dot")  # by which vectors are compared here

_MODULES, _ENCODER_SETTINGS, _POOLING_SETTINGS = "modules.json", "sentence_bert_config.json", "config.json"
_STEPS = _ENCODER, _POOLING, _NORMALIZATION = "Transformer", "Pooling", "Normalize"
# Until 2025 a pooling's config.json had a key for each kind.
_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}


@dataclasses.dataclass(frozen=True)
class SentenceSettings:
    """How a directory's model makes vectors.

    directory: of the encoder. described: whether files of sentence-transformers say how.
    pooling: of all tokens the mean or, in each dimension, the largest value; or the first token.
    normalize: whether vectors have the length 1. max_seq_length: of a text; None: what the model takes.
    lower: texts are lower-cased before they are tokenized, whatever the tokenizer does.
    prompts: name -> what is put before a text. default_prompt_name: the prompt of texts without another, if any.
    include_prompt: whether the pooling reads the prompt's tokens (and the special ones before them).
    truncate_dim: how many numbers of a vector are kept, after its length was made 1; None: all.
    similarity: what compares two vectors, by the name of sentence-transformers: "cosine", "dot" or another.
    """

    directory: str
    pooling: str = "mean"
    normalize: bool = False
    max_seq_length: int | None = None
    lower: bool = False
    described: bool = False
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt_name: str | None = None
    include_prompt: bool = True
    similarity: str = "cosine"
    truncate_dim: int | None = None

    def __post_init__(self):
        check_pooling(self.pooling)

    def length_for(self, config: BertConfig) -> int | None:
        return self.max_seq_length and min(self.max_seq_length, config.max_length)

    def size_for(self, config: BertConfig) -> int:
        return min(self.truncate_dim or config.hidden_size, config.hidden_size)

    def prompt(self, name: str | None = None) -> str:
        """The prompt of this name, or the default one; "query" and "document" are there, if empty, as in theirs."""
        name = self.default_prompt_name if name is None else name
        if name is None or (name in ("query", "document") and name not in self.prompts):
            return ""
        if name not in self.prompts:
            names = ", ".join(self.prompts) or "none"
            raise ValueError(f"{self.directory} has no prompt {name!r}; those of its {SENTENCES_CONFIG} are: {names}")
        return self.prompts[name]

    def skipped(self, prompt: str, tokenizer) -> int:
        """How many of a row's first tokens, the prompt, the pooling leaves out."""
        if self.include_prompt or not prompt:
            return 0
        text = prompt.strip().lower() if self.lower else prompt.strip()
        return len(tokenizer.build_inputs(tokenizer.encode(text), None, 1 << 20)[0]) - len(tokenizer.end_tokens)


def check_pooling(pooling: str) -> None:
    if pooling not in POOLINGS:
        raise ValueError(f"pooling={pooling!r} is not one of {', '.join(POOLINGS)}")


def read_settings(directory: str) -> SentenceSettings:
    """The settings in the files of a directory; of one without them the mean, not normalized."""
    path, folders = posixpath.join(directory, _MODULES), {}
    if not exists(path):
        return SentenceSettings(directory)
    with naming_file(path):
        for step in read_json(path, list):
            name, folder = step["type"].rpartition(".")[2], step["path"]
            if name not in _STEPS[len(folders) :][:1] or folder.startswith("/") or ".." in folder.split("/"):
                raise ValueError(
                    f"{path}: {step!r:.200} is not the next of {', '.join(_STEPS)} in a folder below this one"
                )
            folders[name] = posixpath.join(directory, folder) if folder else directory
        places = (folders[_ENCODER], _ENCODER_SETTINGS), (folders[_POOLING], _POOLING_SETTINGS)
        encoder, pooling, prompting = (
            read_json_if_there(posixpath.join(*place)) or {} for place in (*places, (directory, SENTENCES_CONFIG))
        )
        kinds = pooling.get("pooling_mode")
        if kinds is None:
            kinds = [_KEYS.get(key, key) for key, value in pooling.items() if key.startswith("pooling_mode_") and value]
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if len(kinds) != 1:
            raise ValueError(f"{path}: the pooling is {kinds!r:.200}; known is one of {', '.join(POOLINGS)}")
        prompts = {name: text or "" for name, text in (prompting.get("prompts") or {}).items()}
        default = prompting.get("default_prompt_name")
        if default is not None and default not in prompts:
            raise ValueError(f"{path}: default_prompt_name is {default!r:.80}, which is none of its prompts")
        if (truncate_dim := prompting.get("truncate_dim")) is not None:
            with naming_flag(posixpath.join(directory, SENTENCES_CONFIG)):
                check_integer(truncate_dim, "truncate_dim")
        how = kinds[0], _NORMALIZATION in folders, encoder.get("max_seq_length"), encoder.get("do_lower_case", False)
        similarity = prompting.get("similarity_fn_name") or "cosine"
        further = True, prompts, default, pooling.get("include_prompt", True), similarity, truncate_dim
        return SentenceSettings(folders[_ENCODER], *how, *further)


def settings_files(settings: SentenceSettings, hidden_size: int) -> dict[str, str]:
    """name -> content of the files that say to sentence-transformers, and to `read_settings`, how vectors are made."""
    package = "sentence_transformers.models"
    steps = [(_ENCODER, ""), (_POOLING, f"1_{_POOLING}")]
    if settings.normalize:
        steps.append((_NORMALIZATION, f"2_{_NORMALIZATION}"))
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{package}.{name}"}
        for number, (name, path) in enumerate(steps)
    ]
    kinds = {key: kind == settings.pooling for key, kind in _KEYS.items()}
    pooling = {"word_embedding_dimension": hidden_size, **kinds}
    if not settings.include_prompt:
        pooling["include_prompt"] = False
    encoder = {"max_seq_length": settings.max_seq_length, "do_lower_case": settings.lower}
    contents: dict[str, Any] = {
        _MODULES: modules,
        posixpath.join(f"1_{_POOLING}", _POOLING_SETTINGS): pooling,
        _ENCODER_SETTINGS: {key: value for key, value in encoder.items() if value is not None},
    }
    if settings.prompts or settings.similarity != "cosine" or settings.truncate_dim:
        contents[SENTENCES_CONFIG] = {
            "prompts": dict(settings.prompts),
            "default_prompt_name": settings.default_prompt_name,
            "similarity_fn_name": settings.similarity,
            **({"truncate_dim": settings.truncate_dim} if settings.truncate_dim else {}),
        }
    return {name: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for name, content in contents.items()}
