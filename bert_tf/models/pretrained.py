"""What all models share: they load weights of any format, and save and export themselves."""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import keras
from absl import logging

from bert_tf.families.config import BertConfig
from bert_tf.families.family import HIDDEN_LAYER
from bert_tf.models import initialize
from bert_tf.store import card, description, head_config
from bert_tf.store.head_config import NO_HEAD
from bert_tf.store.open import OpenedModel, open_model
from bert_tf.store.tensor_files import Weights
from bert_tf.system.checks import list_of_names, target_directory
from bert_tf.text.tokenizer_files import resolve_casing


class Pretrained:
    """A mixin for all models.

    Attributes:
      exported_inputs: name -> rank of the int32 arrays that an exported model takes.
      head_config: the head, which `save_pretrained` writes next to the encoder's configuration.
      reads_pooler: whether an output depends on the encoder's pooler.
      part: of models that are trained together, this one's name (see `Family.parts`); None: any of them.
    """

    head_config = NO_HEAD
    reads_pooler: bool = True
    part: str | None = None
    exported_inputs: Mapping[str, int] = MappingProxyType({"input_ids": 2, "input_mask": 2, "segment_ids": 2})
    _files: description.ModelFiles | None = None  # those that it was loaded from

    @staticmethod
    def weights_in(weights: Weights) -> Weights:
        """The weights of a file for a model of this class, under the names of its variables."""
        return weights

    @classmethod
    def from_pretrained(
        cls,
        path: str | OpenedModel,
        *,
        config: BertConfig | None = None,
        labels: Sequence[str] | None = None,
        id2label: Mapping[int | str, str] | None = None,
        label2id: Mapping[str, int] | None = None,
        new_head: bool = False,
        trained: bool = False,
        **arguments,
    ):
        """A model with the weights at `path`.

        Args:
          path: a directory, checkpoint prefix or weight file: of the original, Hugging Face, Model Garden, TensorFlow
            Hub or this project; the format is detected. Or an opened model.
          config: instead of the one next to the weights.
          labels: names of the labels instead of those in the file: the outputs of a model that was trained for the same
            names are put into this order. id2label, label2id: the same, as transformers has them.
          new_head: begin a new output layer.
          trained: for those who answer with the model: what the weights lack is an error, and not a warning.
          arguments: for the class. `num_labels`, if the class has it, defaults to that of the head in the file.

        Warns:
          PartialLoadWarning: the file lacks variables of the model, which are random until they are trained.

        Raises:
          FileNotFoundError, ValueError: weights are missing, damaged or don't match.
        """
        opened = path if isinstance(path, OpenedModel) else open_model(path, part=cls.part)
        config = config or opened.needed_config()
        taken = inspect.signature(cls.__init__).parameters
        if labels is None and id2label:
            labels = [id2label[number] for number in sorted(id2label, key=int)]
        elif labels is None and label2id:
            labels = sorted(label2id, key=label2id.get)
        if labels is not None:
            labels = list_of_names(labels, "labels")
            arguments = {"num_labels": len(labels), **arguments, "labels": labels}
        weights, head = head_config.fit_to_class(opened.weights, opened.head, opened.path, cls, new_head, arguments)
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
            sentences = opened.sentences or description.read_sentence_settings(opened.directory)
            stored["pooling"] = sentences.pooling
        stored = {name: value for name, value in stored.items() if value and name in taken}
        model = cls(config, **{**stored, **arguments})
        initialize.initialize_model(model, weights, complete=trained, untrained=head.untrained)
        facts = description.CardFacts(card.beginning_of(opened.path, opened.weights, with_checksum=False))
        model._files = dataclasses.replace(opened, weights=None, head=head, sentences=sentences, card=facts)
        return model

    def save_pretrained(
        self,
        directory: str,
        *,
        format: str = "bert_tf",
        vocab_file: str | None = None,
        do_lower_case: bool | None = None,
        strip_accents: bool | None = None,
        overwrite: bool = False,
    ) -> None:
        """Writes a complete model directory: weights, configuration, head, vocabulary, casing, and a card (README.md).

        directory: created if needed. format: "bert_tf", "tf1" or "huggingface".
        vocab_file, do_lower_case, strip_accents: by default those of the model that `from_pretrained` read.
        overwrite: replace existing files; a README.md that is not a card of ours stays in any case.
        """
        from bert_tf.store import save  # not needed to answer with a model

        directory = target_directory(directory)
        if not self.built:
            self.build()
        files = self._files or description.ModelFiles(directory)
        if problem := description.vocabulary_mismatch(vocab_file, files):
            logging.warning("vocab_file: %s.", problem)
        casing = resolve_casing(do_lower_case, strip_accents, files.casing)
        sentences = files.sentences
        if pooling := getattr(self, "pooling", None):
            sentences = dataclasses.replace(sentences or description.SentenceSettings(directory), pooling=pooling)
        known = {"pairs": files.head.pairs, "activation": files.head.activation}
        known["untrained"] = tuple(initialize.untrained_variables(self))
        head = dataclasses.replace(self.head_config, **known)
        described = {"config": self.config, "head": head, "casing": casing, "sentences": sentences}
        files = dataclasses.replace(files, **described, vocab_file=vocab_file or files.vocab_file)
        if files.vocab_file and (do_lower_case, strip_accents) != (None, None):
            files.make_tokenizer(is_checked=True).check_casing(files.vocab_file, do_lower_case, strip_accents)
        save.write_model(directory, initialize.model_weights(self), files, format=format, overwrite=overwrite)

    def export(self, filepath: str, format: str = "tf_saved_model", *, input_signature=None, **arguments) -> None:
        """Writes the model for inference with Keras's exporter: token ids in, the model's outputs out.

            model.export("exported")
            tf.saved_model.load("exported").serve(tokenizer(["A text."]))

        export_saved_model.py, on a directory from `save_pretrained`, gives more: signatures that take texts, with the
        tokenizer and the labels in the graph, warm-up requests, and an export that `Predictor` and the like can open.

        Args:
          filepath: a directory. format: one of Keras's. arguments: for `keras.Model.export`.
          input_signature: a list with one dict of specs; by default `exported_inputs` of any batch size and length.

        Raises:
          ValueError: variables are random, which the weights lacked from which the model was loaded.
        """
        if not self.built:
            self.build()
        initialize.check_trained(self)
        if input_signature is None:
            # Keras would use the shapes of the first call, but does not record them for a model already built.
            ranks, spec = self.exported_inputs.items(), keras.layers.InputSpec
            input_signature = [{name: spec("int32", (None,) * rank, name=name) for name, rank in ranks}]
        super().export(filepath, format, input_signature=input_signature, **arguments)
