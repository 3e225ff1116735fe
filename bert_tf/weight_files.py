"""Finds weights of any of the four formats where a user points, and opens them.

    weights = open_weights("uncased_L-12_H-768_A-12")      # Google's TF1 zip, unpacked
    weights = open_weights("bert-base-uncased")            # a Hugging Face directory
    weights = open_weights("hub/bert_en_uncased/4")        # a TensorFlow Hub SavedModel

Everything that takes weights comes through here: --init_checkpoint of the scripts, `from_pretrained`, the converter.
"""

import posixpath

import tensorflow as tf
from absl import logging

from bert_tf import bundles, huggingface, model_garden, safetensors_files
from bert_tf.bundles import DATA_SUFFIX, INDEX_SUFFIX
from bert_tf.weights import Weights, some

# Our own format: safetensors under the original's names.
BERT_TF_FILE = "bert_model.safetensors"
BUNDLE = "bert_model.ckpt"
# TF1 Hub modules keep the encoder under this scope.
_HUB_SCOPE = "module/"


def latest_checkpoint(output_dir: str) -> str | None:
    """Prefix of the newest complete checkpoint of `output_dir`, or None.

    That is the one which the state file names. Should the file or what it names be gone, the newest `model.ckpt-<step>`
    that is there counts, with a warning: a run never starts over beside checkpoints of its own.
    """
    newest = tf.train.latest_checkpoint(output_dir)
    if newest:
        return newest
    steps = []
    for path in tf.io.gfile.glob(posixpath.join(output_dir, "model.ckpt-*.index")):
        prefix = path.removesuffix(INDEX_SUFFIX)
        step = prefix.rsplit("-", 1)[1]
        if step.isdigit() and tf.io.gfile.exists(prefix + DATA_SUFFIX):
            steps.append((int(step), prefix))
    if not steps:
        return None
    logging.warning(
        "The newest checkpoint that %s names is gone; %s is the newest there is.", output_dir, max(steps)[1]
    )
    return max(steps)[1]


def find_weights(path: str) -> tuple[str, str]:
    """What lies at a path that a user gave.

    Args:
      path: a checkpoint prefix, one of its files, a weight file, or a directory of any format.

    Returns:
      (kind, file): "bundle" and the prefix of a TensorFlow checkpoint, or "huggingface" or "bert_tf" and the file.

    Raises:
      FileNotFoundError: nothing there that is known; the message says what was looked for.
    """
    if tf.io.gfile.isdir(path):
        return _find_in_directory(path)
    prefix = path.removesuffix(INDEX_SUFFIX)
    if DATA_SUFFIX[:6] in posixpath.basename(prefix):
        prefix = prefix[: prefix.rindex(DATA_SUFFIX[:6])]
    if tf.io.gfile.exists(prefix + INDEX_SUFFIX):
        return "bundle", prefix
    if posixpath.basename(path) == BERT_TF_FILE and tf.io.gfile.exists(path):
        return "bert_tf", path
    if path.endswith((".safetensors", ".bin", ".pt", ".pth", ".index.json")) and tf.io.gfile.exists(path):
        kind = "bert_tf" if path.endswith(".safetensors") and _is_bert_tf(path) else "huggingface"
        return kind, path
    if path.endswith(".zip") and tf.io.gfile.exists(path):
        raise FileNotFoundError(f"{path} is a zip file: unpack it and give the directory.")
    if tf.io.gfile.exists(path):
        raise FileNotFoundError(
            f"{path} is no weight file that is known: a TensorFlow checkpoint has {posixpath.basename(path)}.index and "
            ".data files, others end in .safetensors or .bin."
        )
    raise FileNotFoundError(
        f"{path}: no weights there: no directory, no weight file, and no checkpoint ({prefix}.index does not exist). "
        "Of a checkpoint give the directory or the prefix without .index or .data, e.g. "
        "uncased_L-12_H-768_A-12/bert_model.ckpt."
    )


def _find_in_directory(path: str) -> tuple[str, str]:
    def there(name: str) -> bool:
        return tf.io.gfile.exists(posixpath.join(path, name))

    if there(BERT_TF_FILE):
        return "bert_tf", posixpath.join(path, BERT_TF_FILE)
    for name in huggingface.WEIGHT_FILES:
        if there(name):
            return "huggingface", posixpath.join(path, name)
    if there("variables/variables.index"):
        return "bundle", posixpath.join(path, "variables", "variables")
    newest = latest_checkpoint(path)
    if newest:
        return "bundle", newest
    indices = sorted(tf.io.gfile.glob(posixpath.join(path, "*" + INDEX_SUFFIX)))
    if there(BUNDLE + INDEX_SUFFIX) or len(indices) == 1:
        prefix = posixpath.join(path, BUNDLE) if there(BUNDLE + INDEX_SUFFIX) else indices[0][: -len(INDEX_SUFFIX)]
        return "bundle", prefix
    holds = some(sorted(tf.io.gfile.listdir(path))) or "nothing"
    if indices:
        raise FileNotFoundError(f"{path} has several checkpoints: give the prefix of one of them. It holds {holds}.")
    raise FileNotFoundError(
        f"{path} has no weights: none of {BERT_TF_FILE}, {', '.join(huggingface.WEIGHT_FILES)}, "
        f"variables/variables.index, {BUNDLE}.index. It holds {holds}."
    )


def _is_bert_tf(path: str) -> bool:
    return safetensors_files.open_safetensors(path)[1].get("format") == "bert_tf"


def open_weights(path: str) -> Weights:
    """Opens the weights that lie at `path`; nothing but names and shapes is read yet.

    Raises:
      FileNotFoundError: see `find_weights`. ValueError: damaged, or no BERT.
    """
    kind, file = find_weights(path)
    if kind == "huggingface":
        return huggingface.open_weights(file)
    if kind == "bert_tf":
        return _open_bert_tf(file)
    reader = bundles.open_bundle(file)
    if reader.has_tensor(bundles.OBJECT_GRAPH):
        return model_garden.open_weights(file)
    return _open_tf1(file, reader)


def _open_bert_tf(path: str) -> Weights:
    shapes, _, read = safetensors_files.open_safetensors(path)
    return Weights(path, "bert_tf", shapes, {name: name for name in shapes}, read)


def _open_tf1(prefix: str, reader) -> Weights:
    shapes = reader.get_variable_to_shape_map()
    origins = {name.removeprefix(_HUB_SCOPE): name for name in sorted(shapes)}
    return Weights(
        prefix,
        "tf1",
        {name: tuple(shapes[origin]) for name, origin in origins.items()},
        origins,
        lambda name: bundles.read_tensor(reader, prefix, origins[name]),
    )


def save_bert_tf(path: str, weights: Weights) -> dict[str, str]:
    """Writes all tensors to a safetensors file under the original's names; returns name -> name."""
    safetensors_files.write_safetensors(path, weights, {"format": "bert_tf"})
    return {name: name for name in weights}
