"""A pre-training step of the peer, tf-models-official: BERT, ALBERT or ELECTRA as its own tasks build them."""

from collections.abc import Callable

import tensorflow as tf

from bert_tf.families.albert import AlbertConfig
from bert_tf.families.config import BertConfig
from bert_tf.families.electra import ElectraConfig


def peer_step(model, batches: tf.data.Dataset, names: dict[str, str], loss_of_outputs: Callable) -> Callable[[], float]:
    """A function that runs one step of a model of tf-models-official.

    Args:
      names: the features that it takes, by the names that they have in a batch.
      loss_of_outputs: (its outputs, batch) -> the loss.
    """
    from official.nlp import optimization

    optimizer = optimization.create_optimizer(1e-4, 1000, 10)
    iterator = iter(batches)

    def inputs(batch):
        return {name: batch[ours] for ours, name in names.items() if ours in batch}

    model(inputs(next(iter(batches.take(1)))))

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of_outputs(model(inputs(batch), training=True), batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return lambda: float(step(next(iterator)))


def peer_masked_lm_loss(logits, batch: dict):
    """Its masked LM loss: the mean over the predictions."""
    import tf_keras

    losses = tf_keras.losses.sparse_categorical_crossentropy(
        batch["masked_lm_ids"], tf.cast(logits, tf.float32), from_logits=True
    )
    weights = batch["masked_lm_weights"]
    return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)


def _sizes(config: BertConfig) -> dict[str, int]:
    """The arguments that all encoders of tf-models-official have in common."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "max_sequence_length": config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size,
    }


def bert_peer_step(config: BertConfig, batches: tf.data.Dataset, dtype: str):
    """A step of tf-models-official's BERT or ALBERT, built as its own masked_lm task builds it."""
    import tf_keras
    from official.nlp.modeling import layers, models, networks

    tf_keras.mixed_precision.set_global_policy("mixed_bfloat16" if dtype == "bfloat16" else "float32")
    sizes = _sizes(config)
    if isinstance(config, AlbertConfig):
        further = {"embedding_width": config.embedding_size, "intermediate_size": config.intermediate_size}
        encoder = networks.AlbertEncoder(**sizes, **further, dict_outputs=True)
    else:
        encoder = networks.BertEncoderV2(**sizes, inner_dim=config.intermediate_size)
    head = layers.ClassificationHead(inner_dim=config.hidden_size, num_classes=2, name="next_sentence")
    model = models.BertPretrainerV2(encoder, mlm_activation=tf_keras.activations.gelu, classification_heads=[head])
    names = {
        "input_ids": "input_word_ids",
        "input_mask": "input_mask",
        "segment_ids": "input_type_ids",
        "masked_lm_positions": "masked_lm_positions",
    }

    def loss_of_outputs(outputs, batch):
        losses = tf_keras.losses.sparse_categorical_crossentropy(
            batch["next_sentence_labels"], tf.cast(outputs["next_sentence"], tf.float32), from_logits=True
        )
        return peer_masked_lm_loss(outputs["mlm_logits"], batch) + tf.reduce_mean(losses)

    return peer_step(model, batches, names, loss_of_outputs)


def electra_peer_step(config: ElectraConfig, generator_config: ElectraConfig, batches: tf.data.Dataset, dtype: str):
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
        num_token_predictions=batches.element_spec["masked_lm_ids"].shape[1],
        mlm_activation=tf_keras.activations.gelu,
        mlm_initializer=tf_keras.initializers.TruncatedNormal(stddev=0.02),
    )
    renamed = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    names = {name: renamed.get(name, name) for name in batches.element_spec}

    def loss_of_outputs(outputs, batch):
        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            logits=tf.cast(outputs["disc_logits"], tf.float32), labels=tf.cast(outputs["disc_label"], tf.float32)
        )
        mask = tf.cast(batch["input_mask"], tf.float32)
        discriminator_loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
        return peer_masked_lm_loss(outputs["lm_outputs"], batch) + 50.0 * discriminator_loss

    return peer_step(model, batches, names, loss_of_outputs)
