"""Opens weights of any format.

    weights = open_weights("uncased_L-12_H-768_A-12")      # Google's TF1 zip, unpacked
    weights = open_weights("bert-base-uncased")            # a Hugging Face directory
    weights = open_weights("hub/bert_en_uncased/4")        # a TensorFlow Hub SavedModel

Everything that takes weights uses this: the scripts' --init_checkpoint, `from_pretrained`, the converter.
"""

import posixpath

import tensorflow as tf

from bert_tf.models.formats import FORMATS, Format
from bert_tf.system.messages import some
from bert_tf.weights import find, released_models
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
    if tf.io.gfile.isdir(path):
        looked_for = [name for format in FORMATS.values() for name in format.looked_for]
        holds = some(sorted(tf.io.gfile.listdir(path))) or "nothing"
        raise FileNotFoundError(f"{path} has no weights: none of {', '.join(looked_for)}. It contains {holds}.")
    if tf.io.gfile.exists(path):
        if path.endswith(".zip"):
            raise FileNotFoundError(f"{path} is a zip file: unpack it and give the directory.")
        raise FileNotFoundError(
            f"{path} is not a known kind of weight file: a TensorFlow checkpoint has "
            f"{posixpath.basename(path)}.index and .data files, others end in .safetensors or .bin."
        )
    if advice := released_models.hint(path):
        raise FileNotFoundError(f"{path} does not exist.{advice}")
    raise FileNotFoundError(
        f"{path}: no weights found: it is no directory, no weight file, and no checkpoint "
        f"({find.bundle_prefix(path)}.index does not exist). For a checkpoint give the directory or the prefix without "
        ".index or .data, e.g. uncased_L-12_H-768_A-12/bert_model.ckpt."
    )


def open_weights(path: str) -> Weights:
    """Opens the weights at `path`; reads only names and shapes.

    Raises:
      FileNotFoundError: see `find_weights`. ValueError: damaged, or not a BERT.
    """
    format, file = find_weights(path)
    return format.open(file)
