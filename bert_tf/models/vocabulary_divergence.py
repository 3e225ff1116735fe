"""How much two models' distributions over a vocabulary differ, without the scores of all tokens in memory.

Shape legend: N tokens, E embedding size, V vocabulary.
"""

from collections.abc import Sequence

from keras import ops

# Tokens whose scores are computed at a time.
_ROWS = 512


def vocabulary_divergence(
    student: Sequence, teacher: Sequence, weights, temperature: float, factors: tuple[float, float], training: bool
):
    """Sums over tokens of KL(softmax(t / T) || softmax(s / T)) T^2 and of |s - t|^2, for the scores s and t [V].

    The scores are computed for a few tokens at a time, and only for those with a weight. Since they are linear in the
    upstream gradient, the gradients are computed with them, and nothing is computed again.

    Args:
      student, teacher: vectors [N, E], table [V, E] and bias [V], whose scores are vectors table^T + bias.
      weights: [N] float32, of the tokens. temperature: T. factors: of both sums in the loss.
      training: whether gradients of the student's tensors are needed.

    Returns:
      float32 [3]: both sums times their factors added up, which alone has a gradient; the two sums.
    """

    def compute(*own):
        sums, gradients = _sums_and_gradients(own, teacher, weights, temperature, factors, training)

        def backward(*arguments, upstream=None):
            upstream = arguments[-1] if upstream is None else upstream
            return tuple(ops.cast(upstream[0] * gradient, x.dtype) for x, gradient in zip(own, gradients, strict=True))

        return sums, backward

    if not training:
        return compute(*student)[0]
    return ops.custom_gradient(compute)(*student)


def _sums_and_gradients(own, theirs, weights, temperature: float, factors: tuple[float, float], training: bool):
    """The sums of `vocabulary_divergence`, and float32 gradients of the first with respect to `own`."""
    own, theirs = ([ops.stop_gradient(x) for x in tensors] for tensors in (own, theirs))
    # Those with a weight first. A sort would do, but on TPUs its result has a size that is not known beforehand.
    counted = ops.cast(weights > 0, "int32")
    count = ops.sum(counted)
    places = ops.where(counted > 0, ops.cumsum(counted), count + ops.cumsum(1 - counted)) - 1
    total = ops.shape(weights)[0]
    order = ops.scatter(places[:, None], ops.arange(total, dtype="int32"), (total,))

    def sorted_rows(x):
        return ops.pad(ops.take(x, order, axis=0), [(0, _ROWS)] + [(0, 0)] * (len(x.shape) - 1))

    inputs, targets, weights = sorted_rows(own[0]), sorted_rows(theirs[0]), sorted_rows(weights)
    tables = [ops.cast(tensors[1], tensors[0].dtype) for tensors in (own, theirs)]

    def scores(vectors, tensors, table):
        return ops.cast(ops.matmul(vectors, ops.transpose(table)), "float32") + tensors[2]

    def body(start, sums, *gradients):
        def rows(x):
            return ops.slice(x, [start] + [0] * (len(x.shape) - 1), [_ROWS, *x.shape[1:]])

        vectors, weight = rows(inputs), rows(weights)
        ours, goal = scores(vectors, own, tables[0]), scores(rows(targets), theirs, tables[1])
        log_ours, log_goal = (ops.log_softmax(x / temperature) for x in (ours, goal))
        difference, probability = ours - goal, ops.exp(log_goal)
        divergence = temperature**2 * ops.sum(probability * (log_goal - log_ours), axis=-1)
        new = ops.stack([ops.sum(weight * divergence), ops.sum(weight * ops.sum(difference**2, axis=-1))])
        if training:
            slope = factors[0] * temperature * (ops.exp(log_ours) - probability)
            if factors[1]:
                slope = slope + 2.0 * factors[1] * difference
            slope = weight[:, None] * slope  # [rows, V]
            narrow = ops.cast(slope, vectors.dtype)
            of_vectors = ops.cast(ops.matmul(narrow, tables[0]), "float32")
            of_table = ops.cast(ops.matmul(ops.transpose(narrow), vectors), "float32")
            gradients = (
                ops.slice_update(gradients[0], [start, 0], of_vectors),
                gradients[1] + of_table,
                gradients[2] + ops.sum(slope, axis=0),
            )
        return start + _ROWS, sums + new, *gradients

    start = [ops.zeros_like(ops.cast(x, "float32")) for x in (inputs, own[1], own[2])] if training else []
    _, sums, *gradients = ops.while_loop(lambda start, *_: start < count, body, (0, ops.zeros((2,)), *start))
    if training:
        gradients[0] = ops.take(gradients[0], places, axis=0)
    return ops.concatenate([ops.sum(sums * ops.convert_to_tensor(factors), keepdims=True), sums]), gradients
