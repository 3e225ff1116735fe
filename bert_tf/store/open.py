"""One way in: a model's path, or its name on the hub, is opened once, and what was found is passed on.

    opened = open_model("klue/bert-base")
    opened.config, opened.head, opened.weights["bert/pooler/dense/bias"], opened.make_tokenizer()

Keras is never imported here, TensorFlow for paths that only it opens (gs://...) and for the Model Garden's checkpoints.
"""

import dataclasses

from bert_tf.families.families import Family, family_of, family_of_variables
from bert_tf.store import card
from bert_tf.store.directory import (
    ModelFiles,
    find_export,
    needed_config,
    onnx_file,
    read_head,
    read_model_files,
    tokenizer_of,
    with_files,
)
from bert_tf.store.open_weights import choose_part, has_weights, open_weights
from bert_tf.store.sentence_settings import read_settings
from bert_tf.store.tensor_files import Weights
from bert_tf.system.checks import path_of
from bert_tf.system.storage import name_of
from bert_tf.text import find_vocabulary
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import directory_of, is_there


@dataclasses.dataclass
class OpenedModel(ModelFiles):
    """A model that was opened: `ModelFiles`, its weights, and where it was.

    Everything that takes a model takes this: `ModelFiles` has its configuration, head, vocabulary, casing and the rest.

    path: the local one that was opened: a folder, a file of weights, or the prefix of a checkpoint.
    weights: a mapping that reads a tensor on each access, see `Weights`; None if the model was opened without.
    export: the folder of a SavedModel or ONNX export, see `open_model`. Of a SavedModel nothing else is known.
    """

    path: str = ""
    weights: Weights | None = None
    export: str | None = None

    @property
    def name(self) -> str:
        """`path`, or of a model of the hub owner/name@commit."""
        return name_of(self.path)

    @property
    def family(self) -> Family:
        """By the configuration, else by the names of the weights, else BERT."""
        return family_of(self.config) if self.config else family_of_variables(self.weights or {})

    @property
    def is_onnx(self) -> bool:
        return self.export is not None and onnx_file(self.export) is not None

    def needed_config(self):
        """The configuration; raises if there is none."""
        return needed_config(self)

    def make_tokenizer(self) -> Tokenizer:
        """A new tokenizer, of the model's kind and casing, checked against the configuration.

        Its `max_length` is what the model takes, or was trained with. Raises if there is no vocabulary.
        """
        kind = self.family.tokenizer_class
        if not self.config:  # the names of the weights say more than `read_model_files` knew
            self.vocab_file = find_vocabulary(self.directory, kind)
        if not self.vocab_file:
            raise ValueError(f"{name_of(self.directory)} has no {kind.vocab_name} and no tokenizer.json.")
        tokenizer = tokenizer_of(self, kind, is_checked=False)
        if self.config:
            tokenizer.max_length = min(self.max_seq_length or self.config.max_length, self.config.max_length)
        return tokenizer

    def beginning(self, with_checksum: bool = True) -> dict[str, object]:
        """What a card says of these weights where a model begins with them, see `card.beginning_of`."""
        return card.beginning_of(self.path, self.weights, with_checksum)


def open_model(
    path,
    *,
    part: str | None = None,
    config_file: str | None = None,
    with_weights: bool = True,
    for_vectors: bool = False,
    or_export: bool = False,
    is_checked: bool = True,
) -> OpenedModel:
    """Opens a model, whose configuration is checked against the names and shapes of its weights.

    Args:
      path: a folder of any format, a file of weights, the prefix of a checkpoint, or a name on the hub.
      part: which of the models that are trained together, if the family has any, see `Family.parts`.
      config_file: a configuration to use instead of the one there.
      with_weights: False: they are neither fetched nor opened, unless nothing else says the family.
      for_vectors: also `sentences`; a folder of sentence-transformers may have its encoder in another one, which is
        then opened.
      is_checked: False: weights and configuration may differ, as where training begins with a part of a model.
      or_export: an export there, the newest version in the folder, is taken instead of weights.

    Raises:
      FileNotFoundError: there is nothing.
      ValueError: files are damaged, contradict each other, or are of a family that is not known here.
    """
    path, sentences = path_of(path, read_head, with_weights), None
    if for_vectors:
        sentences = read_settings(directory_of(path))
        path = sentences.directory if sentences.described else path
    export, weights = find_export(path) if or_export else None, None
    if export:
        path, is_onnx = export, onnx_file(export)
        files = read_model_files(export) if is_onnx else ModelFiles(export)
        sentences = read_settings(export) if for_vectors and is_onnx else sentences
    elif with_weights:
        weights = open_weights(path)
        if part in family_of_variables(weights.shapes).parts:
            weights = choose_part(weights, part)
        files = read_model_files(weights.path, weights.hints, config_file)
        weights, files = with_files(weights, config_file) if is_checked else (weights, files)
    else:
        files = read_model_files(path, None, config_file)
        if not files.config and not is_there(path):
            from bert_tf.system.released_models import hint

            raise FileNotFoundError(f"{path} does not exist.{hint(path)}")
        if not files.config and has_weights(path):
            weights = open_weights(path)
    return OpenedModel(**{**vars(files), "sentences": sentences}, path=path, weights=weights, export=export)
