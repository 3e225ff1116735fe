"""Names and shapes of variables in checkpoints: those of the original, with a family's own scope in place of `bert`.

The TF1 checkpoints of two originals have other names, which are translated here; those of other libraries are in
huggingface.py and model_garden.py.
ELECTRA's have a discriminator and a generator in one file. Both use the tables under `electra/embeddings`. The
discriminator has the names used here. The generator's other variables are under `generator/` and
`generator_predictions/`; here they are those of an encoder with a masked-LM head. A fine-tuned model's output layer is
under `task_specific/TASK/`. ALBERT's are under BERT's scope, with other names for the shared transformer blocks.
"""

import dataclasses
import itertools
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping

from absl import logging

from bert_tf.families.config import BertConfig
from bert_tf.store.tensor_files import Weights, base_name, is_model_variable, renamed
from bert_tf.system.messages import abbreviated_list

# The output layers of the original's run_classifier.py (root scope) and run_squad.py, and some families' hidden layer.
HIDDEN_LAYER = ("pre_classifier/kernel", "pre_classifier/bias")
HEAD_NAMES = ("output_weights", "output_bias", "cls/squad/output_weights", "cls/squad/output_bias", *HIDDEN_LAYER)
# What LoRA trains beside a kernel, see lora.py.
ADAPTER_A, ADAPTER_B, ADAPTER_ALPHA = "lora_a", "lora_b", "lora_alpha"

_LAYER = re.compile(r"\w+/encoder/layer_(\d+)/")


def is_adapter(name: str) -> bool:
    """Whether a variable's path, or its name in a checkpoint, is of an adapter."""
    return name.rsplit("/", 1)[-1] in (ADAPTER_A, ADAPTER_B, ADAPTER_ALPHA)


def has_adapters(model) -> bool:
    return any(is_adapter(variable.path) for variable in model.weights)


def other_slots(names: Collection[str]) -> list[str]:
    """Values of variables that optimizers and averages keep under their names; Adam's moments are not among them."""
    others = [name for name in names if base_name(name) == name and not is_adapter(name)]
    return [name for name in others if any(name[: slash.start()] in names for slash in re.finditer("/", name))]


def word_table(scope: str) -> str:
    return f"{scope}/embeddings/word_embeddings"


def pooler(scope: str) -> str:
    return f"{scope}/pooler/dense"


def num_blocks_of(names: Iterable[str]) -> int:
    """The number of transformer blocks among names of variables."""
    numbers = [int(match[1]) for match in map(_LAYER.match, names) if match]
    return 1 + max(numbers, default=-1)


def config_of_shapes(
    path: str, shapes: Mapping[str, tuple], num_attention_heads: int, like: BertConfig | None = None
) -> BertConfig:
    """The configuration of a model whose variables have these shapes.

    path: of the weights. like: of the same family; gives what shapes don't show. None: its class's defaults.
    """
    config_class = next(BertConfig.classes[scope] for scope in BertConfig.classes if word_table(scope) in shapes)
    scope = config_class.model_type
    vocab_size, embedding_size = shapes[word_table(scope)]
    hidden_size, keys = embedding_size, config_class.keys()
    if "embedding_size" in keys:
        hidden_size = shapes[f"{scope}/encoder/layer_0/output/dense/bias"][0]
    sizes = {
        "vocab_size": vocab_size,
        "embedding_size": embedding_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_blocks_of(shapes),
        "num_attention_heads": num_attention_heads,
        "intermediate_size": shapes[f"{scope}/encoder/layer_0/intermediate/dense/bias"][0],
        "max_position_embeddings": shapes[f"{scope}/embeddings/position_embeddings"][0],
        "type_vocab_size": shapes[f"{scope}/embeddings/token_type_embeddings"][0],
    }
    sizes = {key: size for key, size in sizes.items() if key in keys}
    return config_class.from_dict({**(like.to_dict() if like else {}), **sizes}, allow_unknown=True, source=path)


def expected_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every variable of a pre-training model, in the order of the original's checkpoints.

    Source: original run_pretraining.py; the heads of its other scripts have shapes of their own: see HEAD_NAMES.
    """
    scope, hidden, inner, width = config.model_type, config.hidden_size, config.intermediate_size, config.embedding_size
    shapes: dict[str, tuple[int, ...]] = {}

    def dense(name: str, rows: int, columns: int, norm: str | None = None) -> None:
        shapes.update({f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)})
        if norm:
            shapes.update({f"{norm}/LayerNorm/{leaf}": (columns,) for leaf in ("beta", "gamma")})

    tables = {"word_embeddings": config.vocab_size, "token_type_embeddings": config.type_vocab_size}
    tables |= {"position_embeddings": config.max_position_embeddings}
    shapes |= {f"{scope}/embeddings/{name}": (rows, width) for name, rows in tables.items() if rows}
    shapes |= {f"{scope}/embeddings/LayerNorm/{leaf}": (width,) for leaf in ("beta", "gamma")}
    if width != hidden:
        dense(f"{scope}/embeddings_project", width, hidden)
    for number in range(1 + max(config.block_order)):
        layer = f"{scope}/encoder/layer_{number}"
        for name in ("query", "key", "value"):
            dense(f"{layer}/attention/self/{name}", hidden, hidden)
        dense(f"{layer}/attention/output/dense", hidden, hidden, norm=f"{layer}/attention/output")
        dense(f"{layer}/intermediate/dense", hidden, inner)
        dense(f"{layer}/output/dense", inner, hidden, norm=f"{layer}/output")
    if config.has_pooler:
        dense(pooler(scope), hidden, hidden)
    dense("cls/predictions/transform/dense", hidden, width, norm="cls/predictions/transform")
    shapes["cls/predictions/output_bias"] = (config.vocab_size,)
    if config.has_pooler:
        shapes |= {"cls/seq_relationship/output_weights": (2, hidden), "cls/seq_relationship/output_bias": (2,)}
    if config.detects_replaced_tokens:
        dense("discriminator_predictions/dense", hidden, hidden)
        dense("discriminator_predictions/dense_1", hidden, 1)
    return shapes


def all_names(config_class: type[BertConfig], is_there: Callable[[str], bool]) -> list[str]:
    """The names of all variables that a pre-trained model of a family may have, for as many blocks as `is_there`."""
    key = f"{config_class.model_type}/encoder/layer_%d/attention/self/key/kernel"
    blocks = next(number for number in itertools.count() if not is_there(key % number))
    sizes = dict.fromkeys(BertConfig.keys(), 1)
    kinds = ("model_type", "has_pooler", "detects_replaced_tokens")
    sizes |= {"embedding_size": 2, **{kind: getattr(config_class, kind) for kind in kinds}}
    return list(expected_shapes(types.SimpleNamespace(**sizes, block_order=range(max(blocks, 1)))))


def check_depth(weights: Weights, config: BertConfig, config_name: str, of_weights: bool = False) -> None:
    """Raises if a configuration has more layers than the weights, which would stay random; warns of one of fewer.

    of_weights: the configuration is that of the weights, so that one of fewer layers is a mistake, too.
    """
    blocks, wanted = num_blocks_of(weights.shapes), config.num_hidden_layers
    if config.block_order != list(range(wanted)):  # layers share blocks, whose number is not that of the layers
        return
    if 0 < blocks < wanted or (of_weights and 0 < wanted < blocks):
        raise ValueError(
            f"{config_name} does not fit the weights of {weights.path}: num_hidden_layers is {wanted}, but they have "
            f"{blocks} layers."
        )
    if blocks > wanted:
        message = "%s: num_hidden_layers is %d, but the weights of %s have %d layers: the last %d are left out."
        logging.warning(message, config_name, wanted, weights.path, blocks, blocks - wanted)


def check_shapes(weights: Weights, config: BertConfig, config_name: str) -> None:
    check_depth(weights, config, config_name, of_weights=True)
    expected = expected_shapes(config)
    encoder, head = f"{config.model_type}/", pooler(config.model_type)  # a model without a pooler can still be used
    wrong = [
        f"{name}: expected {list(shape)}, found {list(weights.shapes[name])}"
        for name, shape in expected.items()
        if name in weights.shapes and weights.shapes[name] != shape
    ]
    for name, shape in weights.shapes.items():
        if is_model_variable(name) and name.startswith(f"{config.model_type}/") and name not in expected:
            wrong.append(f"{name}: not expected, found {list(shape)}")
        elif name in HEAD_NAMES and name.endswith("weights") and shape[-1:] != (config.hidden_size,):
            wrong.append(f"{name}: expected [classes, {config.hidden_size}], found {list(shape)}")
    for name, shape in expected.items():
        if name.startswith(encoder) and not name.startswith(head) and name not in weights.shapes:
            wrong.append(f"{name}: expected {list(shape)}, not there")
    if wrong:
        raise ValueError(
            f"{config_name} does not fit the weights of {weights.path}, {len(wrong)} variables differ: "
            f"{abbreviated_list(wrong, '; ')}."
        )


# --- TF1 checkpoints of ELECTRA and ALBERT ---------------------------------------------------------------------------

BOTH = "both"  # among `Weights.parts`: generator and discriminator under the names of their original

_ELECTRA, _GENERATOR, _GENERATOR_HEAD = "electra/", "generator/", "generator_predictions/"
_DISCRIMINATOR_HEAD, _TASK = "discriminator_predictions/", "task_specific/"
# Of a generator: our name -> theirs.
_MASKED_LM = {
    "cls/predictions/transform/": _GENERATOR_HEAD,
    "cls/predictions/output_bias": _GENERATOR_HEAD + "output_bias",
}
# Parts of ALBERT's names: ours -> theirs. Each part of a name is replaced once, by the first of these that begins it.
_ALBERT_PARTS = {
    "albert/embeddings_project/": "bert/encoder/embedding_hidden_mapping_in/",
    "albert/": "bert/",
    "/attention/self/": "/attention_1/self/",
    "/attention/output/dense/": "/attention_1/output/dense/",
    "/attention/output/LayerNorm/": "/LayerNorm/",
    "/intermediate/dense/": "/ffn_1/intermediate/dense/",
    "/output/dense/": "/ffn_1/intermediate/output/dense/",
    "/output/LayerNorm/": "/LayerNorm_1/",
}
_ALBERT_PART = re.compile("|".join(map(re.escape, _ALBERT_PARTS)))
_ALBERT_BLOCK = re.compile(r"bert/encoder/transformer/group_(\d+)/inner_group_(\d+)/")


def with_our_names(weights: Weights) -> Weights:
    """A checkpoint's variables under the names used here; those of a BERT have them already."""
    if any(name.startswith((_ELECTRA, _GENERATOR)) for name in weights):
        return _open_electra(weights)
    return _open_albert(weights) if any(map(_ALBERT_BLOCK.match, weights)) else weights


def names_there(names: Iterable[str], config: BertConfig) -> dict[str, str]:
    """Names of a model's variables and of their moments -> the names in the checkpoints of its family's original."""
    names = list(names)
    bases = {base_name(name) for name in names}
    kind, names_in_file = config.model_type, {base: base for base in bases}
    if kind == "albert":
        names_in_file = {base: _albert_name(base, config.inner_group_num) for base in bases}
    elif kind == "electra":
        names_in_file = _electra_names(bases)
    return {name: names_in_file[base_name(name)] + name.removeprefix(base_name(name)) for name in names}


def _albert_name(name: str, inner_group_num: int) -> str:
    def block(match: re.Match) -> str:
        group, inner = divmod(int(match[1]), inner_group_num)
        return f"encoder/transformer/group_{group}/inner_group_{inner}/"

    albert_name = _ALBERT_PART.sub(lambda match: _ALBERT_PARTS[match[0]], name)
    return re.sub(r"encoder/layer_(\d+)/", block, albert_name)


def _open_albert(weights: Weights) -> Weights:
    number = 1 + max(int(match[2]) for match in map(_ALBERT_BLOCK.match, weights) if match)
    names = all_names(BertConfig.classes["albert"], lambda name: _albert_name(name, number) in weights)
    our_names = {_albert_name(name, number): name for name in names}
    bases = {name: base_name(name) for name in weights}
    origins = {
        our_names.get(base, re.sub("^bert/", "albert/", base)) + name.removeprefix(base): name
        for name, base in bases.items()
    }
    return renamed(weights, origins, {})


def _open_electra(weights: Weights) -> Weights:
    """The discriminator of a checkpoint, or its generator if that is alone.

    `Weights.parts` has each that is there, and where both are, under BOTH, all variables with their own names.
    """
    names = {base_name(name) for name in weights}
    has_generator = any(name.startswith((_GENERATOR, _GENERATOR_HEAD)) for name in names)
    has_encoder = any(name.startswith(_ELECTRA + "encoder/") for name in names)
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
    """The weights of generator and discriminator, or one of them, under ELECTRA's names, from `with_our_names`."""
    if BOTH in weights.parts:
        return weights.parts[BOTH]
    names = _electra_names({base_name(name) for name in weights if is_model_variable(base_name(name))})
    return renamed(weights, {names[name]: name for name in weights if name in names}, {})


def _in_discriminator(name: str, names: set[str]) -> str | None:
    """This project's name for a variable of ELECTRA's checkpoints; None if it is not the discriminator's."""
    if name.startswith(_TASK):
        last = name.rpartition("/")[2]
        heads = {tuple(other.split("/")[1:3]) for other in names if other.startswith(_TASK)}
        layers = {layer for _, layer in heads} if len({task for task, _ in heads}) == 1 else set()
        return {"kernel": "output_weights", "bias": "output_bias"}[last] if layers == {"dense"} else None
    return None if name.startswith((_GENERATOR, "generator_", "cloze_")) else name


def _in_generator(name: str, names: set[str]) -> str | None:
    """This project's name for a variable of ELECTRA's checkpoints; None if it is not the generator's."""
    for ours, theirs in _MASKED_LM.items():
        if name.startswith(theirs) and (name.endswith("output_bias") == theirs.endswith("output_bias")):
            return ours + name.removeprefix(theirs)
    if name.startswith(_GENERATOR):
        return _ELECTRA + name.removeprefix(_GENERATOR)
    if not name.startswith(_ELECTRA):
        return None
    # The generator shares what it lacks with the discriminator, except the layer behind shared tables.
    scopes = {other.split("/")[1] for other in names if other.startswith(_GENERATOR)}
    scope = name.split("/")[1]
    return None if scope in scopes or (scopes and scope != "embeddings") else name


def _part(weights: Weights, names: Mapping[str, str | None], other: str) -> Weights:
    """The variables of one part, with their moments. `names`: ELECTRA's name -> this project's."""
    used = {}
    for original in weights:
        name = names.get(base_name(original)) if is_model_variable(base_name(original)) else original
        if name:
            used[name + original.removeprefix(base_name(original))] = original
    unused = {original: _reason(original, other) for original in sorted(set(weights) - set(used.values()))}
    # This project's runs write checkpoints under the same scope, whose output layer is not transposed.
    there_transposed = [name for name in used if base_name(name) == "output_weights" and used[name].startswith(_TASK)]
    part = renamed(weights, used, unused, transposed=there_transposed)
    width = part.shapes.get(_ELECTRA + "encoder/layer_0/output/dense/bias", (1,))[0]
    if word_table("electra") in part.shapes:
        part.hints["num_attention_heads"] = max(1, width // 64)
    return part


def _reason(name: str, other: str) -> str:
    if name.startswith(_TASK):
        return "an output layer of a kind that this project doesn't have"
    return f"of the {other}" if name != "global_step" else "a counter"


def _electra_names(names: Iterable[str]) -> dict[str, str]:
    """The original's names for a model's variables: those of a generator if it has a masked-LM head."""
    names = list(names)
    generator = "cls/predictions/output_bias" in names and _DISCRIMINATOR_HEAD + "dense/kernel" not in names

    def electra_name(name: str) -> str:
        for prefix, replacement in _MASKED_LM.items():
            if name.startswith(prefix):
                return replacement + name.removeprefix(prefix)
        in_generator = generator and name.startswith(_ELECTRA) and not name.startswith(_ELECTRA + "embeddings/")
        return _GENERATOR + name.removeprefix(_ELECTRA) if in_generator else name

    return {name: electra_name(name) for name in names}
