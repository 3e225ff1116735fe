"""Each of the original's 102 flags: its type and its default, as --help of our scripts shows them."""

import json
import subprocess
import sys

import pytest
from helpers.paths import ROOT

TPU = {
    "use_tpu": False, "tpu_name": None, "tpu_zone": None, "gcp_project": None, "master": None, "num_tpu_cores": 8,
}  # fmt: skip
MODEL = {"bert_config_file": None, "vocab_file": None, "init_checkpoint": None, "do_lower_case": True}
SCHEDULE = {
    "train_batch_size": 32, "predict_batch_size": 8, "learning_rate": 5e-5, "num_train_epochs": 3.0,
    "warmup_proportion": 0.1, "save_checkpoints_steps": 1000, "iterations_per_loop": 1000,
}  # fmt: skip
# Their types follow from the defaults; those without a default are strings.
FLAGS = {
    "create_pretraining_data": {
        "input_file": None, "output_file": None, "vocab_file": None, "do_lower_case": True, "do_whole_word_mask": False,
        "max_seq_length": 128, "max_predictions_per_seq": 20, "random_seed": 12345, "dupe_factor": 10,
        "masked_lm_prob": 0.15, "short_seq_prob": 0.1,
    },
    "run_pretraining": {
        **TPU, "bert_config_file": None, "input_file": None, "output_dir": None, "init_checkpoint": None,
        "max_seq_length": 128, "max_predictions_per_seq": 20, "do_train": False, "do_eval": False,
        "train_batch_size": 32, "eval_batch_size": 8, "learning_rate": 5e-5, "num_train_steps": 100000,
        "num_warmup_steps": 10000, "save_checkpoints_steps": 1000, "iterations_per_loop": 1000, "max_eval_steps": 100,
    },
    "run_classifier": {
        **TPU, **MODEL, **SCHEDULE, "data_dir": None, "task_name": None, "output_dir": None, "max_seq_length": 128,
        "do_train": False, "do_eval": False, "do_predict": False, "eval_batch_size": 8,
    },
    "run_classifier_with_tfhub": {"bert_hub_module_handle": None},
    "run_squad": {
        **TPU, **MODEL, **SCHEDULE, "output_dir": None, "train_file": None, "predict_file": None, "max_seq_length": 384,
        "doc_stride": 128, "max_query_length": 64, "do_train": False, "do_predict": False, "n_best_size": 20,
        "max_answer_length": 30, "verbose_logging": False, "version_2_with_negative": False,
        "null_score_diff_threshold": 0.0,
    },
    "extract_features": {
        **MODEL, "input_file": None, "output_file": None, "layers": "-1,-2,-3,-4", "max_seq_length": 128,
        "batch_size": 32, "use_tpu": False, "master": None, "num_tpu_cores": 8, "use_one_hot_embeddings": False,
    },
}  # fmt: skip

PROGRAM = """
import importlib, json, sys
from absl import flags
sys.path.insert(0, sys.argv[2])
importlib.import_module(sys.argv[1])
assert "tensorflow" not in sys.modules
print(json.dumps({name: [flag.flag_type(), flag.default] for name, flag in flags.FLAGS._flags().items()}))
"""
TYPES = {bool: "bool", int: "int", float: "float", str: "string", type(None): "string"}


def test_there_are_102():
    assert sum(map(len, FLAGS.values())) == 102


@pytest.mark.parametrize("script", FLAGS)
def test_flags_types_and_defaults(script):
    command = [sys.executable, "-c", PROGRAM, script, str(ROOT)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    expected = FLAGS[script] | (FLAGS["run_classifier"] if script == "run_classifier_with_tfhub" else {})
    for name, default in expected.items():
        kind, value = found[name]
        assert (kind, value) == (TYPES[type(default)], default), name
