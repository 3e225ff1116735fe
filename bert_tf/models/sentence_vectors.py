"""One vector for a text, from the encoder's outputs for its tokens.

Source: Reimers and Gurevych 2019, "Sentence-BERT", section 3.

Shape legend: B batch, S sequence length, H hidden size.
"""

from keras import ops

_LOWEST = -1e30


def sentence_vectors(encoder, inputs: dict, pooling: str, skipped: int = 0, **arguments):
    """float32 [B, H]: a vector for each row.

    Args:
      encoder: a `BertEncoder`. inputs: input_ids, input_mask and segment_ids [B, S].
      pooling: see `sentence_settings.SentenceSettings`. skipped: the first tokens of a row that are not read, those of
        a prompt. arguments: for the encoder's call.
    """
    mask = inputs["input_mask"]
    first = ops.full((ops.shape(mask)[0], 1), skipped, "int32") if pooling == "cls" else None
    outputs = encoder(inputs, read_positions=first, **arguments)["sequence_output"]
    return pooled(ops.cast(outputs, "float32"), mask, pooling, 0 if pooling == "cls" else skipped)


def pooled(outputs, mask, pooling: str, skipped: int = 0):
    """[B, H] of the outputs [B, S, H] for tokens and their mask [B, S]; of "cls" only the first output is read.

    skipped: the first tokens that are not read.
    """
    if pooling == "cls":
        return outputs[:, skipped]
    if skipped:
        mask = ops.cast(mask, "int32") * ops.cast(ops.arange(ops.shape(mask)[1]) >= skipped, "int32")
    counted = ops.cast(mask, outputs.dtype)[:, :, None]
    if pooling == "max":
        return ops.max(ops.where(counted > 0, outputs, _LOWEST), axis=1)
    return ops.sum(outputs * counted, axis=1) / ops.maximum(ops.sum(counted, axis=1), 1.0)


def normalized(vectors):
    """The vectors [..., H] with the length 1; zeros stay zeros."""
    return vectors / ops.maximum(ops.norm(vectors, axis=-1, keepdims=True), 1e-12)
