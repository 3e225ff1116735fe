"""ELECTRA in checkpoints of the TensorFlow Model Garden: an ElectraPretrainer, which holds both models.

Source: tf-models-official 2.20, nlp/modeling/models/electra_pretrainer.py and nlp/tasks/electra_task.py. Both encoders
are BertEncoders, whose poolers nothing trains. Only the word table may be shared.
"""

from bert_tf.weights.object_graph import ObjectGraph

# A pretrainer's edges to the objects of each part.
_EDGES = {
    "discriminator": ("discriminator_network", "discriminator_projection", "discriminator_head"),
    "generator": ("generator_network", "masked_lm"),
}
# The dense layers of the discriminator's head, by the edges that lead to them: the last one has no name of its own.
_HEAD = {
    "discriminator_projection": "discriminator_predictions/dense",
    "discriminator_head": "discriminator_predictions/dense_1",
}
# Full names of the generator's head -> scopes and names here.
SCOPES = {
    "generator_masked_lm/transform/dense": "cls/predictions/transform/dense",
    "generator_masked_lm/transform/LayerNorm": "cls/predictions/transform/LayerNorm",
}
NAMES = {"generator_masked_lm/output_bias/bias": "cls/predictions/output_bias"}


def parts_of(graph: ObjectGraph) -> dict[str, ObjectGraph]:
    """The graphs of the discriminator and of the generator; none if there is no pretrainer."""
    networks = {edges[0] for edges in _EDGES.values()}
    for number in graph.paths:
        if networks <= graph.children(number).keys():
            return {part: graph.below(number, edges) for part, edges in _EDGES.items()}
    return {}


def head_variable(full_name: str, edges: set[str]) -> str | None:
    """The name here of a variable of the discriminator's head. edges: names of all edges that lead to it."""
    scope = next((scope for edge, scope in _HEAD.items() if edge in edges), None)
    return scope and f"{scope}/{full_name.rpartition('/')[2]}"
