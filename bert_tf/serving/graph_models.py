"""The functions behind the signatures of an exported model, for each task.

One class per task, each with `signatures()`: name -> tf.function. `serving_default` takes strings, `serve_ids` token
ids, `serve_examples` serialized tf.Examples of token ids. They consist of TensorFlow ops only. The model is any Keras
model of this project with the task's head.

Shape legend: B batch, S sequence length, C classes, N choices, M masks, K guesses, H hidden size.
"""

import functools
import types
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from bert_tf.models.layers import finished, pooled
from bert_tf.serving.graph_inputs import Folded, TextEncoder, cut, fold, parse_examples, slices_of, unfolded
from bert_tf.store.head_config import NO_HEAD
from bert_tf.store.sentence_settings import SentenceSettings
from bert_tf.system.messages import without_notes
from bert_tf.system.tensorflow_internals import frozen
from bert_tf.tasks.rows import windows_of_model
from bert_tf.text.tokenizer import Tokenizer

IDS = {name: tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "input_mask", "segment_ids")}
# Inputs of batches in which texts share rows.
FOLDED = {
    **{name: tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "segment_ids", "position_ids")},
    "input_mask": tf.TensorSpec([None, None, None], tf.int32, "input_mask"),
    "pooled_positions": tf.TensorSpec([None, 2], tf.int32, "pooled_positions"),
}


def strings(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name)


def signature(function: Callable, *specs: tf.TensorSpec) -> tf.types.experimental.PolymorphicFunction:
    """A function of tensors with these names, for an export."""
    return tf.function(function, specs, autograph=False)


class ServedModel:
    """The base class of all tasks. A task adds `outputs`: features [B, S] -> what a signature returns.

    Attributes:
      labels: the names of the classes; empty if there are none. problem_type: of a classifier, as in its `HeadConfig`.
      vocab_size, mask_id: of the tokenizer.
      facts: what export.json says beside what all exports have.
      folds: texts may share rows. Set it to False before anything is traced for a runtime that gains nothing by it.

    model: a Keras model of this project, built. split_unknown: see `graph_of`.
    """

    labels: Sequence[str] = ()
    problem_type: str | None = None
    folds: bool = False
    facts: Mapping[str, object] = types.MappingProxyType({})

    def __init__(self, model: keras.Model, tokenizer: Tokenizer, max_seq_length: int, split_unknown: bool = False):
        self._model, self._variables = model, [variable.value for variable in model.weights]
        self.encoder = TextEncoder(tokenizer, max_seq_length, split_unknown)
        self.max_seq_length = max_seq_length
        self.vocab_size, self.mask_id = tokenizer.vocab_size, tokenizer.mask_id

    def tracked(self, assets: Sequence[tf.saved_model.Asset] = ()) -> tf.Module:
        """The objects that a SavedModel of its signatures must keep: TensorFlow's variables, and the assets."""
        root = tf.Module(name="served")
        root.variables_of_model, root.assets = self._variables, list(assets)
        return root

    def model_inputs(self) -> dict[str, tf.TensorSpec]:
        return dict(IDS)

    def run(self, features: Mapping[str, tf.Tensor]):
        return self._model({name: features[name] for name in self.model_inputs()}, training=False)

    def freeze(self) -> None:
        """Turns the variables into constants of one function: weights are reordered and cast once."""
        specs, model = self.model_inputs(), self._model
        function = tf.function(lambda **features: model(features, training=False), autograph=False)
        function = function.get_concrete_function(**specs)
        with without_notes():
            constant = frozen(function)
        graph, structure = constant.graph.as_graph_def(), function.structured_outputs
        outputs = [tensor.name for tensor in constant.outputs]

        @tf.function(input_signature=list(specs.values()), autograph=False)
        def call(*features):
            feeds = {f"{name}:0": value for name, value in zip(specs, features, strict=True)}
            tensors = tf.graph_util.import_graph_def(graph, input_map=feeds, return_elements=outputs, name="frozen")
            return tf.nest.pack_sequence_as(structure, tensors)

        self._model = lambda features, training: call(*(features[name] for name in specs))
        self._variables = []

    def signatures(self) -> dict[str, Callable]:
        default = signature(lambda text: self.outputs(self.features_of_texts(text)), strings("text"))
        return {"serving_default": default, **self.id_signatures()}

    def features_of_texts(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.encoder.features(texts)

    def id_signatures(self) -> dict[str, Callable]:
        of_examples = signature(lambda examples: self.outputs(parse_examples(examples)), strings("examples"))
        return {"serve_ids": signature(self._of_ids, *IDS.values()), "serve_examples": of_examples}

    def _of_ids(self, input_ids, input_mask, segment_ids):
        return self.outputs({"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids})

    def example(self) -> dict[str, str | list[str]]:
        """One row of the inputs of `serving_default`."""
        return {"text": "A short text to begin with, so that nobody has to wait."}


class ServedEncoder(ServedModel):
    """BertModel: `pooled_output` [B, H], `sequence_output` [B, S, H], and the ids and mask of the encoded text.

    `embed` takes `text` and returns `vector` [B, H], as `Embedder` makes it. sentences: how vectors are made.
    """

    def __init__(self, model, tokenizer, max_seq_length, sentences: SentenceSettings):
        super().__init__(model, tokenizer, max_seq_length)
        self._sentences, self._skipped = sentences, sentences.skipped(sentences.prompt(), tokenizer)
        self.facts = {"similarity": sentences.similarity}

    def vectors(self, text):
        """string [B] -> `vector` float32 [B, H]."""
        prompt = self._sentences.prompt()
        text = tf.strings.join([prompt, text]) if prompt else text
        text = tf.strings.lower(text, "utf-8") if self._sentences.lower else text
        features = self.encoder.features(text)
        outputs = tf.cast(self.run(features)["sequence_output"], tf.float32)
        vectors = pooled(outputs, features["input_mask"], self._sentences.pooling, self._skipped)
        return {"vector": finished(vectors, self._sentences)}

    def signatures(self):
        return {**super().signatures(), "embed": signature(self.vectors, strings("text"))}

    def outputs(self, features):
        outputs = self.run(features)
        vectors = {name: tf.cast(outputs[name], tf.float32) for name in ("pooled_output", "sequence_output")}
        return vectors | {name: tf.identity(features[name]) for name in ("input_ids", "input_mask")}


class ServedLogits(ServedModel):
    """The base class of tasks whose model returns logits. A task adds `answers`: (logits, features) -> outputs."""

    def outputs(self, features):
        return self.answers(self.run(features), features)


class ServedClassifier(ServedLogits):
    """BertForSequenceClassification: labels and probabilities, or the score of a regression.

    labels: their names, in the order of the ids. problem_type: as in the head configuration.
    text_pairs: `serving_default` takes `text` and `text_pair`; otherwise `text`, and `serve_pairs` takes both.
    head: the `HeadConfig` of the model's directory.
    """

    def __init__(self, model, tokenizer, max_seq_length, labels, problem_type, text_pairs=False, head=NO_HEAD):
        super().__init__(model, tokenizer, max_seq_length)
        self.labels, self.problem_type, self._text_pairs = tuple(labels), problem_type, text_pairs
        self._gives_probability = problem_type == "regression" and head.gives_probability()
        self.facts = {} if head.pairs is None else {"pairs": head.pairs}
        # Not foldable: windows of a text are pooled together, and a causal model pools its last token.
        self.folds = model.head_config.variant is None and not model.config.is_causal

    def model_inputs(self):
        return dict(FOLDED) if self.folds else super().model_inputs()

    def run(self, features):
        return self._run_folded(unfolded(features)) if self.folds else super().run(features)

    def _run_folded(self, folded: Folded):
        logits = super().run(folded.features)  # [R, 2, C]
        return tf.gather(tf.reshape(logits, [-1, tf.shape(logits)[-1]]), folded.places)

    def text_outputs(self, *texts: tf.Tensor):
        """`outputs` of texts, or of the two parts of pairs; string [B] each."""
        features = self.encoder.features(*texts)
        logits = self._run_folded(fold(features)) if self.folds else super().run(features)
        return self.answers(logits, features)

    def answers(self, logits, features):
        del features
        logits = tf.cast(logits, tf.float32)  # [B, C]
        if self._gives_probability:
            return {"probability": tf.sigmoid(logits[:, 0])}
        if self.problem_type == "regression":
            return {"score": logits[:, 0]}
        names = tf.constant(self.labels, tf.string)
        every_name = tf.tile(names[None], [tf.shape(logits)[0], 1])
        if self.problem_type == "multi_label_classification":
            probabilities = tf.sigmoid(logits)
            return {"labels": every_name, "probabilities": probabilities, "holds": probabilities > 0.5}
        probabilities = tf.nn.softmax(logits)
        label, score = tf.gather(names, tf.argmax(logits, -1)), tf.reduce_max(probabilities, -1)
        return {"label": label, "score": score, "labels": every_name, "probabilities": probabilities}

    def signatures(self):
        single = signature(lambda text: self.text_outputs(text), strings("text"))
        both = strings("text"), strings("text_pair")
        pairs = signature(lambda text, text_pair: self.text_outputs(text, text_pair), *both)
        named = {"serving_default": pairs} if self._text_pairs else {"serving_default": single, "serve_pairs": pairs}
        return {**named, **self.id_signatures()}

    def example(self):
        text = super().example()["text"]
        return {"text": text, "text_pair": text} if self._text_pairs else {"text": text}


class ServedWindowClassifier(ServedClassifier):
    """BertForSequenceClassification with window_pooling: the outputs are those of `ServedClassifier`.

    `serving_default` takes `text` [B]; `serve_ids` takes token ids of windows [B, N, S], N of the text with most of
    them, with a mask of zeros for windows that a text does not have.
    """

    def __init__(self, model, tokenizer, max_seq_length, *arguments):
        super().__init__(model, tokenizer, max_seq_length, *arguments)
        windows = windows_of_model(model.head_config, tokenizer, max_seq_length)
        self._stride, self._most = windows.stride, windows.most
        self._room = max_seq_length - tokenizer.num_special_tokens(pair=False)

    def model_inputs(self):
        return {name: tf.TensorSpec([None, None, None], tf.int32, name) for name in super().model_inputs()}

    def features_of_texts(self, texts):
        """string [B] -> input_ids, input_mask, segment_ids, int32 [B, N, S]."""
        pieces = self.encoder.tokenizer.encode(texts)
        # The windows that are read end where the last of them does.
        lengths = tf.minimum(pieces.row_lengths(), self._room + (self._most - 1) * self._stride)
        windows = cut(lengths, self._room, self._stride, least=1)
        starts = tf.gather(pieces.row_starts(), windows.texts) + windows.starts
        features = self.encoder.features_of_ids(slices_of(pieces.values, starts, windows.sizes))
        rows = functools.partial(tf.RaggedTensor.from_row_lengths, row_lengths=windows.counts, validate=False)
        features = {name: rows(value) for name, value in features.items()}
        filling = {"input_ids": self.encoder.pad_id}
        return {name: value.to_tensor(filling.get(name, 0)) for name, value in features.items()}

    def signatures(self):
        default = signature(lambda text: self.outputs(self.features_of_texts(text)), strings("text"))
        return {"serving_default": default, "serve_ids": signature(self._of_ids, *self.model_inputs().values())}


class ServedMultipleChoice(ServedLogits):
    """BertForMultipleChoice: `choice` [B], its `score` [B], and `probabilities` [B, N].

    `serving_default` takes `context` [B], `question` [B] (the beginning of every choice; may be empty) and `choices`
    [B, N], encoded as `[CLS] context [SEP] question choice [SEP]`. `serve_ids` takes [B, N, S].
    """

    def answers(self, logits, features):
        del features
        logits = tf.cast(logits, tf.float32)  # [B, N]
        probabilities = tf.nn.softmax(logits)
        choice, score = tf.argmax(logits, -1, tf.int32), tf.reduce_max(probabilities, -1)
        return {"choice": choice, "score": score, "probabilities": probabilities}

    def model_inputs(self):
        return {name: tf.TensorSpec([None, None, None], tf.int32, name) for name in IDS}

    def features_of_choices(self, context, question, choices):
        """[B], [B], [B, N] -> features [B, N, S]."""
        count = tf.shape(choices)[1]
        tokenizer = self.encoder.tokenizer
        rows = tf.repeat(tf.range(tf.size(context)), count)
        first, beginnings = (tf.gather(tokenizer.encode(texts), rows) for texts in (context, question))
        second = tf.concat([beginnings, tokenizer.encode(tf.reshape(choices, [-1]))], 1)
        features = self.encoder.features_of_ids(first, second)
        shape = tf.concat([tf.shape(choices), tf.shape(features["input_ids"])[1:]], 0)
        return {name: tf.reshape(value, shape) for name, value in features.items()}

    def signatures(self):
        def of_examples(examples):
            # Each example is one choice.
            features = parse_examples(tf.reshape(examples, [-1]))
            shape = tf.concat([tf.shape(examples), tf.shape(features["input_ids"])[1:]], 0)
            return self.outputs({name: tf.reshape(value, shape) for name, value in features.items()})

        return {
            "serving_default": signature(
                lambda context, question, choices: self.outputs(self.features_of_choices(context, question, choices)),
                strings("context"),
                strings("question"),
                tf.TensorSpec([None, None], tf.string, "choices"),
            ),
            "serve_ids": signature(self._of_ids, *self.model_inputs().values()),
            "serve_examples": signature(of_examples, tf.TensorSpec([None, None], tf.string, "examples")),
        }

    def example(self):
        return {"context": "It rained.", "question": "So they", "choices": ["went in.", "went out."]}


class ServedMaskedLM(ServedModel):
    """BertForMaskedLM: the likeliest pieces at each [MASK] of a text, spelled as people read them.

    Returns `tokens` string and `scores` [B, M, K] (probabilities), and `positions` [B, M] of the masks in the token
    sequence, -1 where a text has fewer than M, which is at least 1.
    """

    def __init__(self, model, tokenizer, max_seq_length, top_k: int = 5):
        super().__init__(model, tokenizer, max_seq_length)
        self._top_k = min(top_k, self.vocab_size)
        self._mask_token = tokenizer.mask_token
        self._pieces = tuple(tokenizer.spell(tokenizer.inv_vocab[index]) for index in range(self.vocab_size))

    def model_inputs(self):
        return {**IDS, "masked_lm_positions": tf.TensorSpec([None, None], tf.int32, "masked_lm_positions")}

    def features_of_texts(self, texts):
        """Rows `[CLS] text [SEP]` in which each literal [MASK] becomes the mask token."""
        parts = tf.strings.split(texts, self._mask_token)  # ragged [B, parts]
        ids = self.encoder.tokenizer.encode(parts.values)
        rows = ids.nrows(out_type=tf.int64)
        masks = tf.RaggedTensor.from_uniform_row_length(tf.fill([rows], self.mask_id), 1, nrows=rows)
        ids = tf.concat([masks, ids], 1)  # each part begins with a mask; that of the first is removed below
        splits = tf.gather(ids.row_splits, parts.row_splits)
        ids = tf.RaggedTensor.from_row_splits(ids.values, splits, validate=False)[:, 1:]
        return self.encoder.features_of_ids(ids)

    def outputs(self, features):
        is_mask = tf.equal(features["input_ids"], self.mask_id)
        counts = tf.reduce_sum(tf.cast(is_mask, tf.int32), -1)
        length = tf.shape(is_mask)[1]
        from_end = tf.where(is_mask, length - tf.range(length), 0)  # counted from the end, so that the first is largest
        # At least one place: ONNX Runtime can't reshape tensors without any.
        from_end = tf.math.top_k(from_end, tf.maximum(tf.reduce_max(counts), 1)).values  # [B, M]
        positions = tf.where(from_end > 0, length - from_end, 0)
        logits = self.run({**features, "masked_lm_positions": positions})
        logits = tf.cast(logits, tf.float32)[..., : self.vocab_size]
        best = tf.math.top_k(tf.nn.softmax(logits), self._top_k)
        real = tf.sequence_mask(counts, tf.shape(positions)[1])
        return {
            "tokens": tf.where(real[..., None], tf.gather(tf.constant(self._pieces), best.indices), ""),
            "scores": tf.where(real[..., None], best.values, 0.0),
            "positions": tf.where(real, positions, -1),
        }

    def example(self):
        return {"text": f"The capital of {self._mask_token} is {self._mask_token}."}
