"""The weight formats: what each can hold, what its files are called, and how weights of any format are opened.

    weights = open_weights("uncased_L-12_H-768_A-12")      # Google's TF1 zip, unpacked
    weights = open_weights("bert-base-uncased")            # a Hugging Face directory
    weights = open_weights("hub/bert_en_uncased/4")        # a TensorFlow Hub SavedModel

Everything that takes weights uses this: the scripts' --init_checkpoint, `from_pretrained`, the converter. To add a
format, add it to `FORMATS`, read it in `open_weights`, and write it in `saving.py`. Local files are found, and their
names and shapes read, without TensorFlow.
"""

import dataclasses
import posixpath

from bert_tf.families import family_of_variables
from bert_tf.store import variable_names
from bert_tf.store.tensor_files import Weights, open_safetensors
from bert_tf.system.messages import abbreviated_list
from bert_tf.system.storage import finish_replacing, is_remote, names_in
from bert_tf.system.text_files import exists, is_folder
from bert_tf.text.tokenizer_files import first_existing

# How the names of files other than TensorFlow's checkpoints end.
_ENDINGS = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".h5")
# The encoder's scope in TF1 Hub modules.
_HUB_SCOPE = "module/"


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of weights, and what it can hold.

    Attributes:
      name: its --format value.
      help: one sentence for --format.
      looked_for: what a directory must have one of.
      file_name: of the weights in a directory that is written; None: the format is only read.
      takes_prefix: a target may be a prefix such as out/bert_model.ckpt, not only a directory.
      holds_optimizer: can store Adam moments and the step.
      holds_variants: can record that a model is causal or reads windows; in other formats it would be read as BERT.
      knows_exact_gelu: the format's own programs have hidden_act "gelu_erf".
    """

    name: str
    help: str
    looked_for: tuple[str, ...]
    file_name: str | None = None
    takes_prefix: bool = False
    holds_optimizer: bool = False
    holds_variants: bool = False
    knows_exact_gelu: bool = True


BERT_TF = Format(
    name="bert_tf",
    help="safetensors under the original's names.",
    looked_for=("bert_model.safetensors",),
    file_name="bert_model.safetensors",
    holds_optimizer=True,
    holds_variants=True,
)
HUGGINGFACE = Format(
    name="huggingface",
    help="config.json and model.safetensors.",
    looked_for=(
        "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    ),
    file_name="model.safetensors",
)  # fmt: skip
MODEL_GARDEN = Format(
    name="model_garden", help="the format of tf-models-official, only read.", looked_for=("variables/variables.index",)
)
TF1 = Format(
    name="tf1",
    help="the format of the original's scripts.",
    looked_for=("bert_model.ckpt.index",),
    file_name="bert_model.ckpt",
    takes_prefix=True,
    holds_optimizer=True,
    knows_exact_gelu=False,
)
# By name, in the order in which a directory is searched.
FORMATS = {format.name: format for format in (BERT_TF, HUGGINGFACE, MODEL_GARDEN, TF1)}


def find_weights(path: str) -> tuple[Format, str]:
    """The format of the weights at a path that a user gave.

    Args:
      path: a checkpoint prefix, one of its files, a weight file, or a directory of any format.

    Returns:
      The format, and a file, or the prefix of a TensorFlow checkpoint.
    """
    finish_replacing(path if is_folder(path) else posixpath.dirname(path))
    file = path if path.endswith(_ENDINGS) and exists(path) else None
    if is_folder(path):
        file = first_existing(path, (*BERT_TF.looked_for, *HUGGINGFACE.looked_for))
    if file:
        is_ours = posixpath.basename(file) == BERT_TF.file_name
        if not is_ours and file == path and file.endswith(".safetensors"):
            is_ours = open_safetensors(file)[1].get("format") == BERT_TF.name
        return (BERT_TF if is_ours else HUGGINGFACE), file
    from bert_tf.store import bundle  # other formats don't need it

    prefix = bundle.find_bundle(path, TF1.file_name)
    if prefix:
        return (MODEL_GARDEN if bundle.CheckpointReader(prefix).has_tensor(bundle.OBJECT_GRAPH) else TF1), prefix
    if is_folder(path):
        if file := first_existing(path, ("tf_model.h5",)):  # the last, as any other may be newer
            return HUGGINGFACE, file
        looked_for = ", ".join(name for kind in FORMATS.values() for name in kind.looked_for)
        there = abbreviated_list(names_in(path)) or "nothing"
        raise FileNotFoundError(f"{path} has no weights: none of {looked_for}. It contains {there}.")
    from bert_tf.system.released_models import hint

    formats = "no directory, .safetensors, .bin or .h5 file, and no prefix of a checkpoint (PREFIX.index)"
    raise FileNotFoundError(f"{path}: no weights found: it is {formats}.{hint(path)}")


def has_weights(folder: str) -> bool:
    """Whether a folder has weights of a known format, readable or not."""
    try:
        find_weights(folder)
    except (FileNotFoundError, ValueError) as error:
        return isinstance(error, ValueError)  # damaged ones
    return True


def is_light(path: str) -> bool:
    """Whether names and shapes of the weights at a path are read without TensorFlow."""
    return not is_remote(path) and find_weights(path)[0] is not MODEL_GARDEN


def open_weights(path: str, part: str | None = None, *, merge: bool = True) -> Weights:
    """Opens the weights at `path`; reads only names and shapes.

    Args:
      part: which of several models that are trained together, see `Family.parts`. None: the first in the file.
      merge: adapters of LoRA, which checkpoints of a run have, are added to their kernels. False: as they are stored.
    """
    format, file = find_weights(path)
    if format is BERT_TF:
        weights = open_ours(file)
    elif format is HUGGINGFACE:
        from bert_tf.store import huggingface

        weights = huggingface.open_file(file)
    elif format is MODEL_GARDEN:
        from bert_tf.store import model_garden

        weights = model_garden.open_checkpoint(file)
    else:
        from bert_tf.store import bundle

        reader = bundle.CheckpointReader(file)
        shapes_of_file = reader.get_variable_to_shape_map()
        origins = {name.removeprefix(_HUB_SCOPE): name for name in sorted(shapes_of_file)}
        unused = {origins.pop(name): "of an optimizer" for name in variable_names.other_slots(origins)}
        shapes = {name: tuple(shapes_of_file[origin]) for name, origin in origins.items()}
        weights = Weights(file, TF1.name, shapes, origins, lambda name: reader.get_tensor(origins[name]), unused)
        weights = variable_names.with_our_names(weights)
    if merge and any(map(variable_names.is_adapter, weights.shapes)):
        from bert_tf.store.lora import merged

        weights = merged(weights)
    return choose_part(weights, part) if part else weights


def open_ours(file: str) -> Weights:
    shapes, _, read = open_safetensors(file)
    return Weights(file, BERT_TF.name, shapes, {name: name for name in shapes}, read)


def has_optimizer_state(path: str) -> bool:
    """Whether weights have the Adam moments, without which training can't continue from them."""
    return any(name.endswith("/adam_m") for name in open_weights(path).shapes)


def choose_part(weights: Weights, part: str) -> Weights:
    """One of the models in a file; the file's only one where nothing shows which it is."""
    if part in weights.parts:
        return weights.parts[part]
    family = family_of_variables(weights.shapes)
    title = family.config_class.title
    if part not in family.parts:
        raise ValueError(f"{weights.path} is a {title}, which has no {part}.")
    for other, variable in family.parts.items():
        if other != part and variable in weights.shapes:
            raise ValueError(f"{weights.path} is the {other} of an {title}: give the weights of a {part}.")
    return weights
