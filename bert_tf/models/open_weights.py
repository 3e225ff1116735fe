"""Opens weights of any format.

    weights = open_weights("uncased_L-12_H-768_A-12")      # Google's TF1 zip, unpacked
    weights = open_weights("bert-base-uncased")            # a Hugging Face directory
    weights = open_weights("hub/bert_en_uncased/4")        # a TensorFlow Hub SavedModel

Everything that takes weights uses this: the scripts' --init_checkpoint, `from_pretrained`, the converter.
"""

import posixpath

from bert_tf.models import huggingface, tf1_layouts
from bert_tf.models.families import family_of_variables
from bert_tf.models.formats import BERT_TF, ENDINGS, HUGGINGFACE, MODEL_GARDEN, TF1, Format, no_weights
from bert_tf.models.huggingface_layouts import LAYOUTS
from bert_tf.models.lora import merged
from bert_tf.system.text_files import exists, is_folder
from bert_tf.text.casing import first_existing
from bert_tf.weights import bundle
from bert_tf.weights.mapping import Weights
from bert_tf.weights.tensor_files import open_safetensors

# The encoder's scope in TF1 Hub modules.
_HUB_SCOPE = "module/"


def find_weights(path: str) -> tuple[Format, str]:
    """The format of the weights at a path that a user gave.

    Args:
      path: a checkpoint prefix, one of its files, a weight file, or a directory of any format.

    Returns:
      The format, and a file, or the prefix of a TensorFlow checkpoint.

    Raises:
      FileNotFoundError: there are no weights of a known format; the message says what was looked for.
      ValueError: a file can't be read.
    """
    file = path if path.endswith(ENDINGS) and exists(path) else None
    if is_folder(path):
        file = first_existing(path, (*BERT_TF.looked_for, *HUGGINGFACE.looked_for))
    if file:
        ours = posixpath.basename(file) == BERT_TF.file_name
        if not ours and file == path and file.endswith(".safetensors"):
            ours = open_safetensors(file)[1].get("format") == BERT_TF.name
        return (BERT_TF if ours else HUGGINGFACE), file
    prefix = bundle.find_bundle(path, TF1.file_name)
    if not prefix:
        raise no_weights(path)
    return (MODEL_GARDEN if bundle.open_bundle(prefix).has_tensor(bundle.OBJECT_GRAPH) else TF1), prefix


def open_weights(path: str, part: str | None = None, *, merge: bool = True) -> Weights:
    """Opens the weights at `path`; reads only names and shapes.

    Args:
      part: which of several models that are trained together, see `Family.parts`. None: the first in the file.
      merge: adapters of LoRA, which checkpoints of a run have, are added to their kernels. False: as they are stored.

    Raises:
      FileNotFoundError: see `find_weights`. ValueError: damaged, or not a BERT; the part is not there.
    """
    format, file = find_weights(path)
    if format is BERT_TF:
        shapes, _, read = open_safetensors(file)
        weights = Weights(file, BERT_TF.name, shapes, {name: name for name in shapes}, read)
    elif format is HUGGINGFACE:
        weights = huggingface.open_weights(file, LAYOUTS)
    elif format is MODEL_GARDEN:
        from bert_tf.models import model_garden  # few programs need it

        weights = model_garden.open_weights(file)
    else:
        weights = _open_tf1(file)
    weights = merged(weights) if merge else weights
    return choose_part(weights, part) if part else weights


def _open_tf1(prefix: str) -> Weights:
    reader = bundle.open_bundle(prefix)
    shapes = reader.get_variable_to_shape_map()
    origins = {name.removeprefix(_HUB_SCOPE): name for name in sorted(shapes)}
    weights = Weights(
        prefix,
        TF1.name,
        {name: tuple(shapes[origin]) for name, origin in origins.items()},
        origins,
        lambda name: bundle.read_tensor(reader, prefix, origins[name]),
    )
    return tf1_layouts.with_our_names(weights)


def choose_part(weights: Weights, part: str) -> Weights:
    """One of the models in a file; the file's only one where nothing shows which it is.

    Raises:
      ValueError: the file has another part, or models of its family have no parts.
    """
    if part in weights.parts:
        return weights.parts[part]
    family = family_of_variables(weights.shapes)
    if part not in family.parts:
        raise ValueError(f"{weights.path} is a {family.config_class.title}, which has no {part}.")
    for other, variable in family.parts.items():
        if other != part and variable in weights.shapes:
            title = family.config_class.title
            raise ValueError(f"{weights.path} is the {other} of an {title}: give the weights of a {part}.")
    return weights
