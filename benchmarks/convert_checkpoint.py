"""Time and memory of a conversion of a large model, from each format to each.

    python benchmarks/convert_checkpoint.py                      # BERT-Large, 1.3 GB of random weights
    python benchmarks/convert_checkpoint.py --model=albert-xxlarge

Each conversion is a separate process, started as a user starts it. Memory is the peak of the resident set, minus that
of the program before it opens any weights (TensorFlow and Keras), as a multiple of the size of the weights.
"""

import os
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags

FLAGS = flags.FLAGS
# Family and sizes of its configuration.
MODELS = {
    "bert-mini": ("bert", {"vocab_size": 30522, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}),
    "bert-large": ("bert", {"vocab_size": 30522, "hidden_size": 1024,
                            "num_hidden_layers": 24, "num_attention_heads": 16}),
    "electra-large": ("electra", {"vocab_size": 30522, "embedding_size": 1024, "hidden_size": 1024,
                                  "num_hidden_layers": 24, "num_attention_heads": 16}),
    "albert-xxlarge": ("albert", {"vocab_size": 30000, "embedding_size": 128, "hidden_size": 4096,
                                  "num_hidden_layers": 12, "num_attention_heads": 64}),
}  # fmt: skip
flags.DEFINE_enum("model", "bert-large", list(MODELS), "Family and size.")
flags.DEFINE_string("directory", None, "Directory for the files (some 7 GB for BERT-Large); if unset, a temporary one.")

# Runs in the converting process. Clearing the peak needs Linux.
PROGRAM = """
import sys, time
from bert_tf.conversion import convert  # load everything that a conversion needs before measuring memory

def kilobytes(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field))

before = kilobytes("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
start = time.perf_counter()
convert.convert(sys.argv[1], sys.argv[2], sys.argv[3])
print(time.perf_counter() - start, kilobytes("VmHWM") - before)
"""


def write_source(directory: str) -> tuple[int, list[str]]:
    """Writes a tf1 directory with random weights; returns their size in bytes, and the formats of the family."""
    import numpy as np

    from bert_tf.families import family_named
    from bert_tf.families.family import expected_shapes
    from bert_tf.store.head_config import NO_HEAD
    from bert_tf.store.open import TF1
    from bert_tf.store.save import write_weights
    from bert_tf.store.tensor_files import Weights

    name, sizes = MODELS[FLAGS.model]
    family = family_named(name)
    config = family.config_class(**sizes, intermediate_size=4 * sizes["hidden_size"], type_vocab_size=2)
    generator = np.random.default_rng(0)
    shapes = expected_shapes(config)
    if "generator" in family.parts:  # a discriminator has no masked-LM head
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith("cls/")}

    def draw(name: str) -> np.ndarray:
        return generator.standard_normal(shapes[name], np.float32) * np.float32(0.02)

    os.makedirs(directory)
    weights = Weights("random", "tf1", shapes, dict.fromkeys(shapes, ""), draw)
    write_weights(os.path.join(directory, "bert_model.ckpt"), TF1, weights, config, NO_HEAD)
    return sum(4 * int(np.prod(shape)) for shape in shapes.values()), list(family.formats)


def main(_):
    with tempfile.TemporaryDirectory(dir=FLAGS.directory) as folder:
        source = os.path.join(folder, "source")
        size, formats = write_source(source)
        print(f"{size / 1e9:.2f} GB of weights; the processes run one after the other")
        print(f"{'from':>14} {'to':>14} {'convert (s)':>12} {'in all (s)':>11} {'peak / weights':>15}")
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        pairs = [("source", format) for format in formats]
        pairs += [(format, "tf1_back") for format in formats if format != "tf1"]
        for origin, target in pairs:
            format = target.removesuffix("_back")
            command = [sys.executable, "-c", PROGRAM, os.path.join(folder, origin)]
            command += [os.path.join(folder, target if "back" not in target else f"{target}_{origin}"), format]
            start = time.perf_counter()
            result = subprocess.run(command, cwd=root, capture_output=True, text=True)
            seconds = time.perf_counter() - start
            if result.returncode:
                raise RuntimeError(result.stderr[-3000:])
            convert_seconds, kilobytes = map(float, result.stdout.split()[-2:])
            label = "tf1" if origin == "source" else origin
            print(f"{label:>14} {format:>14} {convert_seconds:12.1f} {seconds:11.1f} {kilobytes * 1024 / size:15.2f}")


if __name__ == "__main__":
    app.run(main)
