#!/usr/bin/env bash
# Guess: a SavedModel that TensorFlow loads and answers rightly with can be converted to LiteRT.
# Seen 2026-11-28, tensorflow 2.20.0, keras 3.15.1 (a Dense layer of 64 x 64, a tf.function around the model):
#   the SavedModel, its variables held as Keras's (`module.variables_ = model.variables`)   equal to the model
#   LiteRT's file of this SavedModel                                    3,476 bytes, every answer NaN or at random
#   LiteRT's file of the function, with the same module                 3,476 bytes, the same
#   the same with `[variable.value for variable in model.variables]`    19,256 bytes, error 7e-7
# The converter looks for tf.Variable objects in what it is given; Keras 3 variables are not of this class, so the
# weights stay out of the file, without an error or a warning. Look at the size of the file, or give the converter the
# variables' `value`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.20.0 keras==3.15.1 setuptools==81.0.0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES='' "$folder/venv/bin/python" 2> errors.txt - <<'PYTHON' || { cat errors.txt; exit 1; }
import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
inputs = keras.Input((None, 64))
model = keras.Model(inputs, keras.layers.Dense(64)(inputs))
x = np.random.default_rng(0).normal(size=(1, 3, 64)).astype(np.float32)
right = np.array(model(x))
function = tf.function(lambda x: {"y": model(x)}, input_signature=[tf.TensorSpec([None, None, 64], tf.float32)])
of_keras, of_tensorflow = tf.Module(), tf.Module()
of_keras.held = model.variables
of_keras.function = function
of_tensorflow.held = [variable.value for variable in model.variables]
tf.saved_model.save(of_keras, "saved", signatures=function)


def error_of(converter) -> tuple[int, float]:
    """The size of the file in bytes, and how far its answer is from the model's."""
    content = converter.convert()
    runner = tf.lite.Interpreter(model_content=content).get_signature_runner()
    return len(content), float(np.abs(runner(x=x)["y"] - right).max())


of_saved_model = np.abs(tf.saved_model.load("saved").signatures["serving_default"](x=tf.constant(x))["y"] - right).max()
print("SavedModel, loaded by TensorFlow: error", of_saved_model)
concrete = [function.get_concrete_function()]
lite = tf.lite.TFLiteConverter
found = {
    "LiteRT of the SavedModel": error_of(lite.from_saved_model("saved")),
    "LiteRT of the function, Keras's variables": error_of(lite.from_concrete_functions(concrete, of_keras)),
    "LiteRT of the function, their values": error_of(lite.from_concrete_functions(concrete, of_tensorflow)),
}
for name, (size, error) in found.items():
    print(f"{name}: {size} bytes, error {error:.1e}")
lost, lost_too, kept = ((size < weight_bytes, error) for (size, error) in found.values() for weight_bytes in [64 * 64 * 4])
sys.exit(0 if of_saved_model < 1e-5 and lost[0] and lost_too[0] and not kept[0] and kept[1] < 1e-5 else "the behaviour has changed")
PYTHON
