"""The files that belong to a model's weights: configuration, head, vocabulary, casing.

In any of the four formats, a model directory is complete: it has bert_config.json and head_config.json or config.json,
the tokenizer's files (vocab.txt or tokenizer.json; vocab.json with merges.txt for byte-level BPE, spiece.model for
SentencePiece), and the casing in tokenizer_config.json.
"""

import dataclasses
import functools
import os
import posixpath
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from absl import logging

from bert_tf.families.config import BertConfig, check_vocab_size
from bert_tf.families.families import (
    BERT,
    FAMILIES,
    ElectraConfig,
    family_of,
    family_of_variables,
    is_encoder_variable,
)
from bert_tf.store import variable_names
from bert_tf.store.head_config import (
    HEAD_CONFIG,
    HUGGINGFACE_CONFIG,
    NO_HEAD,
    SENTENCES_CONFIG,
    HeadConfig,
)
from bert_tf.store.open_weights import open_weights
from bert_tf.store.tensor_files import Weights
from bert_tf.system.messages import is_first, naming_flag
from bert_tf.system.storage import is_remote, names_in, paths_beginning_with
from bert_tf.system.text_files import exists, read_bytes, read_json, read_json_if_there
from bert_tf.text import find_vocabulary, tokenizer_of_file
from bert_tf.text.characters import TOKENIZER_CONFIG
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import Casing, directory_of, first_existing, read_casing, resolve_casing

if TYPE_CHECKING:
    from bert_tf.store.sentence_settings import SentenceSettings

# What export_saved_model.py writes.
EXPORT_FILE, GRAPH_FILE = "export.json", "saved_model.pb"
ONNX_FILES = ("model.onnx", "model_int8.onnx")

# A file in the directory of a released ALBERT, as Google and Hugging Face call it.
_ALBERT_RELEASE = re.compile(r"(?:^|[/-])albert[_-](?:base|x*large)[_-]v([12])(?:/snapshots/[^/]+)?/[^/]+$")

# The names of configuration files in this project's form -> the families' classes.
_CONFIG_CLASSES = {family.config_class.file_name: family.config_class for family in FAMILIES}


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """What a card says beyond what a model's own files do; what is not known stays out.

    beginning: the weights that it began from, as `card.beginning_of` has them.
    data: what tells the training data from any other.
    settings: of the training, as `card.public` has them. results: on the dev set, with `step`, if known.
    notes: sentences about these.
    usage: Python, or commands, for the model in the folder `card.PLACE`; None: they follow from its class. is_served:
      whether export_saved_model.py takes it.
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
    """The files beside a model's weights; None for those that do not exist.

    directory: where they are. config, head, casing: their content. config_file, vocab_file: paths.
    max_seq_length: of the examples that the model was fine-tuned on, if tokenizer_config.json has it.
    sentences: how the model makes vectors of texts, if it was trained for that; `read_model_files` leaves it out.
    card: facts for the model's card; only the code that trains or loads the model fills them in.
    description: of `saving.description_of`, where the model is written more than once.
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


def read_model_files(path: str, hints: dict | None = None, config_file: str | None = None) -> ModelFiles:
    """Reads the files beside the weights at `path`.

    hints: `Weights.hints`, used for the casing if no file has it.
    config_file: a configuration to read instead. The head is read from there, or else from beside the weights.
    """
    directory = directory_of(path)
    head = read_head(posixpath.dirname(config_file), config_file) if config_file else NO_HEAD
    head = read_head(directory) if head == NO_HEAD else head
    config_file = config_file or find_config(directory)
    casing = read_casing(directory)
    if casing.do_lower_case is None and "do_lower_case" in (hints or {}):
        casing = Casing(bool(hints["do_lower_case"]), None, f"{directory} (its variable do_lower_case)")
    config = read_config(config_file) if config_file else None
    vocab_file = find_vocabulary(directory, (family_of(config) if config else BERT).tokenizer_class)
    return ModelFiles(directory, config, config_file, vocab_file, casing, read_max_length(directory), head)


def needed_config(files: ModelFiles) -> BertConfig:
    if files.config is None:
        raise ValueError(
            f"{files.directory or 'The model'} has no bert_config.json or config.json: name one (--bert_config_file)."
        )
    return files.config


def find_config(directory: str) -> str | None:
    names = [name for name in _CONFIG_CLASSES if first_existing(directory, (name,))]
    if len(names) > 1:
        raise ValueError(f"{directory} has {' and '.join(names)}: remove the one that is not the model's.")
    return first_existing(directory, (*names, HUGGINGFACE_CONFIG))


def vocabulary_in(folder: str) -> str:
    if not (vocab_file := read_model_files(folder).vocab_file):
        raise ValueError("the model has no vocabulary that is known here")
    return vocab_file


def config_files(config: BertConfig, head: HeadConfig) -> dict[str, str]:
    """name -> content of this project's configuration file, and of head_config.json unless it would be empty."""
    # The head goes first: once the configuration exists, everything is there.
    files = {} if head == NO_HEAD else {HEAD_CONFIG: head.to_json()}
    return {**files, config.file_name: config.to_json_string()}


def read_head(directory: str, config_file: str | None = None) -> HeadConfig:
    """The head of a directory's model, from head_config.json or else from its configuration, or `config_file`."""
    if path := first_existing(directory, (HEAD_CONFIG,)):
        return HeadConfig.read(path)
    config_file = config_file or find_config(directory)
    if not config_file:
        return NO_HEAD
    values = read_json(config_file)
    if _is_huggingface(config_file, values):
        from bert_tf.store import huggingface

        # As in sentence-transformers, which writes the activation of a cross-encoder there, the file comes first.
        beside = read_json_if_there(posixpath.join(posixpath.dirname(config_file), SENTENCES_CONFIG)) or {}
        if beside.get("activation_fn"):
            values["sentence_transformers"] = beside
        return huggingface.read_head(values, config_file)
    return HeadConfig.from_config(values, config_file)


def read_max_length(directory: str) -> int | None:
    """The longest row in training, as a directory's tokenizer_config.json has it; None if it does not."""
    length = (read_json_if_there(posixpath.join(directory, TOKENIZER_CONFIG)) or {}).get("model_max_length")
    # Hugging Face writes 10^30 for "no limit".
    return length if isinstance(length, int) and 0 < length < 1_000_000 else None


def read_config(path: str) -> BertConfig:
    """Reads a bert_config.json, or a config.json of Hugging Face."""
    values = read_json(path)
    if _is_huggingface(path, values):
        from bert_tf.store import huggingface

        return huggingface.read_config(values, path)
    return _CONFIG_CLASSES.get(posixpath.basename(path), BertConfig).from_json_file(path)


def _is_huggingface(path: str, values: dict) -> bool:
    name = posixpath.basename(path)
    return name == HUGGINGFACE_CONFIG or ("model_type" in values and name not in _CONFIG_CLASSES)


def tokenizer_of(files: ModelFiles, default: type[Tokenizer] | None = None, *, is_checked: bool = True) -> Tokenizer:
    """The tokenizer that a model's files describe, among which there is a vocabulary.

    If no file says whether it is cased, `files` gets what the vocabulary says.

    default: the tokenizer of the model's family; None: by the configuration, or BERT's.
    is_checked: a vocabulary that would fail later is an error.
    """
    default = default or (family_of(files.config) if files.config else BERT).tokenizer_class
    tokenizer = tokenizer_of_file(files.vocab_file, files.casing, default)
    if is_checked:
        tokenizer.check_vocabulary()
    if files.casing.do_lower_case is None and tokenizer.takes_strip_accents:
        files.casing = dataclasses.replace(files.casing, do_lower_case=not tokenizer.cased, source=files.vocab_file)
    if files.config:
        name = files.config_file or files.config.file_name
        check_vocab_size(files.config, tokenizer.vocab_size, files.vocab_file, name, is_new=not files.directory)
    return tokenizer


def vocabulary_mismatch(vocab_file: str | None, files: ModelFiles) -> str:
    """What is wrong with a vocabulary that takes the place of that beside the weights, in `files`; "" if nothing is.

    Tokens may be added at the end, or replace [unused1] and the like; if they replace others, a warning says so.
    A vocabulary that is damaged or of another kind passes: the code that uses it reports that.
    """
    beside, default = files.vocab_file, (family_of(files.config) if files.config else BERT).tokenizer_class
    if not (vocab_file and beside) or read_bytes(vocab_file) == read_bytes(beside):
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
        message = "%s: tokens in the places of others of %s, beside the weights: %s; the model does not know them yet."
        logging.warning(message, vocab_file, beside, counted)
    return ""


def check_other_vocabulary(vocab_file: str | None, files: ModelFiles) -> None:
    """Raises if a vocabulary has other ids than the one beside the weights; see `vocabulary_mismatch`."""
    with naming_flag("--vocab_file"):
        if problem := vocabulary_mismatch(vocab_file, files):
            raise ValueError(f"{problem}. Leave --vocab_file out, or remove the other file if that is the wrong one.")


def check_weights(path: str | None, flag: str) -> None:
    """Raises if nothing exists at a local path of weights; without TensorFlow."""
    if not path or is_remote(path) or os.path.exists(path) or paths_beginning_with(path + "."):
        return
    from bert_tf.system.released_models import hint

    raise FileNotFoundError(f"{flag}={path}: there is no such directory, weight file or checkpoint.{hint(path)}")


# --- together with the weights ----------------------------------------------------------------------------------------


def read_model(path: str, config_file: str | None = None, part: str | None = None) -> tuple[Weights, ModelFiles]:
    """Opens the weights at a path of any format, and reads the files beside them.

    config_file: a configuration to use instead of the one there. part: see `open_weights.open_weights`.

    For a SavedModel, Model Garden checkpoint or Google's ELECTRA without a configuration, sizes are inferred from the
    weights, and a log line says what can't be inferred.
    """
    return with_files(open_weights(path, part), config_file)


def with_files(weights: Weights, config_file: str | None = None) -> tuple[Weights, ModelFiles]:
    """`read_model` of open weights."""
    hints = weights.hints
    if hints.get("sizes_from_weights") and not config_file:
        # Runs of run_pretraining.py keep the configuration of a generator in a separate folder.
        of_generator = posixpath.join(directory_of(weights.path), "generator", ElectraConfig.file_name)
        config_file = of_generator if exists(of_generator) else None
    files = read_model_files(weights.path, hints, config_file)
    beside, heads = files.config, hints.get("num_attention_heads")
    if heads and (beside is None or (hints.get("sizes_from_weights") and not config_file)):
        files.config = variable_names.config_of_shapes(weights.path, weights.shapes, heads, beside)
    if files.config is None:
        return weights, files
    if beside is None:
        files.config.hidden_act = hints.get("hidden_act", files.config.hidden_act)
        assumed = f'{heads} attention heads, hidden_act "{files.config.hidden_act}", and dropout 0.1'
        what = f"{files.directory} has no {files.config.file_name}"
        _warn_once(f"{what}: sizes are those of the weights, with {assumed}.")
    name = files.config_file or "The configuration inferred from the weights"
    family = family_of_variables(weights.shapes)
    if family.model_type != files.config.model_type and any(map(is_encoder_variable, weights.shapes)):
        raise ValueError(f"{name} is of a {files.config.title}, but {weights.path} of a {family.config_class.title}.")
    variable_names.check_shapes(weights, files.config, name)
    _warn_of_version(weights, files)
    return weights, files


def _warn_of_version(weights: Weights, files: ModelFiles) -> None:
    """ALBERT's versions have the same variables, the second no dropout: names of directories tell which they are."""
    paths = (files.config_file or "", weights.path)
    named, version = ((match := _ALBERT_RELEASE.search(path)) and match[1] for path in paths)
    if (named and version and named != version) or (version == "2" and files.config.hidden_dropout_prob):
        _warn_once(f"{paths[0]} is not of version {version} of ALBERT, of which {weights.path} is by its directory.")


@functools.cache
def _warn_once(text: str) -> None:
    logging.warning("%s", text)


def describe(
    weights: Weights | None,
    *,
    bert_config_file: str | None,
    vocab_file: str | None,
    do_lower_case: bool | None,
    strip_accents: bool | None,
) -> ModelFiles:
    """Configuration, vocabulary and casing for a fine-tuning script, from its flags of these names.

    Whatever is not given is read from the directory of the weights.

    weights: of --init_checkpoint, or those that a run goes on from; None: it begins with random ones.
    """
    files = ModelFiles("")
    if weights is not None:
        files = read_model_files(weights.path, weights.hints, bert_config_file)
        if files.config is None:
            files = with_files(weights)[1]
    elif bert_config_file:
        config = read_config(bert_config_file)
        head = read_head(posixpath.dirname(bert_config_file), bert_config_file)
        files = ModelFiles("", config, bert_config_file, head=head)
    needed_config(files)
    family = family_of(files.config)
    if weights is not None:
        _warn_of_version(weights, files)
        # Weights trained with causal attention are to be used with it, which their shapes don't show.
        beside = bert_config_file and read_model_files(weights.path, weights.hints).config
        if beside and beside.attention != files.config.attention:
            raise ValueError(
                f"--bert_config_file={bert_config_file} says attention={files.config.attention}, but the configuration "
                f"beside {weights.path} {beside.attention}."
            )
        if family.parts.get("generator") in weights and "discriminator" not in weights.parts:
            _warn_once(
                f"{weights.path} is the generator of an {files.config.title}: its authors fine-tuned the discriminator."
            )
    check_other_vocabulary(vocab_file, files)
    files.vocab_file = vocab_file or files.vocab_file
    if not files.vocab_file:
        name = family.tokenizer_class.vocab_name
        raise ValueError(f"{files.directory or 'The model'} has no {name} or tokenizer.json: give --vocab_file.")
    beside_vocabulary = read_casing(directory_of(files.vocab_file))
    files.casing = resolve_casing(do_lower_case, strip_accents, files.casing, beside_vocabulary)
    return files


# --- exports ----------------------------------------------------------------------------------------------------------


def find_export(path: str) -> str | None:
    """The SavedModel or ONNX export at `path`: this directory, or the newest version in it; None if there is none."""
    versions = sorted((int(name) for name in names_in(path) if name.isdigit()), reverse=True)
    for candidate in (path, *(posixpath.join(path, str(version)) for version in versions)):
        if first_existing(candidate, (EXPORT_FILE,)) and first_existing(candidate, (GRAPH_FILE, *ONNX_FILES)):
            return candidate
    return None


def onnx_file(directory: str) -> str | None:
    """The path of the ONNX file in the directory of an export; None if that is a SavedModel."""
    return first_existing(directory, ONNX_FILES)
