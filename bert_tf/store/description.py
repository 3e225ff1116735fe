"""What the files next to a model's weights say: its configuration, head, vocabulary and casing.

In any of the four formats, a model directory is complete: it has bert_config.json and head_config.json or config.json,
the tokenizer's files (vocab.txt or tokenizer.json; vocab.json with merges.txt for byte-level BPE, spiece.model for
SentencePiece), and the casing in tokenizer_config.json. `open.open_model` reads them together with the weights.
"""

import dataclasses
import json
import posixpath
from collections.abc import Mapping
from typing import Any

from absl import logging

from bert_tf.families import BERT, FAMILIES, family_of, family_of_variables, is_encoder_variable
from bert_tf.families.config import BertConfig, check_vocab_size
from bert_tf.families.family import Family, check_shapes, config_of_shapes
from bert_tf.store import huggingface
from bert_tf.store.head_config import HEAD_CONFIG, HUGGINGFACE_CONFIG, NO_HEAD, SENTENCES_CONFIG, HeadConfig
from bert_tf.store.tensor_files import Weights
from bert_tf.system import text_files
from bert_tf.system.checks import check_integer
from bert_tf.system.hub import name_of
from bert_tf.system.messages import is_first, naming_flag, warn_once
from bert_tf.system.released_models import hint
from bert_tf.system.storage import is_remote, names_in
from bert_tf.text import tokenizer_class_of, tokenizer_of_file, vocabulary_of
from bert_tf.text.characters import TOKENIZER
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import Casing, casing_of, max_length_of, read_casing, read_facts, resolve_casing

# The names of configuration files in this project's form -> the families' classes.
_CONFIG_CLASSES = {family.config_class.file_name: family.config_class for family in FAMILIES}
CONFIG_FILES = {*_CONFIG_CLASSES, HUGGINGFACE_CONFIG}


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """What a card says beyond what a model's own files do.

    beginning: the weights that it began from, as `card.beginning_of` has them. data: which data it was trained on.
    settings: of the training, as `card.public` has them. results: on the dev set, with `step`. notes: on these.
    usage: Python, or commands, for the model in the folder `card.PLACE`; None: they follow from its class.
    is_served: whether export_saved_model.py takes it.
    """

    beginning: Mapping | None = None
    data: str | None = None
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    results: Mapping[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    usage: str | None = None
    is_served: bool = True


@dataclasses.dataclass
class ModelFiles:
    """What describes a model; None for what is not known.

    directory: where the files are; "" if they are of several places. config_file, vocab_file: paths.
    max_seq_length: of the examples that the model was fine-tuned on, if tokenizer_config.json has it.
    sentences: how the model makes vectors of texts, if it was trained for that; `read_model_files` leaves it out.
    card: facts for the model's card; only the code that trains or loads the model fills them in.
    description: of `save.description_files`, where the model is written more than once.
    """

    directory: str
    config: BertConfig | None = None
    config_file: str | None = None
    vocab_file: str | None = None
    casing: Casing = dataclasses.field(default_factory=Casing)
    max_seq_length: int | None = None
    head: HeadConfig = NO_HEAD
    sentences: "SentenceSettings | None" = None
    card: CardFacts = CardFacts()
    description: dict[str, bytes] | None = None

    @property
    def family(self) -> Family:
        return family_of(self.config) if self.config else BERT

    def needed_config(self) -> BertConfig:
        """The configuration; raises if there is none."""
        if self.config is None:
            where = self.directory or "The model"
            raise ValueError(f"{where} has no bert_config.json or config.json: name one (--bert_config_file).")
        return self.config

    def tokenizer_kind(self) -> type[Tokenizer]:
        """Which tokenizer reads the vocabulary, if there is one, or the family's."""
        default = self.family.tokenizer_class
        return tokenizer_class_of(self.vocab_file, default) if self.vocab_file else default

    def make_tokenizer(self, *, is_checked: bool = False) -> Tokenizer:
        """A new tokenizer, checked against the configuration; its `max_length` is what the model takes.

        If no file says whether it is cased, `casing` becomes what the vocabulary says.

        is_checked: a vocabulary that would fail later, in training, is an error.
        """
        if not self.vocab_file:
            where = f"{name_of(self.directory)} has no {self.family.tokenizer_class.vocab_name}"
            raise ValueError(f"{where} and no {TOKENIZER}.")
        tokenizer = tokenizer_of_file(self.vocab_file, self.casing, self.family.tokenizer_class)
        if is_checked:
            tokenizer.check_vocabulary()
        if self.casing.do_lower_case is None and tokenizer.takes_strip_accents:
            self.casing = dataclasses.replace(self.casing, do_lower_case=not tokenizer.cased, source=self.vocab_file)
        if config := self.config:
            name = self.config_file or config.file_name
            check_vocab_size(config, tokenizer.vocab_size, self.vocab_file, name, is_new=not self.directory)
            tokenizer.max_length = min(self.max_seq_length or config.max_length, config.max_length)
        return tokenizer

    def take_vocabulary(self, vocab_file: str | None, do_lower_case: bool | None, strip_accents: bool | None) -> None:
        """Puts what flags say, if anything, in the place of the folder's vocabulary; they may not contradict it."""
        with naming_flag("--vocab_file"):
            if problem := vocabulary_mismatch(vocab_file, self):
                advice = "Leave --vocab_file out, or remove the other file if that is the wrong one."
                raise ValueError(f"{problem}. {advice}")
        beside = read_casing(vocab_file) if vocab_file else Casing()
        self.casing = resolve_casing(do_lower_case, strip_accents, self.casing, beside)
        self.vocab_file = vocab_file or self.vocab_file


def read_model_files(path: str) -> ModelFiles:
    """`files_in` the folder of the weights at a path."""
    return files_in(text_files.list_folder(path))


def files_in(
    folder: text_files.Folder,
    weights: Weights | None = None,
    config_file: str | None = None,
    is_checked: bool = True,
    family: Family | None = None,
) -> ModelFiles:
    """What the files in a model's folder say, checked against the weights, if any.

    config_file: a configuration to read instead. The head is read from there, or else from next to the weights.
    family: of a model without weights and configuration.
    """
    hints = {} if weights is None else weights.hints
    if weights is not None:
        directory = posixpath.dirname(weights.path) or "."
        if folder.path not in (directory, directory.removesuffix("/variables")):  # by a run's file `checkpoint`
            folder = text_files.list_folder(weights.path)
    if hints.get("sizes_from_weights") and not config_file:
        # Runs of run_pretraining.py keep the configuration of a generator in a separate folder.
        there = (name for name in map("generator/{}".format, _CONFIG_CLASSES) if name in folder.names)
        config_file = next((posixpath.join(folder.path, name) for name in there), None)
    path = config_file or find_config(folder)
    head = read_head(config_file, config_file) if config_file else NO_HEAD
    head = head_in(folder) if head == NO_HEAD else head
    files = ModelFiles(folder.path, read_config(path) if path else None, path, head=head)
    if weights is not None:
        _fit(files, weights, bool(config_file), is_checked)
    family = files.family if files.config else family or family_of_variables(weights or ())
    facts = read_facts(folder)
    files.vocab_file = vocabulary_of(facts, family.tokenizer_class)
    files.max_seq_length, files.casing = max_length_of(facts), casing_of(facts)
    if files.casing.do_lower_case is None and "do_lower_case" in hints:
        files.casing = Casing(bool(hints["do_lower_case"]), None, f"{folder.path} (its variable do_lower_case)")
    return files


def _fit(files: ModelFiles, weights: Weights, is_given: bool, is_checked: bool) -> None:
    """Checks a configuration, `is_given` or that of the folder, against the weights, or infers it from them."""
    hints, family = weights.hints, family_of_variables(weights)
    beside, heads = files.config, hints.get("num_attention_heads")
    if heads and (beside is None or (hints.get("sizes_from_weights") and not is_given)):
        files.config = config_of_shapes(family.config_class, weights.path, weights.shapes, heads, beside)
    if files.config is None:
        return
    config, title = files.config, files.config.title
    if beside is None:
        config.hidden_act = hints.get("hidden_act", config.hidden_act)
        assumed = f'{heads} attention heads, hidden_act "{config.hidden_act}", and dropout 0.1'
        text = f"{files.directory} has no {config.file_name}: sizes are those of the weights, with {assumed}."
        warn_once("weights", text)
    name = files.config_file or "The configuration inferred from the weights"
    if is_checked or beside is None:
        if family is not files.family and any(map(is_encoder_variable, weights)):
            raise ValueError(f"{name} is of a {title}, but {weights.path} of a {family.config_class.title}.")
        check_shapes(weights.path, weights.shapes, config, name)
    # Versions have the same variables, the second no dropout: names of directories tell which they are.
    if released := files.family.released:
        paths = files.config_file or "", weights.path
        named, version = ((match := released.search(path)) and match[1] for path in paths)
        if (named and version and named != version) or (version == "2" and config.hidden_dropout_prob):
            text = f"{paths[0]} is not of version {version} of {title}, of which {paths[1]} is by its directory."
            warn_once("weights", text)


def find_config(folder: text_files.Folder) -> str | None:
    names = [name for name in _CONFIG_CLASSES if name in folder.names]
    if len(names) > 1:
        raise ValueError(f"{folder.path} has {' and '.join(names)}: remove the one that is not the model's.")
    names += [HUGGINGFACE_CONFIG] if HUGGINGFACE_CONFIG in folder.names else []
    return posixpath.join(folder.path, names[0]) if names else None


def vocabulary_in(folder: str) -> str:
    if not (vocab_file := read_model_files(folder).vocab_file):
        raise ValueError("the model has no vocabulary that is known here")
    return vocab_file


def config_files(config: BertConfig, head: HeadConfig) -> dict[str, str]:
    """name -> content of this project's configuration file, and of head_config.json unless it would be empty."""
    # The head goes first: once the configuration exists, everything is there.
    files = {} if head == NO_HEAD else {HEAD_CONFIG: head.to_json()}
    return {**files, config.file_name: config.to_json_string()}


def read_head(path: str, config_file: str | None = None) -> HeadConfig:
    """The head of the model at a path, from head_config.json or else from its configuration, or `config_file`."""
    return head_in(text_files.list_folder(path), config_file)


def head_in(folder: text_files.Folder, config_file: str | None = None) -> HeadConfig:
    has_head = HEAD_CONFIG in folder.names
    path = posixpath.join(folder.path, HEAD_CONFIG) if has_head else config_file or find_config(folder)
    if not path or has_head:
        return HeadConfig.read(path) if path else NO_HEAD
    values = text_files.read_json(path)
    if _is_huggingface(path, values):
        # As in sentence-transformers, which writes the activation of a cross-encoder there, the file comes first.
        beside = text_files.read_json_if_there(posixpath.join(posixpath.dirname(path), SENTENCES_CONFIG)) or {}
        if beside.get("activation_fn"):
            values["sentence_transformers"] = beside
        return huggingface.read_head(values, path)
    return HeadConfig.from_config(values, path)


def read_config(path: str) -> BertConfig:
    """Reads a bert_config.json, or a config.json of Hugging Face."""
    return _config_of(text_files.read_json(path), path)


def _config_of(values: dict, path: str) -> BertConfig:
    if _is_huggingface(path, values):
        return huggingface.read_config(values, path)
    return _CONFIG_CLASSES.get(posixpath.basename(path), BertConfig).from_json_file(path)


def _is_huggingface(path: str, values: dict) -> bool:
    name = posixpath.basename(path)
    return name == HUGGINGFACE_CONFIG or ("model_type" in values and name not in _CONFIG_CLASSES)


# --- a vocabulary or weights that a flag names ------------------------------------------------------------------------


def vocabulary_mismatch(vocab_file: str | None, files: ModelFiles) -> str:
    """What is wrong with a vocabulary that takes the place of that next to the weights, in `files`; "" if nothing is.

    Tokens may be added at the end, or replace [unused1] and the like; if they replace others, a warning says so.
    A vocabulary that is damaged or of another kind passes: the code that uses it reports that.
    """
    beside, default = files.vocab_file, files.family.tokenizer_class
    if not (vocab_file and beside) or text_files.read_bytes(vocab_file) == text_files.read_bytes(beside):
        return ""
    try:
        model_tokenizer, tokenizer = (tokenizer_of_file(path, Casing(False), default) for path in (beside, vocab_file))
    except ValueError:
        return ""
    if model_tokenizer.vocab_kind != tokenizer.vocab_kind:
        return ""
    moved = [token for token, number in tokenizer.vocab.items() if model_tokenizer.vocab.get(token, number) != number]
    if moved:
        token, numbers = moved[0], (model_tokenizer.vocab[moved[0]], tokenizer.vocab[moved[0]])
        return (
            f"{vocab_file} is not the vocabulary that the weights were trained with, {beside}: {len(moved):,} of its "
            f"tokens have other ids there, such as {token!r}, {numbers[0]} there and {numbers[1]} here"
        )
    others = [(token, model_tokenizer.inv_vocab.get(number, token)) for token, number in tokenizer.vocab.items()]
    others = [pair for pair in others if pair[0] != pair[1] and not pair[1].startswith("[unused")]
    if others and is_first("other tokens", vocab_file, beside):
        counted = f"{len(others)}, such as {others[0][0]!r} for {others[0][1]!r}"
        message = "%s: tokens in the places of others of %s, next to the weights: %s; the model does not know them yet."
        logging.warning(message, vocab_file, beside, counted)
    return ""


def check_weights(path: str | None, flag: str) -> None:
    """Raises if nothing exists at a local path of weights; without TensorFlow."""
    if path and not is_remote(path) and not text_files.anything_at(path):
        raise FileNotFoundError(f"{flag}={path}: there is no such directory, weight file or checkpoint.{hint(path)}")


# --- sentence settings ----------------------------------------------------------------------------------------------

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


def read_sentence_settings(directory: str) -> SentenceSettings:
    """The settings in the files of a directory; of one without them the mean, not normalized."""
    path, folders = posixpath.join(directory, _MODULES), {}
    if unused := [name for name in names_in(directory) if name.endswith("_linear.pt")]:  # of FlagEmbedding
        warn_once(("heads", directory), "%s: %s are not used.", directory, ", ".join(unused))
    if not text_files.exists(path):
        return SentenceSettings(directory)
    with text_files.naming_file(path):
        for step in text_files.read_json(path, list):
            name, folder = step["type"].rpartition(".")[2], step["path"]
            if name not in _STEPS[len(folders) :][:1] or folder.startswith("/") or ".." in folder.split("/"):
                steps = f"{', '.join(_STEPS)} in a folder below this one"
                raise ValueError(f"{path}: {step!r:.200} is not the next of {steps}")
            folders[name] = posixpath.join(directory, folder) if folder else directory
        places = [(folders[_ENCODER], _ENCODER_SETTINGS), (folders[_POOLING], _POOLING_SETTINGS)]
        places = [posixpath.join(*place) for place in (*places, (directory, SENTENCES_CONFIG))]
        encoder, pooling, prompting = (text_files.read_json_if_there(place) or {} for place in places)
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
    """name -> content of the files of sentence-transformers, which `read_sentence_settings` reads again."""
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
