"""Runs of run_pretraining.py on tiny files."""

import json
import pathlib

import numpy as np
import tensorflow as tf

from helpers import warm
from helpers.script_cases import command_of
from helpers.tiny import ONE_LAYER, write_pretraining_records

STEPS = 60


def write_inputs(folder: pathlib.Path) -> pathlib.Path:
    (folder / "bert_config.json").write_text(json.dumps(ONE_LAYER))
    write_pretraining_records(folder / "train-0.tfrecord", 40)
    return folder


def flags_of(data, output_dir, **flags) -> dict:
    given = {"input_file": f"{data}/train-*.tfrecord", "bert_config_file": f"{data}/bert_config.json"}
    given |= {"output_dir": output_dir, "max_seq_length": 16, "max_predictions_per_seq": 3, "do_train": True}
    given |= {"num_train_steps": STEPS, "num_warmup_steps": min(10, flags.get("num_train_steps", STEPS))}
    given |= {"train_batch_size": 8, "learning_rate": 1e-3, "save_checkpoints_steps": 10, "log_every_steps": 10}
    return {**given, "deterministic": True, **flags}


def command(data, output_dir, **flags) -> list[str]:
    return command_of("run_pretraining", flags_of(data, output_dir, **flags))


def run(arguments, **options) -> str:
    result = warm.run(arguments, capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr


def values(output_dir, step=STEPS):
    reader = tf.train.load_checkpoint(f"{output_dir}/model.ckpt-{step}")
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


assert_bit_identical = np.testing.assert_equal  # of dictionaries of arrays
