"""Loads models from weights of any format, and saves them: `from_pretrained`, `save_pretrained`.

What describes a model is read without TensorFlow and Keras, so that a mistake in it is said before their import.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from absl import logging

from bert_tf.families import family_of, family_of_variables
from bert_tf.families.config import BertConfig, check_vocab_size
from bert_tf.families.names import HIDDEN_LAYER
from bert_tf.store import card, head_config, open_weights
from bert_tf.store import directory as model_directory
from bert_tf.store.directory import ModelFiles, needed_config, read_model, with_files
from bert_tf.system.checks import list_of_names, path_of, target_directory
from bert_tf.text import tokenizer_files
from bert_tf.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import keras

_FILES_ATTRIBUTE = "_pretrained_files"


def read_tokenizer(path: str) -> Tokenizer:
    """The tokenizer of a model directory (or of weights in it), of the kind that its family has.

        tokenizer = read_tokenizer("roberta-base")
        model(tokenizer(["one", "two words"]))  # arrays of input_ids, input_mask, segment_ids

    Raises:
      FileNotFoundError, ValueError: there is no model, or no vocabulary that fits it.
    """
    path = path_of(path, model_directory.read_head, with_weights=False)
    files, names = model_directory.read_model_files(path), {}
    if not files.config:
        with contextlib.suppress(FileNotFoundError):
            names = open_weights.open_weights(path).shapes
    family = family_of(files.config) if files.config else family_of_variables(names)
    tokenizer = family.tokenizer_class.from_pretrained(path)
    if files.config:
        check_vocab_size(files.config, tokenizer.vocab_size, files.vocab_file, files.config_file)
        tokenizer.max_length = min(files.max_seq_length or files.config.max_length, files.config.max_length)
    return tokenizer


def read_config(bert_config_file: str | None, init_checkpoint: str | None) -> BertConfig:
    """The configuration that a script's flags of these names select: the file, or else the one beside the weights."""
    if bert_config_file:
        return model_directory.read_config(bert_config_file)
    if not init_checkpoint:
        raise ValueError("Give --bert_config_file, or --init_checkpoint with a configuration beside it.")
    files = read_model(init_checkpoint)[1]
    logging.info("Configuration from %s.", files.config_file or init_checkpoint)
    return needed_config(files)


def from_pretrained(
    model_class: type,
    path: str,
    *,
    config: BertConfig | None = None,
    labels: Sequence[str] | None = None,
    id2label: Mapping[int | str, str] | None = None,
    label2id: Mapping[str, int] | None = None,
    new_head: bool = False,
    trained: bool = False,
    **arguments,
) -> "keras.Model":
    """A model of a class with the weights at `path`; see `heads.Pretrained.from_pretrained`.

    id2label, label2id: labels, as transformers has them.
    trained: for those who answer with the model: what the weights lack is an error, and not a warning.
    """
    from bert_tf.models import initialize

    path = path_of(path, model_directory.read_head)
    weights = open_weights.open_weights(path)
    if model_class.part in family_of_variables(weights.shapes).parts:
        weights = open_weights.choose_part(weights, model_class.part)
    weights, files = with_files(weights)
    config = config or needed_config(files)
    taken = inspect.signature(model_class.__init__).parameters
    labels = _labels(id2label, label2id) if labels is None else labels
    if labels is not None:
        labels = list_of_names(labels, "labels")
        arguments = {"num_labels": len(labels), **arguments, "labels": labels}
    weights, head = head_config.fitted(weights, files.head, path, model_class, new_head, arguments)
    outputs = arguments.get("num_labels") or weights.shapes.get(head_config.OUTPUT_LAYER, (None,))[0]
    if HIDDEN_LAYER[0] in weights.shapes and not (config.classifier_act or head.hidden_act):
        head = dataclasses.replace(head, hidden_act="gelu_erf")
    if (known := head.labels) and outputs not in (None, len(known)):
        message = "%s names %d labels, but the model has %d outputs: names are ignored."
        logging.warning(message, path, len(known), outputs)
        known = None
    stored = {**head.to_dict(), "num_labels": outputs or len(known or ()), "labels": known}
    if "pooling" in taken:
        from bert_tf.store.sentence_settings import read_settings  # few models have them

        files.sentences = read_settings(files.directory)
        stored["pooling"] = files.sentences.pooling
    stored = {name: value for name, value in stored.items() if value and name in taken}
    model = model_class(config, **{**stored, **arguments})
    initialize.initialize_model(model, weights, depth=4, complete=trained, untrained=head.untrained)
    beginning = card.beginning_of(path, weights, with_checksum=False)
    setattr(model, _FILES_ATTRIBUTE, dataclasses.replace(files, head=head, card=card.CardFacts(beginning)))
    return model


def _labels(id2label: Mapping | None, label2id: Mapping | None) -> list[str] | None:
    if id2label:
        return [id2label[number] for number in sorted(id2label, key=int)]
    return sorted(label2id, key=label2id.get) if label2id else None


def save_pretrained(
    model: "keras.Model",
    directory: str,
    *,
    format: str = "bert_tf",
    vocab_file: str | None = None,
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a complete model directory: weights, configuration, head, vocabulary, casing, and a card (README.md).

    directory: created if needed. format: one of `open_weights.FORMATS`.
    vocab_file, do_lower_case, strip_accents: by default those of the model that `from_pretrained` read.
    overwrite: replace existing files; a README.md that is not a card of ours stays in any case.
    """
    from bert_tf.models import initialize
    from bert_tf.store import saving

    directory = target_directory(directory)
    if not model.built:
        model.build()
    files = getattr(model, _FILES_ATTRIBUTE, None) or ModelFiles(directory)
    if problem := model_directory.vocabulary_mismatch(vocab_file, files):
        logging.warning("vocab_file: %s.", problem)
    casing = tokenizer_files.resolve_casing(do_lower_case, strip_accents, files.casing)
    sentences = files.sentences
    if pooling := getattr(model, "pooling", None):
        from bert_tf.store.sentence_settings import SentenceSettings

        sentences = dataclasses.replace(sentences or SentenceSettings(directory), pooling=pooling)
    known = {"pairs": files.head.pairs, "activation": files.head.activation}
    known["untrained"] = tuple(initialize.untrained_variables(model))
    head = dataclasses.replace(getattr(model, "head_config", head_config.NO_HEAD), **known)
    described = {"config": model.config, "head": head, "casing": casing, "sentences": sentences}
    files = dataclasses.replace(files, **described, vocab_file=vocab_file or files.vocab_file)
    if files.vocab_file and (do_lower_case, strip_accents) != (None, None):
        model_directory.tokenizer_of(files).check_casing(files.vocab_file, do_lower_case, strip_accents)
    saving.write_model(directory, initialize.model_weights(model), files, format=format, overwrite=overwrite)
