"""Each script with a wrong value for each of its flags: one line that names flag or value, and nothing half-written.

The values follow from a flag's kind and name, so that flags to come are tried as well.
"""

import json
import os
import sys

import pytest
from helpers import warm
from helpers.paths import ROOT
from helpers.script_cases import arguments_of
from helpers.script_worlds import contents, write_world
from helpers.slow import slow
from helpers.small_data import WORLDS

SCRIPTS = (*WORLDS, "run_domain", "run_pretraining", "create_pretraining_data", "create_vocab", "convert_checkpoint",
           "export_saved_model", "extract_features", "run_classifier_with_tfhub", "serve_client")  # fmt: skip
BY_KIND = {
    "IntegerParser": ("-7", "x", "1.5"),
    "FloatParser": ("-7", "nan", "inf", "x"),
    "BooleanParser": ("maybe",),
    "EnumParser": ("nosuch",),
}
# What is read, and what is written; "" is what `--flag=$(a command that fails)` gives.
READ = {
    "bert_config_file", "bert_hub_module_handle", "data_dir", "dev_file", "eval_input_file", "from",
    "generator_config_file", "heldout_file", "init_checkpoint", "input_file", "model_dir", "other_text", "predict_file",
    "teacher", "test_file", "train_file", "vocab_file",
}  # fmt: skip
WRITTEN = {"output_dir", "output_file", "export_dir", "to", "report_file", "feature_cache_dir", "scratch_dir"}
# Flags that take any value of their kind, with the reason.
ANY = {
    "seed": "-7", "random_seed": "-7",
    "word_column": "-7", "tag_column": "-7",  # from the right
    "null_score_diff_threshold": "-7", "comment_prefix": "", "language": "",
    # Commands pass on variables that are set on Google's cloud only.
    "tpu_name": "", "tpu_zone": "", "gcp_project": "", "master": "",
}  # fmt: skip

_LIST_FLAGS = """
import importlib, json, sys
from absl import flags
sys.path.insert(0, sys.argv[2])
importlib.import_module(sys.argv[1])
found = {}
for module, some in flags.FLAGS.flags_by_module_dict().items():
    if not module.startswith(("absl", "tensorflow")):
        found |= {flag.name: type(flag.parser).__name__ for flag in some}
print(json.dumps(found))
"""


def flags_of(script) -> dict[str, str]:
    """Name -> class of the parser of the flags that are ours."""
    command = [sys.executable, "-c", _LIST_FLAGS, script, str(ROOT)]
    return json.loads(warm.run(command, capture_output=True, text=True, check=True).stdout)


def values_of(flag, kind, folder) -> list[str]:
    """Wrong values of a flag."""
    if flag in READ:
        return [f"{folder}/missing", "", f"{folder}/garbage", f"{folder}/empty"]
    if flag in WRITTEN:
        return ["", f"{folder}/garbage/x"]
    return [value for value in BY_KIND.get(kind, ("",)) if ANY.get(flag) != value]


@pytest.mark.parametrize("script", ["create_vocab", *slow(*(script for script in SCRIPTS if script != "create_vocab"))])
def test_a_wrong_value_is_one_line(script, tmp_path):
    world, wrong, count = write_world(script, tmp_path), [], 0
    before = contents(tmp_path)
    for flag, kind in flags_of(script).items():
        for value in values_of(flag, kind, tmp_path):
            count += 1
            command = [sys.executable, str(ROOT / f"{script}.py"), *arguments_of({**world, flag: value})]
            result = warm.run(command, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"})
            last = result.stderr.strip().split("\n")[-1]
            new = contents(tmp_path) - before
            named = f"--{flag}" in last or (value and value in last)
            if result.returncode == 0 or "Traceback" in result.stderr or not named or new:
                wrong.append(
                    (flag, value, result.returncode, "Traceback" in result.stderr, sorted(new)[:3], last[:300])
                )
            for path in sorted(new, reverse=True):
                path = tmp_path / path
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert not wrong, "\n".join(map(str, [len(wrong), *wrong]))
    assert count >= 20, "the script's flags were not found"
