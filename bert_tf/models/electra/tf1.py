"""ELECTRA in the original's TF1 checkpoints: a discriminator and a generator in one file.

Both use the tables under `electra/embeddings`. The discriminator has the names used here. The generator's other
variables are under `generator/` and `generator_predictions/`; here they are those of an encoder with a masked-LM head.
A fine-tuned model's output layer is under `task_specific/TASK/`.
"""

import dataclasses
from collections.abc import Iterable

from bert_tf.models.config import BertConfig
from bert_tf.models.variable_names import word_table
from bert_tf.weights.mapping import Weights, base_name, is_model_variable, renamed

BOTH = "both"  # among `Weights.parts`
_SCOPE = "electra/"
_DISCRIMINATOR_HEAD = "discriminator_predictions/"
_GENERATOR, _GENERATOR_HEAD = "generator/", "generator_predictions/"
# Here -> there.
_MASKED_LM = {
    "cls/predictions/transform/": _GENERATOR_HEAD,
    "cls/predictions/output_bias": _GENERATOR_HEAD + "output_bias",
}
_TASK = "task_specific/"
_OUTPUT_LAYER = {"kernel": "output_weights", "bias": "output_bias"}
# The layers of `question_answering.ElectraForQuestionAnswering`: here -> there.
_ANSWER = {
    "cls/squad_start": "dense",
    "cls/squad_end_hidden": "qa_hidden",
    "cls/squad_end": "dense_1",
    "cls/squad_answerable_hidden": "dense_2",
    "cls/squad_answerable": "dense_3",
}


def is_here(names: Iterable[str]) -> bool:
    """Whether these are the variables of an ELECTRA."""
    return any(name.startswith((_SCOPE, _GENERATOR)) for name in names)


def open_weights(weights: Weights) -> Weights:
    """The discriminator of a checkpoint, or its generator if that is alone.

    `Weights.parts` has each that is there, and where both are, under BOTH, all variables with their own names.
    """
    names = {base_name(name) for name in weights}
    has_generator = any(name.startswith((_GENERATOR, _GENERATOR_HEAD)) for name in names)
    has_encoder = any(name.startswith(_SCOPE + "encoder/") for name in names)
    parts = {}
    if has_encoder:
        parts["discriminator"] = _part(weights, {name: _in_discriminator(name, names) for name in names}, "generator")
    if has_generator:
        generator = _part(weights, {name: _in_generator(name, names) for name in names}, "discriminator")
        if has_encoder and _GENERATOR + "encoder/layer_0/output/dense/bias" in names:
            generator.hints["sizes_from_weights"] = True  # a configuration beside the file is the discriminator's
        parts["generator"] = generator
    if len(parts) == 2:
        parts[BOTH] = weights
    # A language model that was trained without a discriminator has the encoder's names of one.
    alone = has_generator and not any(name.startswith((_DISCRIMINATOR_HEAD, _TASK)) for name in names)
    chosen = parts["generator" if alone or not has_encoder else "discriminator"]
    return dataclasses.replace(chosen, parts=parts)


def weights_of_both(weights: Weights) -> Weights:
    """The weights of generator and discriminator together, under the names there, from what `open_weights` returned.

    Weights of one of them are those of a part; the other's variables are not among them.
    """
    if BOTH in weights.parts:
        return weights.parts[BOTH]
    there = names_there({base_name(name) for name in weights if is_model_variable(base_name(name))}, None)
    return renamed(weights, {there[name]: name for name in weights if name in there}, {})


def _in_discriminator(name: str, names: set[str]) -> str | None:
    """The name here of a variable there; None if it is not the discriminator's."""
    if name.startswith(_TASK):
        layer, last = name.split("/")[2:]
        heads = {tuple(other.split("/")[1:3]) for other in names if other.startswith(_TASK)}
        layers = {layer for _, layer in heads} if len({task for task, _ in heads}) == 1 else set()
        if layers == set(_ANSWER.values()):
            return f"{next(here for here, there in _ANSWER.items() if there == layer)}/{last}"
        return _OUTPUT_LAYER[last] if layers == {"dense"} else None
    return None if name.startswith((_GENERATOR, "generator_", "cloze_")) else name


def _in_generator(name: str, names: set[str]) -> str | None:
    """The name here of a variable there; None if it is not the generator's."""
    for here, there in _MASKED_LM.items():
        if name.startswith(there) and (name.endswith("output_bias") == there.endswith("output_bias")):
            return here + name.removeprefix(there)
    if name.startswith(_GENERATOR):
        return _SCOPE + name.removeprefix(_GENERATOR)
    if not name.startswith(_SCOPE):
        return None
    # What the generator doesn't have of its own is the discriminator's, but for the layer behind shared tables.
    own = {other.split("/")[1] for other in names if other.startswith(_GENERATOR)}
    scope = name.split("/")[1]
    return None if scope in own or (own and scope != "embeddings") else name


def _part(weights: Weights, names: dict[str, str | None], other: str) -> Weights:
    """The variables of one part, with their moments. `names`: there -> here."""
    used = {}
    for there in weights:
        name = names.get(base_name(there)) if is_model_variable(base_name(there)) else there
        if name:
            used[name + there.removeprefix(base_name(there))] = there
    unused = {there: _reason(there, other) for there in sorted(set(weights) - set(used.values()))}
    # This project's runs write checkpoints under the same scope, whose output layer is not transposed.
    there_transposed = [name for name in used if base_name(name) == "output_weights" and used[name].startswith(_TASK)]
    part = renamed(weights, used, unused, transposed=there_transposed)
    width = part.shapes.get(_SCOPE + "encoder/layer_0/output/dense/bias", (1,))[0]
    if word_table("electra") in part.shapes:
        part.hints["num_attention_heads"] = max(1, width // 64)
    return part


def _reason(name: str, other: str) -> str:
    if name.startswith(_TASK):
        return "an output layer of a kind that this project doesn't have"
    if name.startswith(("generator_ltr/", "generator_rtl/", "cloze_")):
        return "of Electric's two towers, which this project doesn't have"
    return f"of the {other}" if name != "global_step" else "a counter"


def names_there(names: Iterable[str], config: BertConfig | None) -> dict[str, str]:
    """The original's names for a model's variables: those of a generator if it has a masked-LM head."""
    del config
    names = list(names)
    generator = "cls/predictions/output_bias" in names and _DISCRIMINATOR_HEAD + "dense/kernel" not in names

    def there(name: str) -> str:
        for here, replacement in _MASKED_LM.items():
            if name.startswith(here):
                return replacement + name.removeprefix(here)
        layer, _, last = name.rpartition("/")
        if layer in _ANSWER:
            return f"{_TASK}squad/{_ANSWER[layer]}/{last}"
        own = generator and name.startswith(_SCOPE) and not name.startswith(_SCOPE + "embeddings/")
        return _GENERATOR + name.removeprefix(_SCOPE) if own else name

    return {name: there(name) for name in names}
