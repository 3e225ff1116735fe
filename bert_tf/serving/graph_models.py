"""The functions behind the signatures of an exported model, one class per task: TensorFlow ops only.

`serving_default` takes strings, `serve_ids` token ids, `serve_examples` serialized tf.Examples of token ids.

Shape legend: B batch, S sequence length, C classes, N choices, M masks, K guesses, H hidden size.
"""

import functools
import types
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from bert_tf.models.layers import finished, pooled
from bert_tf.serving.graph_inputs import Folded, TextEncoder, cut, fold, parse_examples, slices_of, unfolded
from bert_tf.store.description import SentenceSettings
from bert_tf.store.head_config import HeadConfig
from bert_tf.system.messages import without_notes
from bert_tf.system.tensorflow_internals import frozen
from bert_tf.tasks.rows import Task, windows_of_model


def _ids(*shape: None) -> dict[str, tf.TensorSpec]:
    return {name: tf.TensorSpec(shape, tf.int32, name) for name in ("input_ids", "input_mask", "segment_ids")}


IDS, GROUPED_IDS = _ids(None, None), _ids(None, None, None)
# Inputs of batches in which texts share rows.
FOLDED = {
    **{name: tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "segment_ids", "position_ids")},
    "input_mask": GROUPED_IDS["input_mask"],
    "pooled_positions": tf.TensorSpec([None, 2], tf.int32, "pooled_positions"),
}


def strings(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name)


def signature(function: Callable, *specs: tf.TensorSpec) -> tf.types.experimental.PolymorphicFunction:
    """A function of tensors with these names, for an export."""
    return tf.function(function, specs, autograph=False)


class ServedModel:
    """The base class of all tasks. A task adds `outputs`: features [B, S] -> what a signature returns.

    model: a Keras model of this project with the task's head, built. variables: TensorFlow's, of the model.
    ids: the inputs of `serve_ids`.
    labels: the names of the classes; empty if there are none.
    facts: what export.json says besides what all exports have.
    folds: texts may share rows.
    """

    ids: Mapping[str, tf.TensorSpec] = IDS
    labels: Sequence[str] = ()
    facts: Mapping[str, object] = types.MappingProxyType({})
    folds: bool = False

    def __init__(self, model: keras.Model, encoder: TextEncoder):
        self.model, self.encoder, self.variables = model, encoder, [variable.value for variable in model.weights]

    def freeze(self) -> None:
        """Makes the variables constants of one function: weights are reordered and cast once."""
        model, inputs = self.model, self.model_inputs()
        function = tf.function(lambda **features: model(features, training=False), autograph=False)
        function = function.get_concrete_function(**inputs)
        with without_notes():
            constant = frozen(function)
        graph, structure = constant.graph.as_graph_def(), function.structured_outputs
        outputs = [tensor.name for tensor in constant.outputs]

        @tf.function(input_signature=list(inputs.values()), autograph=False)
        def call(*features):
            feeds = {f"{name}:0": value for name, value in zip(inputs, features, strict=True)}
            tensors = tf.graph_util.import_graph_def(graph, input_map=feeds, return_elements=outputs, name="frozen")
            return tf.nest.pack_sequence_as(structure, tensors)

        self.model, self.variables = lambda features, training: call(*(features[name] for name in inputs)), []

    def model_inputs(self) -> Mapping[str, tf.TensorSpec]:
        return FOLDED if self.folds else self.ids

    def run(self, features: Mapping[str, tf.Tensor]):
        return self.model({name: features[name] for name in self.model_inputs()}, training=False)

    def signatures(self) -> dict[str, Callable]:
        return {"serving_default": self.text_signature(), **self.id_signatures()}

    def text_signature(self) -> Callable:
        return signature(lambda text: self.outputs(self.features_of_texts(text)), strings("text"))

    def features_of_texts(self, *texts: tf.Tensor) -> dict[str, tf.Tensor] | Folded:
        return self.encoder.features(*texts)

    def id_signatures(self) -> dict[str, Callable]:
        of_examples = signature(lambda examples: self.outputs(parse_examples(examples)), strings("examples"))
        return {"serve_ids": signature(self._of_ids, *self.ids.values()), "serve_examples": of_examples}

    def _of_ids(self, input_ids, input_mask, segment_ids):
        return self.outputs({"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids})

    def example(self) -> dict[str, str | list[str]]:
        """One row of the inputs of `serving_default`."""
        return {"text": "A short text to begin with, so that nobody has to wait."}


class ServedEncoder(ServedModel):
    """BertModel: `pooled_output` [B, H], `sequence_output` [B, S, H], and the ids and mask of the encoded text.

    `embed` takes `text` and returns `vector` [B, H], as `Embedder` makes it. sentences: how vectors are made.
    """

    def __init__(self, model, encoder, sentences: SentenceSettings):
        super().__init__(model, encoder)
        self._sentences, self._skipped = sentences, sentences.skipped(sentences.prompt(), encoder.tokenizer)
        self.facts = {"similarity": sentences.similarity}

    def vectors(self, text):
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


class ServedClassifier(ServedModel):
    """BertForSequenceClassification: labels and probabilities, or the score of a regression.

    head: of the model's directory.
    text_pairs: `serving_default` takes `text` and `text_pair`; otherwise `text`, and `serve_pairs` takes both.
    """

    def __init__(self, model, encoder, head: HeadConfig, text_pairs: bool = False):
        super().__init__(model, encoder)
        self._task = Task.of_model(model.head_config, model.num_labels)
        self.labels, self._text_pairs = self._task.labels or (), text_pairs
        self._gives_probability = self._task.is_regression and head.gives_probability()
        self.facts = {} if head.pairs is None else {"pairs": head.pairs}
        # Not foldable: windows of a text are pooled together, and a causal model pools its last token.
        self.folds = model.head_config.variant is None and not model.config.is_causal

    def run(self, features):
        if not self.folds:
            return super().run(features)
        folded = features if isinstance(features, Folded) else unfolded(features)
        logits = super().run(folded.features)  # [R, 2, C]
        return tf.gather(tf.reshape(logits, [-1, tf.shape(logits)[-1]]), folded.places)

    def features_of_texts(self, *texts):
        features = super().features_of_texts(*texts)
        return fold(features) if self.folds else features

    def outputs(self, features):
        logits = tf.cast(self.run(features), tf.float32)  # [B, C]
        if self._gives_probability:
            return {"probability": tf.sigmoid(logits[:, 0])}
        if self._task.is_regression:
            return {"score": logits[:, 0]}
        names = tf.constant(self.labels, tf.string)
        every_name = tf.tile(names[None], [tf.shape(logits)[0], 1])
        if self._task.multi_label:
            probabilities = tf.sigmoid(logits)
            return {"labels": every_name, "probabilities": probabilities, "holds": probabilities > 0.5}
        probabilities = tf.nn.softmax(logits)
        label, score = tf.gather(names, tf.argmax(logits, -1)), tf.reduce_max(probabilities, -1)
        return {"label": label, "score": score, "labels": every_name, "probabilities": probabilities}

    def signatures(self):
        pairs = signature(
            lambda text, text_pair: self.outputs(self.features_of_texts(text, text_pair)),
            strings("text"),
            strings("text_pair"),
        )
        single = {"serving_default": self.text_signature(), "serve_pairs": pairs}
        return {**({"serving_default": pairs} if self._text_pairs else single), **self.id_signatures()}

    def example(self):
        text = super().example()["text"]
        return {"text": text, "text_pair": text} if self._text_pairs else {"text": text}


class ServedWindowClassifier(ServedClassifier):
    """BertForSequenceClassification with window_pooling: the outputs are those of `ServedClassifier`.

    `serving_default` takes `text` [B]; `serve_ids` takes token ids of windows [B, N, S], N of the text with most of
    them, with a mask of zeros for windows that a text does not have.
    """

    ids = GROUPED_IDS

    def __init__(self, model, encoder, head):
        super().__init__(model, encoder, head)
        self._windows = windows_of_model(model.head_config, encoder.tokenizer, encoder.max_seq_length)

    def features_of_texts(self, texts):
        pieces, stride = self.encoder.graph.encode(texts), self._windows.stride
        room = self.encoder.max_seq_length - self.encoder.tokenizer.num_special_tokens(pair=False)
        # The windows that are read end where the last of them does.
        lengths = tf.minimum(pieces.row_lengths(), room + (self._windows.most - 1) * stride)
        windows = cut(lengths, room, stride, least=1)
        starts = tf.gather(pieces.row_starts(), windows.texts) + windows.starts
        features = self.encoder.features_of_ids(slices_of(pieces.values, starts, windows.sizes))
        rows = functools.partial(tf.RaggedTensor.from_row_lengths, row_lengths=windows.counts, validate=False)
        filling = {"input_ids": self.encoder.tokenizer.pad_id}
        return {name: rows(value).to_tensor(filling.get(name, 0)) for name, value in features.items()}

    def signatures(self):
        return {"serving_default": self.text_signature(), **self.id_signatures()}

    def id_signatures(self):
        return {"serve_ids": super().id_signatures()["serve_ids"]}


class ServedMultipleChoice(ServedModel):
    """BertForMultipleChoice: `choice` [B], its `score` [B], and `probabilities` [B, N].

    `serving_default` takes `context` [B], `question` [B] (the beginning of every choice; may be empty) and `choices`
    [B, N], encoded as `[CLS] context [SEP] question choice [SEP]`. `serve_ids` takes [B, N, S].
    """

    ids = GROUPED_IDS

    def outputs(self, features):
        logits = tf.cast(self.run(features), tf.float32)  # [B, N]
        probabilities = tf.nn.softmax(logits)
        choice, score = tf.argmax(logits, -1, tf.int32), tf.reduce_max(probabilities, -1)
        return {"choice": choice, "score": score, "probabilities": probabilities}

    def _outputs_of_rows(self, features, like):
        """The outputs for features [B * N, S] of all choices; like: a tensor [B, N]."""
        shape = tf.concat([tf.shape(like), tf.shape(features["input_ids"])[1:]], 0)
        return self.outputs({name: tf.reshape(value, shape) for name, value in features.items()})

    def text_signature(self):
        def of_texts(context, question, choices):
            rows = tf.repeat(tf.range(tf.size(context)), tf.shape(choices)[1])
            first, beginnings = (tf.gather(self.encoder.graph.encode(texts), rows) for texts in (context, question))
            second = tf.concat([beginnings, self.encoder.graph.encode(tf.reshape(choices, [-1]))], 1)
            return self._outputs_of_rows(self.encoder.features_of_ids(first, second), choices)

        choices = tf.TensorSpec([None, None], tf.string, "choices")
        return signature(of_texts, strings("context"), strings("question"), choices)

    def id_signatures(self):
        def of_examples(examples):  # each of which is one choice
            return self._outputs_of_rows(parse_examples(tf.reshape(examples, [-1])), examples)

        examples = tf.TensorSpec([None, None], tf.string, "examples")
        return {**super().id_signatures(), "serve_examples": signature(of_examples, examples)}

    def example(self):
        return {"context": "It rained.", "question": "So they", "choices": ["went in.", "went out."]}


class ServedMaskedLM(ServedModel):
    """BertForMaskedLM: the likeliest pieces at each [MASK] of a text, spelled as people read them.

    Returns `tokens` string and `scores` [B, M, K] (probabilities), and `positions` [B, M] of the masks in the token
    sequence, -1 where a text has fewer than M, which is at least 1.
    """

    def __init__(self, model, encoder, top_k: int = 5):
        super().__init__(model, encoder)
        tokenizer = encoder.tokenizer
        self.top_k = min(top_k, tokenizer.vocab_size)
        self.pieces = tuple(tokenizer.spell(tokenizer.inv_vocab[index]) for index in range(tokenizer.vocab_size))

    def model_inputs(self):
        return {**IDS, "masked_lm_positions": tf.TensorSpec([None, None], tf.int32, "masked_lm_positions")}

    def features_of_texts(self, texts):
        """Rows `[CLS] text [SEP]` in which each literal [MASK] becomes the mask token."""
        parts = tf.strings.split(texts, self.encoder.tokenizer.mask_token)  # ragged [B, parts]
        ids = self.encoder.graph.encode(parts.values)
        rows = ids.nrows(out_type=tf.int64)
        masks = tf.fill([rows], self.encoder.tokenizer.mask_id)
        # Each part begins with a mask; that of the first is removed below.
        ids = tf.concat([tf.RaggedTensor.from_uniform_row_length(masks, 1, nrows=rows), ids], 1)
        splits = tf.gather(ids.row_splits, parts.row_splits)
        return self.encoder.features_of_ids(tf.RaggedTensor.from_row_splits(ids.values, splits, validate=False)[:, 1:])

    def outputs(self, features):
        is_mask = tf.equal(features["input_ids"], self.encoder.tokenizer.mask_id)
        counts = tf.reduce_sum(tf.cast(is_mask, tf.int32), -1)
        length = tf.shape(is_mask)[1]
        from_end = tf.where(is_mask, length - tf.range(length), 0)  # counted from the end, so that the first is largest
        # At least one place: ONNX Runtime can't reshape tensors without any.
        from_end = tf.math.top_k(from_end, tf.maximum(tf.reduce_max(counts), 1)).values  # [B, M]
        positions = tf.where(from_end > 0, length - from_end, 0)
        logits = self.run({**features, "masked_lm_positions": positions})
        logits = tf.cast(logits, tf.float32)[..., : self.encoder.tokenizer.vocab_size]
        best = tf.math.top_k(tf.nn.softmax(logits), self.top_k)
        real = tf.sequence_mask(counts, tf.shape(positions)[1])
        return {
            "tokens": tf.where(real[..., None], tf.gather(tf.constant(self.pieces), best.indices), ""),
            "scores": tf.where(real[..., None], best.values, 0.0),
            "positions": tf.where(real, positions, -1),
        }

    def example(self):
        mask = self.encoder.tokenizer.mask_token
        return {"text": f"The capital of {mask} is {mask}."}
