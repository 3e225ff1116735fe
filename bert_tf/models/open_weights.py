"""Opens weights of any format.

    weights = open_weights("uncased_L-12_H-768_A-12")      # Google's TF1 zip, unpacked
    weights = open_weights("bert-base-uncased")            # a Hugging Face directory
    weights = open_weights("hub/bert_en_uncased/4")        # a TensorFlow Hub SavedModel

Everything that takes weights uses this: the scripts' --init_checkpoint, `from_pretrained`, the converter.
"""

from bert_tf.models.families import family_of_variables
from bert_tf.models.formats import FORMATS, Format, no_weights
from bert_tf.models.lora import merged
from bert_tf.weights.mapping import Weights


def find_weights(path: str) -> tuple[Format, str]:
    """The format of the weights at a path that a user gave.

    Args:
      path: a checkpoint prefix, one of its files, a weight file, or a directory of any format.

    Returns:
      The format, and the argument of its `open`: a file, or the prefix of a TensorFlow checkpoint.

    Raises:
      FileNotFoundError: there are no weights of a known format; the message says what was looked for.
      ValueError: a file can't be read.
    """
    for format in FORMATS.values():
        if file := format.find(path):
            return format, file
    raise no_weights(path)


def open_weights(path: str, part: str | None = None, *, merge: bool = True) -> Weights:
    """Opens the weights at `path`; reads only names and shapes.

    Args:
      part: which of several models that are trained together, see `Family.parts`. None: the first in the file.
      merge: adapters of LoRA, which checkpoints of a run have, are added to their kernels. False: as they are stored.

    Raises:
      FileNotFoundError: see `find_weights`. ValueError: damaged, or not a BERT; the part is not there.
    """
    format, file = find_weights(path)
    weights = merged(format.open(file)) if merge else format.open(file)
    return choose_part(weights, part) if part else weights


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
