"""The encoder of BERT and its descendants: embeddings, transformer blocks, pooler.

What differs between families is read from the configuration: the attributes of `BertConfig` that its subclasses set.
"""

import keras
from keras import ops

from bert_tf.families import as_config
from bert_tf.families.config import BertConfig
from bert_tf.models import kernels, layers
from bert_tf.models.dropout import dropout, in_scope, layer_name_scope, name_scope
from bert_tf.models.inputs import is_packed, require, require_inputs
from bert_tf.models.layer_loop import looped
from bert_tf.store.variable_names import ADAPTER_A, ADAPTER_ALPHA, ADAPTER_B, Lora


class Embeddings(layers.ConfiguredLayer):
    """Word + segment + position embeddings, layer norm, dropout (paper section 3, figure 2).

    E is config.embedding_size. A type_vocab_size of 0 means that there are no segment embeddings. `dense_gradient`: see
    `kernels.embedding_lookup`.
    """

    def __init__(self, config, dense_gradient: bool = False, **kwargs):
        super().__init__(config, **kwargs)
        self.dense_gradient = dense_gradient
        self.layer_norm = self.norm()

    def build(self, input_shape=None):
        config = self.config

        # The tables stay in float32: to look up a few rows, a cast would go over the whole table.
        def table(name, rows):
            shape = (rows, config.embedding_size)
            return layers.add_random_weight(self, name, shape, config.initializer_range, **layers.IN_FLOAT32)

        self.word_embeddings = table("word_embeddings", config.vocab_size)
        if config.type_vocab_size:
            self.token_type_embeddings = table("token_type_embeddings", config.type_vocab_size)
        self.position_embeddings = table("position_embeddings", config.max_position_embeddings)
        self.layer_norm.build((None, None, config.embedding_size))

    def call(self, input_ids, segment_ids, position_ids=None, training=False):
        config, tables = self.config, kernels.embedding_lookup
        length = ops.shape(input_ids)[1]
        if position_ids is None:
            limit = f"at most {config.max_length}, as max_position_embeddings in {config.file_name} says"
            if not isinstance(length, int):
                require("The length of input_ids", length, ops.less_equal(length, config.max_length), limit)
            elif length > config.max_length:
                raise ValueError(f"The length of input_ids is {length}, but must be {limit}.")
        x = tables(self.word_embeddings, input_ids, self.dense_gradient and training)  # [B, S, E]
        if config.type_vocab_size and config.looks_up_types:
            x = x + tables(self.token_type_embeddings, segment_ids)
        elif config.type_vocab_size:
            # A product with one-hot rows, as in the original.
            one_hot = ops.one_hot(segment_ids, config.type_vocab_size, dtype="float32")
            x = x + ops.matmul(one_hot, self.token_type_embeddings)
        if position_ids is None and config.padding_has_a_position:
            real = ops.cast(ops.not_equal(input_ids, config.pad_token_id), "int32")
            position_ids = ops.cumsum(real, axis=1) * real - 1
        first = config.first_position
        if position_ids is None:
            x = x + self.position_embeddings[first : first + length]
        else:
            x = x + tables(self.position_embeddings, position_ids + first, dense_gradient=training)
        return dropout(self.layer_norm(x), config.hidden_dropout_prob, self.name, training)


class BertEncoder(layers.NamedInputs, layers.ConfigFromArguments, keras.Model):
    """The encoder of BERT or of a descendant as a part of other models; on its own, use `BertModel`.

    Its arguments, and embeddings: those of another encoder, which both share; None: its own.
    """

    def __init__(
        self, config, dense_embedding_gradient=False, seed: int | None = None, name=None, embeddings=None, **kwargs
    ):
        config = as_config(config)
        super().__init__(name=name or config.model_type, **kwargs)
        self.config = config
        self.dense_embedding_gradient = dense_embedding_gradient
        self.seed = seed
        dtype = self.dtype_policy
        self.embeddings = embeddings or Embeddings(config, dense_embedding_gradient, name="embeddings", dtype=dtype)
        self.project = self.pooler = self.frozen_layers = self.lora = None
        if config.embedding_size != config.hidden_size:
            deviation = None if config.head_initializer_range is None else config.initializer_range
            self.project = layers.Projection(config.hidden_size, deviation, name="embeddings_project", dtype=dtype)
        count = 1 + max(config.block_order)
        self.blocks = [layers.TransformerBlock(config, name=f"layer_{k}", dtype=dtype) for k in range(count)]
        if config.has_pooler:
            self.pooler = layers.Projection(config.hidden_size, config.initializer_range, name="dense", dtype=dtype)
        self.seed_generator = keras.random.SeedGenerator(seed)

    def freeze_layers(self, count: int | None) -> None:
        """Keeps the embeddings and the first `count` layers as they are in training."""
        order, frozen = self.config.block_order, count or 0
        if not 0 <= frozen <= len(order) or {*order[:frozen]} & {*order[frozen:]}:
            raise ValueError(f"freeze_layers={count}: 0 to {len(order)} layers; all or none if they share weights.")
        self.frozen_layers = count

    def add_lora(self, rank: int, alpha: float, train_pooler: bool = False) -> None:
        """Trains adapters of the layers' projections in place of the encoder's variables. Before `build`.

        train_pooler: also trains the pooler, for a head that reads it: in many a released model nobody has trained it,
        so that hardly anything would pass through it.
        """
        if self.built:
            raise ValueError("add_lora must come before build: this model has its variables already.")
        self.lora = Lora(rank, alpha, train_pooler)
        for block in self.blocks:
            first, last = block.attention, block.block_output
            of_attention = first.query, first.key, first.value, first.attention_output.dense
            for projection in (*of_attention, block.intermediate, last.dense):
                projection.lora = self.lora
        self.freeze_layers(0)  # no gradient goes back into the embeddings

    def build(self, input_shape=None):
        if not self.embeddings.built:
            self.embeddings.build()
        if self.project:
            self.project.build((None, None, self.config.embedding_size))
        with keras.name_scope("encoder"):
            for block in self.blocks:
                block.build()
        if self.pooler:
            with keras.name_scope("pooler"):
                self.pooler.build((None, self.config.hidden_size))
        if self.lora is not None:
            # For those who find it in a checkpoint.
            alpha = keras.initializers.Constant(self.lora.alpha)
            self.add_weight(name=ADAPTER_ALPHA, shape=(), initializer=alpha, trainable=False, dtype="float32")
            pooler = self.pooler.weights if self.lora.train_pooler and self.pooler else ()
            trained = {id(variable) for variable in pooler}
            for variable in self.weights:
                is_factor = variable.path.rsplit("/", 1)[-1] in (ADAPTER_A, ADAPTER_B)
                variable.trainable = is_factor or id(variable) in trained

    @in_scope
    def call(self, inputs, training=False, return_all_layers=False, return_attention=False, read_positions=None):
        """Runs the encoder.

        Args:
          inputs: input_ids [B, S], or a dict with `input_ids` and optionally `input_mask` ([B, S] or [B, S, S],
            default all ones) and `segment_ids` ([B, S], default all zeros); Hugging Face's names `attention_mask` and
            `token_type_ids` are accepted for these two. For several sequences in a row also `sequence_ids` [B, S], the
            number of the sequence that a token belongs to, from 1, 0 for padding: a token sees only tokens of its own
            number, and input_mask is ignored; `pooled_positions` [B, M], where the sequences begin. `position_ids`
            [B, S]: with one of these two the token's position in its sequence, from 0; else, as in transformers, the
            row of the table of positions, of which RoBERTa's first is pad_token_id + 1.
          return_all_layers: also return every intermediate layer.
          return_attention: also return the attention probabilities.
          read_positions: int [B, P], the tokens whose output is read; P is 0 where only `pooled_output` is. Of the last
            layer only their outputs are computed, if they are clearly fewer than S. None: all tokens.

        Returns:
          dict with `sequence_output` [B, S, H] ([B, P, H] with read_positions) and `pooled_output` [B, H] ([B, M, H]
          with pooled_positions), made of the first token or, where config.attention is causal, of the last, which alone
          sees all (in families without a pooler, that token's vector itself); on request also `embedding_output`
          [B, S, H] and `encoder_layers`, a list of L tensors [B, S, H]; and `attention_probabilities`, a list of L
          tensors [B, N, S, S], queries by keys: the weights of the values, so after dropout when training, and in the
          dtype of the computation. Each query's add up to 1 (but for dropout).
        """
        input_ids = ops.convert_to_tensor(inputs["input_ids"])
        features = {**inputs, "input_ids": input_ids, "masked_lm_positions": read_positions}  # only heads read some
        inputs, wrong = require_inputs(self.config, features)
        input_ids, read_positions = inputs["input_ids"], inputs["masked_lm_positions"]
        segment_ids = ops.zeros_like(input_ids) if inputs.get("segment_ids") is None else inputs["segment_ids"]
        input_mask = self._mask(inputs)
        bias = layers.attention_bias(input_mask, self.config.is_causal) + wrong[:, None, None, :]
        pooled_positions = self._pooled_positions(inputs.get("pooled_positions"), input_mask)
        few = None  # int32 [B, P]: the tokens that are read, if they are clearly fewer than all, as far as is known
        if read_positions is not None and not (return_all_layers or return_attention):
            read = ops.concatenate([ops.cast(part, "int32") for part in (pooled_positions, read_positions)], axis=1)
            sizes = read.shape[1], input_ids.shape[1]
            few = read if None in sizes or reads_few(*sizes) else None
        positions = inputs.get("position_ids")
        if positions is not None and not is_packed(inputs):
            positions = ops.cast(positions, "int32") - self.config.first_position
        with name_scope(self.name):
            x = self.embeddings(input_ids, segment_ids, position_ids=positions, training=training)
            embedding_output = self.project(x) if self.project else x
            encoded, attention = self._run_blocks(embedding_output, bias, few, training, return_attention)
        if few is None:
            first = layers.gather_positions(encoded[-1], pooled_positions)
            sequence = encoded[-1] if read_positions is None else layers.gather_positions(encoded[-1], read_positions)
        else:
            count = ops.shape(pooled_positions)[1]
            first, sequence = encoded[-1][:, :count], encoded[-1][:, count:]
        # [B, M, H]; always tanh, whatever hidden_act says.
        pooled = self.pooler(first, activation="tanh", training=training) if self.pooler else first
        pooled = pooled if "pooled_positions" in inputs else pooled[:, 0]
        outputs = {"sequence_output": sequence, "pooled_output": pooled}
        if return_all_layers:
            outputs |= {"embedding_output": embedding_output, "encoder_layers": encoded}
        if return_attention:
            outputs["attention_probabilities"] = attention
        return outputs

    @staticmethod
    def _mask(inputs: dict):
        mask, numbers = inputs.get("input_mask"), inputs.get("sequence_ids")
        if numbers is not None:
            numbers = ops.convert_to_tensor(numbers)
            return ops.equal(numbers[:, :, None], numbers[:, None, :])
        return ops.ones_like(inputs["input_ids"]) if mask is None else ops.convert_to_tensor(mask)

    def _pooled_positions(self, positions, input_mask):
        """int [B, M], M = 1 if no positions are given: the tokens that `pooled_output` is made of."""
        if positions is not None:
            return ops.convert_to_tensor(positions)
        batch, length = ops.shape(input_mask)[:2]
        if not self.config.is_causal:
            return ops.zeros((batch, 1), "int32")
        # The last token that is not padding.
        return ops.max(ops.cast(input_mask, "int32") * ops.arange(length, dtype="int32"), axis=1, keepdims=True)

    def _run_blocks(self, x, bias, positions, training: bool, return_attention: bool) -> tuple[list, list]:
        """The outputs of all layers for x [B, S, H], the last [B, P, H] at positions [B, P] if these are given.

        And their attention weights [B, N, S, S], on request, else an empty list, so that they don't take memory.
        """
        order = self.config.block_order
        if kernels.in_one_program() and not return_attention:
            outputs, attention = self._loop_over_blocks(x, bias, positions, training), []
        else:
            outputs, attention = [], []
            for number in range(len(order)):
                if number == self.frozen_layers:
                    x = ops.stop_gradient(x)
                x, weights = self._run_block(number, x, bias, positions, training, return_attention)
                outputs.append(x)
                if return_attention:
                    attention.append(weights)
        if self.frozen_layers == len(order):
            outputs[-1] = ops.stop_gradient(outputs[-1])
        return outputs, attention

    def _run_block(self, number: int, x, bias, positions, training: bool, return_attention: bool = False) -> tuple:
        """The output of a layer and its attention weights; arguments as for `_run_blocks`."""
        block, scope = self.blocks[self.config.block_order[number]], name_scope(f"layer_{number}")
        read = positions if number == len(self.config.block_order) - 1 else None

        def layer(x):
            with scope:
                return block(x, bias, training=training, positions=read)

        if training and kernels.recomputes() and not return_attention:
            return keras.remat(lambda x: layer(x)[0])(x), None
        return layer(x)

    def _loop_over_blocks(self, x, bias, positions, training: bool) -> list:
        """The outputs of all layers, as of `_run_blocks`: frozen layers in one loop, the others in another."""
        order = self.config.block_order
        in_loops = len(order) - (positions is not None)  # a last layer that reads a few tokens is another program
        frozen = min(self.frozen_layers or 0, in_loops)
        outputs = []
        for first, end in ((0, frozen), (frozen, in_loops)):
            if first == self.frozen_layers:
                x = ops.stop_gradient(x)
            if first == end:
                continue
            scope = layer_name_scope([f"layer_{number}" for number in range(first, end)])

            def call(block, turn, x, scope=scope):
                with scope(turn):
                    return block(x, bias, training=training)[0]

            blocks = [self.blocks[number] for number in order[first:end]]
            inputs, x = looped(call, blocks, x, training and end > frozen, keep=not kernels.recomputes())
            outputs += [*ops.unstack(inputs, axis=0)[1:], x]
        if positions is not None:
            outputs.append(self._run_block(len(order) - 1, x, bias, positions, training)[0])
        return outputs

    def get_embedding_table(self):
        return self.embeddings.word_embeddings


# --- floating-point operations ----------------------------------------------------------------------------------------
# Those of the matrix products that outputs need: in the last layer only keys and values are those of all tokens.


def reads_few(count: float, length: float) -> bool:
    """Whether the last layer is computed only for the `count` tokens of `length` that are read: clearly fewer."""
    return 4 * count <= 3 * length


def layer_flops(config: BertConfig, length: float, read: float | None = None, *, with_attention: bool = True) -> list:
    """Floating-point operations of each layer's matrix products, forward, for one sequence.

    length: tokens of the sequence. read: of how many tokens the last layer's outputs are read; None: of all.
    with_attention: also of the products of queries, keys and values, which have no weights.
    """
    hidden, inner = config.hidden_size, config.intermediate_size

    def block(queries):
        projections = 4 * length * hidden * hidden + 2 * queries * (2 * hidden * hidden + 2 * hidden * inner)
        return projections + (4.0 * queries * length * hidden if with_attention else 0.0)

    last = read if read is not None and reads_few(read, length) else length
    return [block(length)] * (len(config.block_order) - 1) + [block(last)]


def encoder_flops_per_example(config: BertConfig, length: float, read: float | None = None) -> float:
    """Floating-point operations of the encoder's matrix products, forward; arguments as for `layer_flops`."""
    hidden = config.hidden_size
    projection = 2.0 * length * config.embedding_size * hidden if config.embedding_size != hidden else 0.0
    pooler = 2.0 * hidden * hidden if config.has_pooler else 0.0
    return sum(layer_flops(config, length, read)) + projection + pooler


def pretraining_flops_per_example(
    config: BertConfig, max_seq_length: int, max_predictions_per_seq: int, reads_all: bool = False
) -> float:
    """Floating-point operations of the matrix products for one training example; backward counts twice forward.

    reads_all: the last layer is read everywhere, not only at the predictions and the first token.
    """
    hidden, width = config.hidden_size, config.embedding_size
    predictions = 2 * max_predictions_per_seq * (hidden * width + width * config.vocab_size)
    following = 4 * hidden if config.has_pooler else 0
    encoder = encoder_flops_per_example(config, max_seq_length, None if reads_all else max_predictions_per_seq + 1)
    return 3.0 * (encoder + predictions + following)


def replaced_token_flops_per_example(
    config: BertConfig, generator_config: BertConfig, max_seq_length: int, max_predictions_per_seq: int
) -> float:
    """The same for a discriminator of `config`, which judges all tokens, and its generator."""
    generator = pretraining_flops_per_example(generator_config, max_seq_length, max_predictions_per_seq)
    head = 2.0 * max_seq_length * config.hidden_size * (config.hidden_size + 1)
    return generator + 3.0 * (encoder_flops_per_example(config, max_seq_length) + head)
