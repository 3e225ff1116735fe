"""Loads models from weights of any format, and saves them: `from_pretrained`, `save_pretrained`.

What describes a model is read without TensorFlow and Keras, so that a mistake in it is said before their import.
"""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from absl import logging

from bert_tf.families.config import BertConfig
from bert_tf.families.family import HIDDEN_LAYER
from bert_tf.store import card, head_config
from bert_tf.store.description import CardFacts, ModelFiles, SentenceSettings, read_settings, vocabulary_mismatch
from bert_tf.store.open import OpenedModel, open_model
from bert_tf.system.checks import list_of_names, target_directory
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import resolve_casing

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
    return open_model(path, with_weights=False).make_tokenizer()


def from_pretrained(
    model_class: type,
    path: str | OpenedModel,
    *,
    config: BertConfig | None = None,
    labels: Sequence[str] | None = None,
    id2label: Mapping[int | str, str] | None = None,
    label2id: Mapping[str, int] | None = None,
    new_head: bool = False,
    trained: bool = False,
    **arguments,
) -> "keras.Model":
    """A model of a class with the weights at `path`, or of an opened model; see `heads.Pretrained.from_pretrained`.

    id2label, label2id: labels, as transformers has them.
    trained: for those who answer with the model: what the weights lack is an error, and not a warning.
    """
    from bert_tf.models import initialize

    opened = path if isinstance(path, OpenedModel) else open_model(path, part=model_class.part)
    config = config or opened.needed_config()
    taken = inspect.signature(model_class.__init__).parameters
    if labels is None and id2label:
        labels = [id2label[number] for number in sorted(id2label, key=int)]
    elif labels is None and label2id:
        labels = sorted(label2id, key=label2id.get)
    if labels is not None:
        labels = list_of_names(labels, "labels")
        arguments = {"num_labels": len(labels), **arguments, "labels": labels}
    weights, head = head_config.fitted(opened.weights, opened.head, opened.path, model_class, new_head, arguments)
    outputs = arguments.get("num_labels") or weights.shapes.get(head_config.OUTPUT_LAYER, (None,))[0]
    if HIDDEN_LAYER[0] in weights.shapes and not (config.classifier_act or head.hidden_act):
        head = dataclasses.replace(head, hidden_act="gelu_erf")
    if (known := head.labels) and outputs not in (None, len(known)):
        message = "%s names %d labels, but the model has %d outputs: names are ignored."
        logging.warning(message, opened.path, len(known), outputs)
        known = None
    stored = {**head.to_dict(), "num_labels": outputs or len(known or ()), "labels": known}
    sentences = None
    if "pooling" in taken:
        sentences = opened.sentences or read_settings(opened.directory)
        stored["pooling"] = sentences.pooling
    stored = {name: value for name, value in stored.items() if value and name in taken}
    model = model_class(config, **{**stored, **arguments})
    initialize.initialize_model(model, weights, depth=4, complete=trained, untrained=head.untrained)
    facts = CardFacts(card.beginning_of(opened.path, opened.weights, with_checksum=False))
    files = dataclasses.replace(opened, weights=None, head=head, sentences=sentences, card=facts)
    setattr(model, _FILES_ATTRIBUTE, files)
    return model


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

    directory: created if needed. format: one of `FORMATS`.
    vocab_file, do_lower_case, strip_accents: by default those of the model that `from_pretrained` read.
    overwrite: replace existing files; a README.md that is not a card of ours stays in any case.
    """
    from bert_tf.models import initialize
    from bert_tf.store import save

    directory = target_directory(directory)
    if not model.built:
        model.build()
    files = getattr(model, _FILES_ATTRIBUTE, None) or ModelFiles(directory)
    if problem := vocabulary_mismatch(vocab_file, files):
        logging.warning("vocab_file: %s.", problem)
    casing = resolve_casing(do_lower_case, strip_accents, files.casing)
    sentences = files.sentences
    if pooling := getattr(model, "pooling", None):
        sentences = dataclasses.replace(sentences or SentenceSettings(directory), pooling=pooling)
    known = {"pairs": files.head.pairs, "activation": files.head.activation}
    known["untrained"] = tuple(initialize.untrained_variables(model))
    head = dataclasses.replace(getattr(model, "head_config", head_config.NO_HEAD), **known)
    described = {"config": model.config, "head": head, "casing": casing, "sentences": sentences}
    files = dataclasses.replace(files, **described, vocab_file=vocab_file or files.vocab_file)
    if files.vocab_file and (do_lower_case, strip_accents) != (None, None):
        files.make_tokenizer(is_checked=True).check_casing(files.vocab_file, do_lower_case, strip_accents)
    save.write_model(directory, initialize.model_weights(model), files, format=format, overwrite=overwrite)
