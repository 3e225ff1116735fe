"""Speed of a full pre-training step compared with tf-models-official's, in one run on one batch.

    python benchmarks/train_step.py --dtype=bfloat16
    python benchmarks/train_step.py --dtype=bfloat16 --model=albert
    python benchmarks/train_step.py --dtype=bfloat16 --model=electra --hidden_size=256 --max_predictions_per_seq=19

The peer is BertPretrainerV2, for ALBERT with its AlbertEncoder; or for ELECTRA the ElectraPretrainer as its electra
task builds it.

A step is forward, backward with dropout, clipping, and the optimizer. The two take turns, so that a machine whose speed
drifts favours neither; quote the ratio, not the seconds. Model FLOPs are those of the matrix products, with backward
counted as twice forward; the machine's rate is that of a matrix product of the model's shape in the same dtype.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import statistics
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

from bert_tf.models.albert.config import AlbertConfig
from bert_tf.models.config import BertConfig
from bert_tf.models.electra.config import ElectraConfig
from bert_tf.models.electra.pretraining import ElectraPretrainer
from bert_tf.models.flops import electra_flops_per_example, pretraining_flops_per_example
from bert_tf.models.task_models import BertForPreTraining
from bert_tf.training.optimization import create_optimizer
from bert_tf.training.step import TrainingPlan, make_train_function

FLAGS = flags.FLAGS
flags.DEFINE_enum("dtype", "bfloat16", ["bfloat16", "float32"], "Arithmetic of the matrix products.")
flags.DEFINE_enum("model", "bert", ["bert", "albert", "electra"], "electra: a generator and a discriminator.")
flags.DEFINE_float("generator_size", 0.25, "ELECTRA: width of the generator, as a share of hidden_size.")
flags.DEFINE_integer("num_hidden_layers", 12, "Encoder layers; 12 of width 768 are BERT-Base.")
flags.DEFINE_integer("hidden_size", 768, "Width of the model; each head has 64.")
flags.DEFINE_integer("batch_size", 16, "Examples per step.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens per example.")
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked positions per example.")
flags.DEFINE_integer("rounds", 7, "Timed steps of each, in turn.")
flags.DEFINE_bool("peer", True, "Also run tf-models-official.")


def random_batch(config: BertConfig, batch_size: int, length: int, predictions: int) -> dict:
    """A batch of random ids with the features of a pre-training record."""
    generator = np.random.default_rng(0)
    features = {
        "input_ids": generator.integers(5, config.vocab_size, (batch_size, length)),
        "input_mask": np.ones((batch_size, length)),
        "segment_ids": np.repeat([[0] * (length // 2) + [1] * (length - length // 2)], batch_size, 0),
        "masked_lm_positions": np.sort(generator.integers(0, length, (batch_size, predictions))),
        "masked_lm_ids": generator.integers(5, config.vocab_size, (batch_size, predictions)),
        "next_sentence_labels": generator.integers(0, 2, (batch_size, 1)),
    }
    features = {name: tf.constant(value, tf.int32) for name, value in features.items()}
    return {**features, "masked_lm_weights": tf.ones((batch_size, predictions))}


def electra_batch(batch: dict) -> dict:
    """The same batch for an ELECTRA: it masks the tokens to predict, and has seeds for what is drawn for them."""
    ids, positions = batch["input_ids"].numpy(), batch["masked_lm_positions"].numpy()
    masked = ids.copy()
    np.put_along_axis(masked, positions, 4, axis=1)
    seeds = np.random.default_rng(1).integers(0, 2**31, (len(ids), 2))
    own = {"input_ids": masked, "original_ids": ids, "masked_lm_ids": np.take_along_axis(ids, positions, 1)}
    own |= {"sampling_seeds": seeds}
    batch = {name: value for name, value in batch.items() if name != "next_sentence_labels"}
    return batch | {name: tf.constant(value, tf.int32) for name, value in own.items()}


def our_step(create_model, batch: dict, dtype: str, recompute: bool = False):
    """A function that runs one step of ours. create_model: a Keras dtype policy -> the model."""
    strategy = tf.distribute.OneDeviceStrategy("/gpu:0" if tf.config.list_logical_devices("GPU") else "/cpu:0")
    with strategy.scope():
        model = create_model("mixed_bfloat16" if dtype == "bfloat16" else "float32")
        model.build()
        optimizer = create_optimizer("adamw", 1e-4, 1000, 10)
        optimizer.build(model.trainable_variables)
    plan = TrainingPlan(num_train_steps=1000, batch_size=len(batch["input_ids"]), recompute=recompute)
    run = make_train_function(model, optimizer, model.objective, strategy, plan)
    iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    return lambda: float(run(iterator, tf.constant(1), tf.constant(1.0), tf.constant(0))["loss"])


def peer_step(model, inputs: dict, loss_of_outputs):
    """A function that runs one step of a model of tf-models-official; loss_of_outputs: its outputs -> the loss."""
    from official.nlp import optimization

    optimizer = optimization.create_optimizer(1e-4, 1000, 10)
    model(inputs)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = loss_of_outputs(model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return lambda: float(step())


def peer_masked_lm_loss(logits, batch: dict):
    """Its masked LM loss: the mean over the predictions."""
    import tf_keras

    losses = tf_keras.losses.sparse_categorical_crossentropy(
        batch["masked_lm_ids"], tf.cast(logits, tf.float32), from_logits=True
    )
    weights = batch["masked_lm_weights"]
    return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)


def bert_peer_step(config: BertConfig, batch: dict, dtype: str):
    """A step of tf-models-official's BERT or ALBERT, built as its own masked_lm task builds it."""
    import tf_keras
    from official.nlp.modeling import layers, models, networks

    tf_keras.mixed_precision.set_global_policy("mixed_bfloat16" if dtype == "bfloat16" else "float32")
    sizes = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "max_sequence_length": config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size,
    }
    if isinstance(config, AlbertConfig):
        further = {"embedding_width": config.embedding_size, "intermediate_size": config.intermediate_size}
        encoder = networks.AlbertEncoder(**sizes, **further, dict_outputs=True)
    else:
        encoder = networks.BertEncoderV2(**sizes, inner_dim=config.intermediate_size)
    head = layers.ClassificationHead(inner_dim=config.hidden_size, num_classes=2, name="next_sentence")
    model = models.BertPretrainerV2(encoder, mlm_activation=tf_keras.activations.gelu, classification_heads=[head])
    inputs = {
        "input_word_ids": batch["input_ids"],
        "input_mask": batch["input_mask"],
        "input_type_ids": batch["segment_ids"],
        "masked_lm_positions": batch["masked_lm_positions"],
    }

    def loss_of_outputs(outputs):
        losses = tf_keras.losses.sparse_categorical_crossentropy(
            batch["next_sentence_labels"], tf.cast(outputs["next_sentence"], tf.float32), from_logits=True
        )
        return peer_masked_lm_loss(outputs["mlm_logits"], batch) + tf.reduce_mean(losses)

    return peer_step(model, inputs, loss_of_outputs)


def electra_peer_step(config: ElectraConfig, generator_config: ElectraConfig, batch: dict, dtype: str):
    """A step of tf-models-official's ELECTRA, built as its own electra task builds it."""
    import tf_keras
    from official.nlp.configs import encoders
    from official.nlp.modeling import models
    from official.nlp.modeling.models import electra_pretrainer

    tf_keras.mixed_precision.set_global_policy("mixed_bfloat16" if dtype == "bfloat16" else "float32")
    # As released (2.20) it adds float32 noise to logits of the policy's dtype, which fails in bfloat16.
    sample = electra_pretrainer.sample_from_softmax
    electra_pretrainer.sample_from_softmax = lambda logits, disallow: sample(tf.cast(logits, tf.float32), disallow)

    def encoder(config, embedding_layer=None):
        sizes = encoders.BertEncoderConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_position_embeddings,
            type_vocab_size=config.type_vocab_size,
            embedding_size=config.embedding_size,
        )
        return encoders.build_encoder(encoders.EncoderConfig(type="bert", bert=sizes), embedding_layer)

    discriminator = encoder(config)
    model = models.ElectraPretrainer(
        encoder(generator_config, discriminator.get_embedding_layer()),
        discriminator,
        vocab_size=config.vocab_size,
        num_classes=2,
        num_token_predictions=batch["masked_lm_ids"].shape[1],
        mlm_activation=tf_keras.activations.gelu,
        mlm_initializer=tf_keras.initializers.TruncatedNormal(stddev=0.02),
    )
    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    inputs = {names.get(name, name): value for name, value in batch.items()}

    def loss_of_outputs(outputs):
        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            logits=tf.cast(outputs["disc_logits"], tf.float32), labels=tf.cast(outputs["disc_label"], tf.float32)
        )
        mask = tf.cast(batch["input_mask"], tf.float32)
        discriminator_loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
        return peer_masked_lm_loss(outputs["lm_outputs"], batch) + 50.0 * discriminator_loss

    return peer_step(model, inputs, loss_of_outputs)


def matmul_rate(config: BertConfig, rows: int, dtype: str) -> float:
    """FLOP/s of the intermediate layer's product, the model's largest; the median of many."""
    left = tf.cast(tf.random.normal((rows, config.hidden_size)), dtype)
    right = tf.cast(tf.random.normal((config.hidden_size, config.intermediate_size)), dtype)
    product = tf.function(lambda: tf.reduce_sum(tf.linalg.matmul(left, right)[0, :1]))
    seconds = []
    for _ in range(30):
        start = time.perf_counter()
        float(product())
        seconds.append(time.perf_counter() - start)
    return 2 * rows * config.hidden_size * config.intermediate_size / statistics.median(seconds)


def main(_):
    sizes = {
        "vocab_size": 30522,
        "hidden_size": FLAGS.hidden_size,
        "num_hidden_layers": FLAGS.num_hidden_layers,
        "num_attention_heads": max(1, FLAGS.hidden_size // 64),
        "intermediate_size": 4 * FLAGS.hidden_size,
        "type_vocab_size": 2,
    }
    length, predictions, dtype = FLAGS.max_seq_length, FLAGS.max_predictions_per_seq, FLAGS.dtype
    config = BertConfig(**sizes)
    batch = random_batch(config, FLAGS.batch_size, length, predictions)
    if FLAGS.model != "electra":
        if FLAGS.model == "albert":
            config = AlbertConfig(**sizes, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
        steps = {"bert_tf": our_step(lambda policy: BertForPreTraining(config, dtype=policy), batch, dtype)}
        peer = lambda: bert_peer_step(config, batch, dtype)  # noqa: E731
        flops_per_example = pretraining_flops_per_example(config, length, predictions)
    else:
        config = ElectraConfig(**sizes, embedding_size=128 if FLAGS.hidden_size <= 256 else FLAGS.hidden_size)
        generator = config.generator(FLAGS.generator_size)
        batch = electra_batch(batch)
        steps = {"bert_tf": our_step(lambda policy: ElectraPretrainer(config, generator, dtype=policy), batch, dtype)}
        peer = lambda: electra_peer_step(config, generator, batch, dtype)  # noqa: E731
        flops_per_example = electra_flops_per_example(config, generator, length, predictions)
    if FLAGS.peer:
        steps["tf-models-official"] = peer()
    for name, step in steps.items():
        start = time.perf_counter()
        step(), step()
        print(f"{name}: compiled in {time.perf_counter() - start:.0f} s", flush=True)
    seconds = {name: [] for name in steps}
    rates = []
    for _ in range(FLAGS.rounds):
        rates.append(matmul_rate(config, FLAGS.batch_size * length, FLAGS.dtype))
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    rate = statistics.median(rates)
    flops = FLAGS.batch_size * flops_per_example
    print(f"\n{FLAGS.model}, {FLAGS.num_hidden_layers} layers, H {config.hidden_size}, S {length}, P {predictions}, "
          f"batch {FLAGS.batch_size}, {FLAGS.dtype}; matrix products here: {rate / 1e12:.3f} TFLOP/s")  # fmt: skip
    print(f"{'':20} {'s/step':>8} {'min':>8} {'examples/s':>11} {'model TFLOP/s':>14} {'of matmul rate':>15}")
    for name, values in seconds.items():
        median = statistics.median(values)
        speed = flops / median
        print(f"{name:20} {median:8.3f} {min(values):8.3f} {FLAGS.batch_size / median:11.2f} {speed / 1e12:14.3f} "
              f"{speed / rate:15.1%}")  # fmt: skip
    if FLAGS.peer:
        ratios = [b / a for a, b in zip(seconds["bert_tf"], seconds["tf-models-official"], strict=True)]
        print(f"bert_tf is {statistics.median(ratios):.2f} times as fast as tf-models-official "
              f"(pair by pair {min(ratios):.2f} to {max(ratios):.2f})")  # fmt: skip


if __name__ == "__main__":
    app.run(main)
