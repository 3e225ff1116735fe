"""The flags of all scripts: their names and defaults, and that each is declared once, with the default that holds."""

import importlib
import inspect
import json
import subprocess
import sys

import pytest
from helpers.paths import ROOT, TESTS

from bert_tf.families import config_of_size
from bert_tf.families.recipe import OptimizerSettings, Recipe
from bert_tf.system.declare import declared_in

# {script: {flag: [type, default, choices, bounds]}} of all scripts; changed only with a message for users of the flag.
GOLDEN = json.loads((TESTS / "golden" / "flags.json").read_text())
TPU = {
    "use_tpu": False, "tpu_name": None, "tpu_zone": None, "gcp_project": None, "master": None, "num_tpu_cores": 8,
}  # fmt: skip
MODEL = {"bert_config_file": None, "vocab_file": None, "init_checkpoint": None, "do_lower_case": True}
SCHEDULE = {
    "train_batch_size": 32, "predict_batch_size": 8, "learning_rate": 5e-5, "num_train_epochs": 3.0,
    "warmup_proportion": 0.1, "save_checkpoints_steps": 1000, "iterations_per_loop": 1000,
}  # fmt: skip
# The original's flags. Their types follow from the defaults; those without a default are strings.
ORIGINAL = {
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
TYPES = {bool: "bool", int: "int", float: "float", str: "string", type(None): "string"}
# Functions whose arguments are flags of a script.
FUNCTIONS = {
    "conversion.convert.prepare": "convert_checkpoint",
    "serving.export.export_saved_model": "export_saved_model",
    "text.learn_vocabulary.learn_vocabulary": "create_vocab",
    "text.learn_vocabulary.learn_byte_bpe": "create_vocab",
    "text.learn_vocabulary.learn_sentence_piece": "create_vocab",
}

# Describes the flags of scripts, without parsing any but those that must be given.
PROGRAM = """
import importlib, json, sys
from absl import app, flags
from bert_tf.system import declare, script

app.define_help_flags()
own, defined, kinds, found = set(flags.FLAGS), declare.define_flags, [], {}

def define_flags(*classes, **changes):
    kinds.extend(classes)
    defined(*classes, **changes)

declare.define_flags, passes = define_flags, lambda settings: None
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    kinds.clear()
    sys.modules.pop("run_classifier", None)
    importlib.import_module(name)
    names = [flag for flag in flags.FLAGS if flag not in own]
    made = {flag: getattr(flags.FLAGS[flag], "declared", None) for flag in names}
    needed = declare.required_flags(flags.FLAGS)
    flags.FLAGS([name, *(f"--{flag}={[*made[flag].choices, 'x'][0]}" for flag in needed)])
    holding = {}
    for kind in kinds:
        holding |= {k.rstrip("_"): value for k, value in vars(declare.settings_of(kind, flags.FLAGS, passes)).items()}
    found[name] = {
        flag: {
            "golden": [flags.FLAGS[flag].flag_type(), flags.FLAGS[flag].default,
                       getattr(flags.FLAGS[flag].parser, "enum_values", None), one.bounds if one else ""],
            "declared": one and {"default": None if flag in needed else one.default, "help": one.help,
                                 "heading": one.heading, "unset": one.unset, "is_required": flag in needed},
            "holds": holding.get(flag),
        }
        for flag, one in made.items()
    } | {"help": declare.help_text(flags.FLAGS)}
    for flag in names:
        delattr(flags.FLAGS, flag)
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def flags():
    """{script: {flag: what PROGRAM says of it, "help": the groups of --help}}."""
    command = [sys.executable, "-c", PROGRAM, str(ROOT), *GOLDEN]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def of(flags: dict, script: str) -> dict:
    return {name: flag for name, flag in flags[script].items() if name != "help"}


@pytest.mark.parametrize("script", ORIGINAL)
def test_those_of_the_original(flags, script):
    """Their types and defaults are the original's, and --help begins with them."""
    expected = ORIGINAL[script] | (ORIGINAL["run_classifier"] if script == "run_classifier_with_tfhub" else {})
    for name, default in expected.items():
        flag = flags[script][name]
        assert flag["golden"][:2] == [TYPES[type(default)], default], name
        assert flag["declared"]["heading"] == "As in the original", name
    assert flags[script]["help"].startswith("\nAs in the original:\n  --")


@pytest.mark.parametrize("script", GOLDEN)
def test_names_types_defaults_choices_and_bounds_stay(flags, script):
    assert {path.stem for path in ROOT.glob("*.py")} == set(GOLDEN) and sum(map(len, ORIGINAL.values())) == 102
    assert {name: flag["golden"] for name, flag in of(flags, script).items()} == GOLDEN[script]


@pytest.mark.parametrize("script", GOLDEN)
def test_every_flag_is_a_field_and_its_default_holds(flags, script):
    for name, flag in of(flags, script).items():
        declared, shown = flag["declared"], flag["golden"][1]
        assert declared, f"--{name} is not made by define_flags"
        assert declared["help"].endswith((".", ".)")), name
        shown_in_help = f"  --{name}" in flags[script]["help"] or f"  --[no]{name}" in flags[script]["help"]
        assert shown_in_help != declared["help"].startswith("Gone, "), name
        if declared["is_required"]:
            continue
        if declared["unset"]:
            # Of records, what holds is known where the settings are.
            assert flag["holds"] in (None, declared["default"]) and "If unset, " in declared["help"], name
            assert named(declared["default"]) in declared["help"].partition("If unset, ")[2], name
        else:
            assert flag["holds"] == (declared["default"] if shown is None else shown), name


def named(value) -> str:
    """A value as texts name it: 5e-05 is 5e-5, False is off or false."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0e}".replace("e-0", "e-") if 0 < value < 0.001 else f"{value:g}"
    return str(value)


@pytest.mark.parametrize(
    "size", ["electra_small", "electra_large", "roberta_base", "albert_base_v2", "distilbert_base"]
)
def test_what_families_do_otherwise_is_in_the_help(size):
    recipe, usual = config_of_size(size).recipe, Recipe()
    for name, declared in declared_in(OptimizerSettings).items():
        value = getattr(recipe, name)
        assert value == getattr(usual, name) or named(value) in declared.help.partition("If unset, ")[2], name


@pytest.mark.parametrize("path", FUNCTIONS)
def test_functions_have_the_defaults_of_the_flags(path):
    module, function = path.rsplit(".", 1)
    parameters = inspect.signature(getattr(importlib.import_module(f"bert_tf.{module}"), function)).parameters
    declared = GOLDEN[FUNCTIONS[path]]
    shared = [one for name, one in parameters.items() if name in declared and one.default is not one.empty]
    assert len(shared) > 2
    for one in shared:
        assert one.default == declared[one.name][1] or declared[one.name][1] is None, one.name
