"""Runs of run_pretraining.py on tiny files."""

import os
import sys

import numpy as np
import tensorflow as tf

from helpers import warm
from helpers.paths import ROOT

STEPS = 60


def command(data, output_dir, **flags):
    flags = {
        "input_file": f"{data}/train-*.tfrecord",
        "bert_config_file": f"{data}/bert_config.json",
        "output_dir": output_dir,
        "max_seq_length": 16,
        "max_predictions_per_seq": 3,
        "do_train": True,
        "train_batch_size": 8,
        "num_train_steps": STEPS,
        "num_warmup_steps": 10,
        "learning_rate": 1e-3,
        "save_checkpoints_steps": 10,
        "log_every_steps": 10,
        "deterministic": True,
        **flags,
    }
    return [sys.executable, str(ROOT / "run_pretraining.py")] + [f"--{name}={value}" for name, value in flags.items()]


def run(arguments, **options):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
    return warm.run(arguments, env=environment, capture_output=True, text=True, **options)


def values(output_dir, step=STEPS):
    reader = tf.train.load_checkpoint(f"{output_dir}/model.ckpt-{step}")
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_bit_identical(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)


CASES = """
import json, sys
from absl import flags, logging
sys.argv = sys.argv[:1]
sys.path.insert(0, {root!r})
import run_pretraining
for name, changes in json.loads(sys.stdin.read()):
    flags.FLAGS.unparse_flags()
    flags.FLAGS(["x"] + changes)
    try:
        run_pretraining.main([])
        outcome = "no error"
    except Exception as error:
        outcome = f"{{type(error).__name__}}: {{error}}"
    print(json.dumps([name, outcome]))
    for key in changes:
        flags.FLAGS[key[2:].split("=")[0]].unparse()
"""
