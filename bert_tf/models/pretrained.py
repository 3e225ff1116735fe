"""Loads models from weights of any format and saves them: `from_pretrained`, `save_pretrained`, `write_model`."""

import contextlib
import dataclasses
import functools
import inspect
import os
import posixpath
import re
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf
from absl import logging

from bert_tf.models import card, initialize, open_weights, output_layers, random_weights, variable_names, write_weights
from bert_tf.models import directory as model_directory
from bert_tf.models.config import BertConfig, check_vocab_size
from bert_tf.models.directory import ModelFiles
from bert_tf.models.electra.config import ElectraConfig
from bert_tf.models.families import BERT, FAMILIES, family_of, family_of_variables
from bert_tf.models.formats import Format, format_named
from bert_tf.models.head_config import NO_HEAD, HeadConfig
from bert_tf.models.sentence_settings import settings_files
from bert_tf.models.variable_names import HIDDEN_LAYER
from bert_tf.system.atomic import temporary_folder, write_file, write_text_file
from bert_tf.system.messages import some
from bert_tf.text import casing as text_casing
from bert_tf.text import tokenizer_choice
from bert_tf.text import vocab as text_vocab
from bert_tf.text.added_tokens import AddedToken, read_added_tokens
from bert_tf.text.casing import Casing
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import FullTokenizer
from bert_tf.weights import bundle
from bert_tf.weights.mapping import Weights, is_model_variable

_FILES_ATTRIBUTE = "_pretrained_files"

# That of the original and of tf-models-official, whatever a configuration says.
_THEIR_LAYER_NORM_EPS = 1e-12


def read_model(path: str, config_file: str | None = None, part: str | None = None) -> tuple[Weights, ModelFiles]:
    """Opens the weights at a path of any format, and reads the files beside them.

    Args:
      config_file: a configuration to use instead of the one there. part: see `open_weights.open_weights`.

    For a SavedModel, Model Garden checkpoint or Google's ELECTRA without a configuration, sizes are inferred from the
    weights, and a log line says what can't be inferred.

    Raises:
      FileNotFoundError, ValueError: see `open_weights.open_weights` and `directory.read_model_files`, or the
        configuration does not match the weights.
    """
    return _with_files(open_weights.open_weights(path, part), config_file)


def _with_files(weights: Weights, config_file: str | None = None) -> tuple[Weights, ModelFiles]:
    """`read_model` of open weights."""
    if weights.hints.get("sizes_from_weights") and not config_file:
        # Runs of run_pretraining.py keep the configuration of a generator in a folder of its own.
        own = posixpath.join(text_casing.directory_of(weights.path), "generator", ElectraConfig.file_name)
        config_file = own if tf.io.gfile.exists(own) else None
    files = model_directory.read_model_files(weights.path, weights.hints, config_file)
    heads = weights.hints.get("num_attention_heads")
    beside = files.config
    if heads and (beside is None or (weights.hints.get("sizes_from_weights") and not config_file)):
        files.config = variable_names.config_of_shapes(weights.shapes, heads, beside)
    if files.config is not None and beside is None:
        files.config.hidden_act = weights.hints.get("hidden_act", files.config.hidden_act)
        _warn_once(
            f"{files.directory} has no {files.config.file_name}: sizes are inferred from the weights, with {heads} "
            f'attention heads; hidden_act is assumed to be "{files.config.hidden_act}", dropout to be 0.1.'
        )
    if files.config is not None:
        name = files.config_file or "The configuration inferred from the weights"
        scopes = {family.scope: family.config_class.title for family in FAMILIES}
        others = scopes.keys() & {variable.split("/")[0] for variable in weights.shapes} - {files.config.model_type}
        if others:
            raise ValueError(
                f"{name} is that of a {files.config.title}, but {weights.path} has the variables of a "
                f"{scopes[others.pop()]}: they belong to two models."
            )
        variable_names.check_shapes(weights, files.config, name)
        _warn_of_doubt(weights, files)
    return weights, files


def _warn_of_doubt(weights: Weights, files: ModelFiles) -> None:
    if files.config_file and (doubt := files.config.doubt(files.config_file, weights.path)):
        _warn_once(doubt)


@functools.cache
def _warn_once(text: str) -> None:
    """A warning about files, which a program may open several times."""
    logging.warning("%s", text)


def read_tokenizer(path: str) -> Tokenizer:
    """The tokenizer of a model directory (or of weights in it), of the kind that its family has.

        tokenizer = read_tokenizer("roberta-base")
        model(tokenizer(["one", "two words"]))  # arrays of input_ids, input_mask, segment_ids

    Raises:
      FileNotFoundError, ValueError: there is no model, or no vocabulary that fits it.
    """
    files, family = model_directory.read_model_files(path), BERT
    if files.config:
        family = family_of(files.config)
    else:
        with contextlib.suppress(FileNotFoundError):
            family = family_of_variables(open_weights.open_weights(path).shapes)
    tokenizer = family.tokenizer_class.from_pretrained(path)
    if files.config:
        check_vocab_size(files.config, tokenizer.vocab_size, files.vocab_file, files.config_file)
    return tokenizer


def read_config(bert_config_file: str | None, init_checkpoint: str | None, allow_unknown: bool = False) -> BertConfig:
    """The configuration that a script's flags of these names select: the file, or else the one beside the weights.

    Raises:
      ValueError: neither gives one.
    """
    if bert_config_file:
        return model_directory.read_config(bert_config_file, allow_unknown)
    if not init_checkpoint:
        raise ValueError("Give --bert_config_file, or --init_checkpoint with a configuration beside it.")
    files = read_model(init_checkpoint)[1]
    logging.info("Configuration from %s.", files.config_file or init_checkpoint)
    return needed_config(files)


def describe(
    weights: Weights | None,
    *,
    bert_config_file: str | None,
    vocab_file: str | None,
    do_lower_case: bool | None,
    strip_accents: bool | None,
    allow_unknown: bool = False,
) -> ModelFiles:
    """Configuration, vocabulary and casing for a fine-tuning script, from its flags of these names.

    Whatever is not given is read from the directory of the weights.

    Args:
      weights: of --init_checkpoint, or those that a run goes on from; None: it begins with random ones.

    Raises:
      ValueError: something is missing or does not match, or a flag contradicts the model's directory.
    """
    absent, files = "Give", ModelFiles("")
    if weights is not None:
        files = model_directory.read_model_files(weights.path, weights.hints, bert_config_file, allow_unknown)
        if files.config is None:
            files = _with_files(weights)[1]
        absent = f"{files.directory} has no %s: give"
    elif bert_config_file:
        config = model_directory.read_config(bert_config_file, allow_unknown)
        head = model_directory.read_head(posixpath.dirname(bert_config_file), bert_config_file)
        files = ModelFiles("", config, bert_config_file, head=head)
    if files.config is None:
        absent = absent.replace("%s", "configuration")
        raise ValueError(f"{absent} --bert_config_file, or --init_checkpoint with a configuration beside it.")
    family = family_of(files.config)
    if weights is not None:
        _check_attention(files.config, bert_config_file, weights)
        _warn_of_doubt(weights, files)
        if family.parts.get("generator") in weights and "discriminator" not in weights.parts:
            _warn_once(
                f"{weights.path} is the generator of an {files.config.title}: its authors fine-tuned the "
                "discriminator, which is better at other tasks than guessing words."
            )
    files.vocab_file = vocab_file or files.vocab_file
    if not files.vocab_file:
        absent, name = absent.replace("%s", "tokenizer"), family.tokenizer_class.vocab_name
        raise ValueError(f"{absent} --vocab_file, or --init_checkpoint with a {name} or tokenizer.json beside it.")
    beside_vocabulary = text_casing.read_casing(text_casing.directory_of(files.vocab_file))
    files.casing = text_casing.resolve_casing(do_lower_case, strip_accents, files.casing, beside_vocabulary)
    return files


def _check_attention(config: BertConfig, config_file: str | None, weights: Weights) -> None:
    """Checks that weights trained with causal attention are used with it, which their shapes don't show."""
    beside = config_file and model_directory.read_model_files(weights.path, weights.hints).config
    if beside and beside.attention != config.attention:
        raise ValueError(
            f"--bert_config_file={config_file} says attention={config.attention}, but the model at {weights.path} has "
            f"{beside.attention} in the configuration beside it: leave --bert_config_file out."
        )


def write_description(
    directory: str, files: ModelFiles, vocabulary: list[str] | None = None, added: Sequence[AddedToken] = ()
) -> None:
    """Writes the tokenizer's files and tokenizer_config.json, so that a directory can be used like any model directory.

    And the files that say how vectors of texts are made, if that is known.

    Args:
      files: with a configuration. Without a vocabulary nothing is written but the casing, if it is known.
      vocabulary: lines of vocab.txt instead of files.vocab_file, for word pieces. added: further added tokens.

    Raises:
      ValueError: the vocabulary does not fit the configuration; names the file.
    """
    if files.sentences:
        for name, content in settings_files(files.sentences, files.config.hidden_size).items():
            file = posixpath.join(directory, name)
            tf.io.gfile.makedirs(posixpath.dirname(file))
            write_text_file(file, content)
    path = posixpath.join(directory, text_casing.TOKENIZER_CONFIG)
    default = family_of(files.config).tokenizer_class
    if not files.vocab_file:
        if issubclass(default, FullTokenizer) and files.casing.do_lower_case is not None:
            model_directory.write_tokenizer_config(path, files, None)
        return
    kind = tokenizer_choice.tokenizer_class_of(files.vocab_file, default)
    casing = files.casing
    if issubclass(kind, FullTokenizer):
        lines = text_vocab.vocabulary_lines(files.vocab_file) if vocabulary is None else vocabulary
        if len(lines) > files.config.vocab_size:
            raise ValueError(
                f"{files.vocab_file} has {len(lines)} lines, but vocab_size is {files.config.vocab_size}: it belongs "
                "to another model."
            )
        if casing.do_lower_case is None:
            casing = text_casing.casing_of_vocabulary(files.vocab_file)
            logging.warning(
                "No file says whether the model is cased; do_lower_case=%s is %s. Give do_lower_case if that is wrong.",
                casing.do_lower_case,
                casing.source,
            )
        tokenizer = kind.from_file(files.vocab_file, casing)
        model_directory.add_tokens(tokenizer, added)
    else:
        tokenizer = model_directory.tokenizer_of(files, added)
    contents = tokenizer.files()
    if vocabulary is not None:
        contents[text_vocab.VOCAB] = "".join(line + "\n" for line in vocabulary).encode()
    for name, content in contents.items():
        write_file(posixpath.join(directory, name), content)
    model_directory.write_tokenizer_config(path, dataclasses.replace(files, casing=casing), tokenizer)


def needed_config(files: ModelFiles) -> BertConfig:
    """The configuration of a model's directory.

    Raises:
      ValueError: it has none; names the directory.
    """
    if files.config is None:
        raise ValueError(
            f"{files.directory} has no bert_config.json (or config.json), and the number of attention heads can't be "
            "inferred from the weights: put the model's configuration beside them, or name it (--bert_config_file, "
            "config=)."
        )
    return files.config


def from_pretrained(
    model_class: type,
    path: str,
    *,
    config: BertConfig | None = None,
    labels: Sequence[str] | None = None,
    new_head: bool = False,
    trained: bool = False,
    **arguments,
) -> keras.Model:
    """A model with the weights at `path`.

    Args:
      model_class: BertModel or one of the models with heads.
      path: a directory, checkpoint prefix or weight file of any of the four formats.
      config: used instead of the one beside the weights.
      labels: names of the classes in the order of their ids, saved with the model; for model classes with labels. The
        outputs of a trained model that knows its labels are put into this order.
      new_head: begin a new output layer, for other labels, or another number of them, than the model was trained for.
      trained: for those who answer with the model: what the weights lack is an error, and not a warning.
      arguments: for the class. Those that describe the head have the values in the file as defaults.

    Raises:
      FileNotFoundError, ValueError: see `read_model` and `checkpoints.initialize`; the output layer is that of other
        labels, or of another task; or with `trained` a variable is missing.
    """
    weights = open_weights.open_weights(path)
    if model_class.part in family_of_variables(weights.shapes).parts:
        weights = open_weights.choose_part(weights, model_class.part)
    weights, files = _with_files(weights)
    if model_class.other_head and model_class.other_head[0] in weights:
        raise ValueError(f"{path} has {model_class.other_head[1]}; {model_class.__name__} has another head.")
    if config is None and (files.vocab_file or "").endswith(".txt"):
        # As read_tokenizer does; before the weights are read.
        vocab = text_vocab.load_vocab(files.vocab_file)
        size = 1 + max(
            [*vocab.values(), *(token.id for token in read_added_tokens(files.vocab_file, vocab))], default=0
        )
        check_vocab_size(needed_config(files), size, files.vocab_file, files.config_file or files.config.file_name)
    config = config or needed_config(files)
    taken = inspect.signature(model_class.__init__).parameters
    if labels is not None:
        if "labels" not in taken:
            raise ValueError(f"labels={list(labels)}: {model_class.__name__} has no classes.")
        arguments = {"num_labels": len(labels), **arguments, "labels": labels}
    weights, head = output_layers.fitted(weights, files.head, path, model_class, new_head, arguments)
    outputs = weights.shapes[layer][0] if (layer := output_layers.layer_in(weights)) else None
    if HIDDEN_LAYER[0] in weights.shapes and not (config.classifier_act or head.hidden_act):
        head = dataclasses.replace(head, hidden_act="gelu_erf")
    stored = _stored_arguments(head, path, arguments.get("num_labels") or outputs)
    model = model_class(config, **{**{name: stored[name] for name in stored.keys() & taken.keys()}, **arguments})
    with random_weights.drawn_late():
        model.build()
        result = initialize.initialize(initialize.model_variables(model), weights)
    if trained:
        initialize.check_complete(result, model)
    initialize.log_initialization(result, model, logging.INFO)
    initialize.warn_of_random_weights(result, model, 4)
    beginning = card.beginning_of(path, weights, with_checksum=False)
    setattr(model, _FILES_ATTRIBUTE, dataclasses.replace(files, card=card.CardFacts(beginning)))
    return model


def _stored_arguments(head: HeadConfig, path: str, outputs: int | None) -> dict:
    """The arguments of a model's class that a directory's head gives.

    Args:
      outputs: number of the model's outputs, if known.
    """
    labels = head.labels
    if labels and outputs not in (None, len(labels)):
        logging.warning(
            "%s names %d labels, but the model has %d outputs: names are ignored.", path, len(labels), outputs
        )
        labels = None
    values = {"num_labels": outputs or len(labels or ()), "labels": labels}
    names = (
        "problem_type", "lstm_on_top", "features", "model_on_top", "size_on_top", "hidden_act", "window_pooling",
        "window_stride", "max_windows", "starts", "ends",
    )  # fmt: skip
    values |= {name: getattr(head, name) for name in names}
    return {name: value for name, value in values.items() if value}


def save_pretrained(
    model: keras.Model,
    directory: str,
    *,
    format: str = "bert_tf",
    vocab_file: str | None = None,
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a complete model directory: weights, configuration, head, vocabulary, casing, and a card (README.md).

    Args:
      directory: created if needed. format: one of `formats.FORMATS`.
      vocab_file, do_lower_case, strip_accents: by default those of the model that `from_pretrained` read.
      overwrite: replace existing files; a README.md that is not a card of ours stays in any case.

    Raises:
      ValueError, FileExistsError: see `write_model`.
    """
    if not model.built:
        model.build()
    files = getattr(model, _FILES_ATTRIBUTE, None) or ModelFiles(directory)
    casing = text_casing.resolve_casing(do_lower_case, strip_accents, files.casing)
    if casing.source == "the default":
        casing = Casing()
    files = dataclasses.replace(
        files,
        config=model.config,
        head=getattr(model, "head_config", NO_HEAD),
        vocab_file=vocab_file or files.vocab_file,
        casing=casing,
    )
    if files.vocab_file and (do_lower_case, strip_accents) != (None, None):
        model_directory.tokenizer_of(files).check_casing(files.vocab_file, do_lower_case, strip_accents)
    write_model(directory, initialize.model_weights(model), files, format=format, overwrite=overwrite)


@dataclasses.dataclass(frozen=True)
class Written:
    """The result of `write_model`.

    Attributes:
      path: of the weights. names: the original's name -> name in the file. left_out: name -> reason.
      files: all names in the directory.
    """

    path: str
    names: dict[str, str]
    left_out: dict[str, str]
    files: list[str]


def write_model(
    target: str,
    weights: Weights,
    files: ModelFiles,
    *,
    format: str,
    with_optimizer: bool = False,
    vocabulary: list[str] | None = None,
    added: Sequence[AddedToken] = (),
    overwrite: bool = False,
    check: Callable[[str], None] | None = None,
    card_text: str | None = None,
) -> Written:
    """Writes weights and their files in one of the formats, complete or not at all.

    Everything is written beside the target under a temporary name and then renamed.

    Args:
      target: a directory; for TensorFlow checkpoints also a prefix ending in .ckpt or .ckpt-<number>.
      files: configuration (required), head, vocabulary and casing to write, and facts for the card.
      with_optimizer: also write Adam moments and step (tf1 and bert_tf).
      vocabulary: lines of vocab.txt instead of files.vocab_file. added: further added tokens.
      overwrite: replace existing files.
      check: called with the path of the weights while they still have their temporary name; may raise.
      card_text: the card, if `files` don't describe it.

    Raises:
      ValueError: the format is unknown or can't store what is asked for, or there is no configuration.
      FileExistsError: a file to be written exists.
      OSError: disk full or no permission; nothing is left behind.
    """
    kind = format_named(format)
    config = needed_config(files)
    formats = family_of(config).formats
    if format not in formats:
        raise ValueError(f"format={format}: {config.title} has no such format; it has {', '.join(formats)}.")
    variant = "has causal attention (attention=causal)" if config.is_causal else files.head.variant
    if variant and not kind.holds_variants:
        raise ValueError(
            f"format={format}: this model {variant}, which the {format} format can't record, so that others would "
            "read it as an ordinary BERT. Use bert_tf."
        )
    if with_optimizer and not kind.holds_optimizer:
        raise ValueError(f"--with_optimizer: the {format} format can't store Adam moments and the step; use tf1.")
    if with_optimizer and "global_step" not in weights.shapes:
        raise ValueError(f"--with_optimizer: {weights.path} has no optimizer state (no global_step).")
    if format == "tf1" and config.layer_norm_eps != _THEIR_LAYER_NORM_EPS:
        logging.warning(
            "format=%s: layer_norm_eps is %g, which programs for this format don't read: they compute with %g, and "
            "their outputs differ.", format, config.layer_norm_eps, _THEIR_LAYER_NORM_EPS,
        )  # fmt: skip
    left_out = {}
    if not with_optimizer:
        left_out = {name: "optimizer state" for name in weights if not is_model_variable(name)}
        weights = dataclasses.replace(weights, shapes={n: s for n, s in weights.shapes.items() if n not in left_out})
    directory, name = _split_target(target, kind)
    if name is None:
        # A run of the original resumes from the newest model.ckpt-<step> that the state file names.
        numbered = with_optimizer and kind.takes_prefix
        name = f"model.ckpt-{int(weights['global_step'])}" if numbered else kind.file_name
    old = _check_target(directory, name, weights.path, overwrite)  # before the work, not after it
    temporary = f"{directory.rstrip('/')}.{os.getpid()}.writing"
    try:
        with temporary_folder(temporary):
            names = write_weights.write_weights(posixpath.join(temporary, name), kind, weights, config, files.head)
            if name.startswith("model.ckpt-"):
                write_text_file(posixpath.join(temporary, "checkpoint"), f'model_checkpoint_path: "{name}"\n')
            write_description(temporary, files, vocabulary, added)
            if not card.is_others(directory):
                write_text_file(posixpath.join(temporary, card.CARD), card_text or card_of(weights, files, format))
            if check:
                check(posixpath.join(temporary, name))
            written = _move(temporary, directory, old)
    except tf.errors.OpError as error:
        raise OSError(f"{target} could not be written: {error.message}") from error
    left_out |= {name: f"the {format} format can't store it" for name in weights if name not in names}
    return Written(posixpath.join(directory, name), names, left_out, written)


def card_of(weights: Weights, files: ModelFiles, format: str) -> str:
    """The card of a model that has weights of these variables and these files; see `card.card_text`."""
    return card.card_text(
        files.config, files.head, weights.shapes, files.card, format, casing=files.casing, sentences=files.sentences
    )


def _split_target(target: str, kind: Format) -> tuple[str, str | None]:
    """The directory, and the name of the weights if the target gives one."""
    name = posixpath.basename(target)
    is_prefix = kind.takes_prefix and (name.endswith(".ckpt") or ".ckpt-" in name)
    if is_prefix and not tf.io.gfile.isdir(target):
        return posixpath.dirname(target) or ".", name
    return target, None


# Weights, configuration, head, vocabulary and casing of a model; left beside another model's they would be mixed up.
_MODEL_FILE = re.compile(
    r"(\w+_)?config\.json|vocab\.(txt|json)|merges\.txt|spiece\.model|tokenizer(_config)?\.json|"
    r"special_tokens_map\.json|added_tokens\.json|checkpoint|"
    r"(bert_)?model(-\d+-of-\d+)?\.safetensors(\.index\.json)?|pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?|"
    r".*\.ckpt(-\d+)?\.(index|meta|data-\d+-of-\d+)|lora\.safetensors|modules\.json|sentence_bert_config\.json|[12]_\w+/config\.json"
)


def _check_target(directory: str, name: str, source: str, overwrite: bool) -> list[str]:
    """Refuses a target that would mix or destroy models; returns the files of an old model to remove.

    Raises:
      ValueError: no directory is named, or it is that of the source. FileExistsError: it has a model and `overwrite` is
        False, or it has the checkpoints of a training run.
    """
    if not directory:
        raise ValueError("The target names no directory.")
    if not tf.io.gfile.exists(directory):
        return []
    if not tf.io.gfile.isdir(directory):
        raise FileExistsError(f"{directory} is a file; a directory is needed.")
    old = sorted(file for file in _files_in(directory) if _MODEL_FILE.fullmatch(file))
    old += [card.CARD] * card.is_ours(directory)
    if old and not overwrite:
        raise FileExistsError(
            f"{directory} already has files of a model ({some(old)}): give another target, or replace them all with "
            "--overwrite (overwrite=True)."
        )
    from_file = tf.io.gfile.exists(source) or tf.io.gfile.exists(source + bundle.INDEX_SUFFIX)
    if old and from_file and posixpath.normpath(text_casing.directory_of(source)) == posixpath.normpath(directory):
        raise ValueError(f"{directory} would replace the source {source}: give another target.")
    run = [file for file in old if file.startswith("model.ckpt-") and not file.startswith(name + ".")]
    if run:
        raise FileExistsError(f"{directory} has the checkpoints of a training run ({some(run)}): give another target.")
    return old


def _files_in(directory: str) -> list[str]:
    """The names of the files in a directory and, with the folder's, in its folders."""
    names = []
    for name in sorted(entry.rstrip("/") for entry in tf.io.gfile.listdir(directory)):
        path = posixpath.join(directory, name)
        inner = tf.io.gfile.listdir(path) if tf.io.gfile.isdir(path) else None
        names += [name] if inner is None else [posixpath.join(name, entry.rstrip("/")) for entry in sorted(inner)]
    return names


def _move(temporary: str, directory: str, old: list[str]) -> list[str]:
    """Moves the written files to their final place and removes the `old` model's files; returns the names."""
    names = _files_in(temporary)
    if not tf.io.gfile.exists(directory):
        tf.io.gfile.rename(temporary, directory)
        return names
    # The index of a checkpoint goes last: a prefix counts as a checkpoint only once it has an index.
    for name in sorted(names, key=lambda name: name.endswith((bundle.INDEX_SUFFIX, ".safetensors"))):
        tf.io.gfile.makedirs(posixpath.dirname(posixpath.join(directory, name)))
        tf.io.gfile.rename(posixpath.join(temporary, name), posixpath.join(directory, name), overwrite=True)
    for name in set(old) - set(names):
        tf.io.gfile.remove(posixpath.join(directory, name))
    return names
