"""The flags of all scripts, each declared once with the default that holds, and runs that end in one line naming one.

Before TensorFlow is imported: flags, and files and folders that are not there. Readers of files name what is wrong in
them (tests of their folders), and a run what does not fit a model or its output folder.
"""

import importlib
import inspect
import json
import subprocess
import sys

import pytest
from helpers.basics import GOLDEN, ROOT
from helpers.early_mistakes import CONFIG, CSV, TOKENS, check_cases, checkpoint, model, record

from bert_tf.data.record_files import MASKED as MASKED_FEATURES
from bert_tf.families import FAMILIES, config_of_size
from bert_tf.families.recipe import OptimizerSettings, Recipe
from bert_tf.system import example_bytes
from bert_tf.system.declare import declared_in

# {script: {flag: [type, default, choices, bounds]}} of all scripts; changed only with a message for users of the flag.
FLAGS = json.loads((GOLDEN / "flags.json").read_text())
# {script: {flag: [type, default]}} of the original's scripts.
ORIGINAL = json.loads((GOLDEN / "original_flags.json").read_text())
# Functions whose arguments are flags of a script.
FUNCTIONS = {
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
    return defined(*classes, **changes)

declare.define_flags, passes = define_flags, lambda settings: None
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    kinds.clear()
    sys.modules.pop("bert_tf.cli.run_classifier", None)
    importlib.import_module(name)
    names = [flag for flag in flags.FLAGS if flag not in own]
    made = {flag: getattr(flags.FLAGS[flag], "declared", None) for flag in names}
    needed = declare.required_flags(flags.FLAGS)
    flags.FLAGS([name, *(f"--{flag}={[*made[flag].choices, 'x'][0]}" for flag in needed)])
    holding = {}
    for kind in kinds:
        holding |= {k.rstrip("_"): value for k, value in vars(declare.settings_of(kind, flags.FLAGS, passes)).items()}
    found[name] = {"help": declare.help_text(flags.FLAGS), "flags": {
        flag: {
            "golden": [flags.FLAGS[flag].flag_type(), flags.FLAGS[flag].default,
                       getattr(flags.FLAGS[flag].parser, "enum_values", None), one.bounds if one else ""],
            "declared": one and {"default": None if flag in needed else one.default, "help": one.help,
                                 "heading": one.heading, "unset": one.unset, "is_required": flag in needed},
            "holds": holding.get(flag),
        }
        for flag, one in made.items()
    }}
    for flag in names:
        delattr(flags.FLAGS, flag)
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def flags():
    """{script: {"flags": {flag: what PROGRAM says of it}, "help": the groups of --help}}."""
    command = [sys.executable, "-c", PROGRAM, str(ROOT), *FLAGS]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("script", ORIGINAL)
def test_those_of_the_original(flags, script):
    for name, expected in ORIGINAL[script].items():
        flag = flags[script]["flags"][name]
        assert flag["golden"][:2] == expected, name
        assert flag["declared"]["heading"] == "As in the original", name
    assert flags[script]["help"].startswith("\nAs in the original:\n  --")


@pytest.mark.parametrize("script", FLAGS)
def test_names_types_defaults_choices_and_bounds_stay(flags, script):
    assert {path.stem for path in ROOT.glob("*.py")} == set(FLAGS) and sum(map(len, ORIGINAL.values())) == 127
    assert {name: flag["golden"] for name, flag in flags[script]["flags"].items()} == FLAGS[script]


@pytest.mark.parametrize("script", FLAGS)
def test_every_flag_is_a_field_and_its_default_holds(flags, script):
    for name, flag in flags[script]["flags"].items():
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


@pytest.mark.parametrize("size", [size for family in FAMILIES for size in family.config_class.sizes])
def test_what_families_do_otherwise_is_in_the_help(size):
    recipe, usual = config_of_size(size).recipe, Recipe()
    for name, declared in declared_in(OptimizerSettings).items():
        value = getattr(recipe, name)
        assert value == getattr(usual, name) or named(value) in declared.help.partition("If unset, ")[2], name


@pytest.mark.parametrize("path", FUNCTIONS)
def test_functions_have_the_defaults_of_the_flags(path):
    module, function = path.rsplit(".", 1)
    parameters = inspect.signature(getattr(importlib.import_module(f"bert_tf.{module}"), function)).parameters
    declared = FLAGS[FUNCTIONS[path]]
    shared = [one for name, one in parameters.items() if name in declared and one.default is not one.empty]
    assert len(shared) > 2
    for one in shared:
        assert one.default == declared[one.name][1] or declared[one.name][1] is None, one.name


TEXTS = {"train.csv": CSV}
USE = {"text_a": "text", "task_name": "custom", "init_checkpoint": "whole", "max_seq_length": 9}
PREDICT = {"test_file": "train.csv", "do_predict": True, **USE}
EVALUATE = {"dev_file": "train.csv", "label": "label", "do_eval": True, **USE}
TRAIN = {"train_file": "train.csv", "label": "label", "do_train": True, "train_batch_size": 2, **USE}
KIND = {"architecture": "BertForSequenceClassification"}
CLASSIFIER = KIND | {"labels": ["up", "down"]}
TAGGER = {"architecture": "BertForTokenClassification", "labels": ["up", "down"]}
FINISHED = {
    **TEXTS, **checkpoint("out", "model.ckpt-9"), "v.txt": "\n".join([*TOKENS, *map(str, range(194))]),
    "out/head_config.json": json.dumps(
        CLASSIFIER | {"labels": ["down", "up"], "problem_type": "single_label_classification"}
    ),
}  # fmt: skip
FURTHER = TRAIN | {"init_checkpoint": None, "bert_config_file": "out/bert_config.json", "vocab_file": "v.txt"}
RUN = {"finished_step": 9, "task_name": "custom"}
NUMBERS = {
    name: example_bytes.int64_feature(name.encode(), b"\1") for name in ("input_ids", "input_mask", "segment_ids")
}
MASKED = record(example_bytes.example([
    *(example_bytes.int64_feature(name.encode(), b"\0") for name in MASKED_FEATURES if name != "masked_lm_weights"),
    example_bytes.float_feature(b"masked_lm_weights", [1.0]),
]))  # fmt: skip
ROWS = {"a.tfrecord": record(example_bytes.example(NUMBERS.values())), **model()}
PRETRAIN = {"input_file": "a.tfrecord", "do_train": True, "max_seq_length": 1, "init_checkpoint": "whole"}
BEGIN = PRETRAIN | {"init_checkpoint": None, "bert_config_file": "whole/bert_config.json"}
TEXT = {"text.txt": "a\n"}
CREATE = {"input_file": "text.txt", "output_file": "out/a.tfrecord", "vocab_file": "model/vocab.txt"}
CASING = {"whole/tokenizer_config.json": '{"do_lower_case": true}'}
CONVERT = {"from": "whole", "to": "out", "format": "tf1"}
LEARN = {"input_file": "text.txt", "output_file": "v.txt"}

# script -> what it says, the files that are written, and the flags that are given beside or instead of the usual ones.
BEFORE = {
    "run_classifier": [
        ("Which task? Give --task_name", {}, {"do_train": True}),
        *((message, TEXTS | model(), TRAIN | given) for message, given in (
            ("Nothing to do: give one or more of --do_train", {"do_train": None}),
            ("--do_train needs --train_file", {"train_file": None}),
            ("--use_best_model needs results on a dev set: give --dev_file", {"use_best_model": True}),
            ("--eval_every_steps needs results on a dev set: give --dev_file", {"eval_every_steps": 5}),
            ("--search: --learning_rate is also given", {"learning_rate": 1e-3, "search": "learning_rate=1e-5,2e-5"}),
            ("--class_weights is for training", {"class_weights": "balanced", "do_train": None, "do_predict": True}),
            ("--language is for GLUE's tasks, not for --task_name=custom", {"language": "de"}),
            ("--new_head and --init_with_optimizer: the first", {"new_head": True, "init_with_optimizer": True}),
            ("--init_checkpoint=*nowhere: there is no such", {"init_checkpoint": "nowhere"}),
            ("--teacher=*nowhere: there is no such", {"teacher": "nowhere"}),
            ("--output_dir=*: *Not a directory: *train.csv", {"output_dir": "train.csv/deep/er"}),
            ("--output_dir=*whole is the folder of --init_checkpoint: choose another", {"output_dir": "whole"}),
        )),
    ],
    "run_pretraining": [
        ("--input_file: *b.tfrecord is empty", ROWS | {"b.tfrecord": ""}, PRETRAIN | {"input_file": "b.tfrecord"}),
        *((message, ROWS, PRETRAIN | given) for message, given in (
            ("Nothing to do: give --do_train, --do_eval or both", {"do_train": None}),
            ("--eval_input_file: no file matches *", {"eval_input_file": "nowhere"}),
            ("--generator_config_file=*nowhere", {"generator_config_file": "nowhere", "objective": "electra"}),
            ("--mask_rule=roberta and --mask_smoothing=0.7 both say which tokens are predicted: give one",
             {"mask_rule": "roberta", "mask_smoothing": 0.7}),
            ("--nsp is not for --objective=electra", {"objective": "electra", "nsp": True}),
            ("*are 0: nothing is learned from the teacher", {"teacher": "whole", "alpha_ce": 0, "alpha_cos": 0}),
            ("--restrict_ce_to_mask has no effect", {"teacher": "whole", "alpha_ce": 0, "restrict_ce_to_mask": True}),
        )),
    ],
    "convert_checkpoint": [
        ("--report_file: *vocab.txt would overwrite a file that is read", model(),
         CONVERT | {"report_file": "whole/vocab.txt"}),
        ("--with_optimizer: *whole/bert_model.safetensors has no optimizer state (no global_step)", model() | CASING,
         CONVERT | {"with_optimizer": True}),
        ("format=huggingface: *whole/bert_model.safetensors has a classifier of one layer",
         model(3, family="electra") | CASING, CONVERT | {"format": "huggingface"}),
        ("--from: *whole/bert_model.safetensors is a BERT, which has no generator", model(),
         CONVERT | {"part": "generator"}),
        ("--bert_config_file: *c.json does not fit the weights of *whole",
         {**model(), "c.json": json.dumps(CONFIG | {"vocab_size": 9})}, CONVERT | {"bert_config_file": "c.json"}),
    ],
    "create_pretraining_data": [
        ("--input_file: *text.txt is empty", {"text.txt": ""}, CREATE),
        ("--vocab_file=*nowhere", TEXT, CREATE | {"vocab_file": "nowhere"}),
    ],
    "create_vocab": [
        ("--output_file=*whole/vocab.txt is a model's vocabulary", {**TEXT, **model()},
         LEARN | {"output_file": "whole/vocab.txt"}),
    ],
    "export_saved_model": [
        (message, model(), {"model_dir": "whole", "export_dir": "out"} | given) for message, given in (
            ("--dtype is for --format=saved_model, not for onnx", {"format": "onnx", "dtype": "bfloat16"}),
            ("--text_pairs needs an export that takes texts", {"ids_only": True, "text_pairs": True}),
            ("--export_dir=*whole/serving is in the folder of --model_dir, *whole", {"export_dir": "whole/serving"}),
        )
    ],
    "serve_client": [
        ("--input_file=*nowhere", {}, {"model": "m", "input_file": "nowhere"}),
        ("--max_seq_length is for --tokenizer", {}, {"model": "m", "input": "text=a", "max_seq_length": 0}),
        ("*a.jsonl, line 2: expected an object with the same keys as line 1",
         {"a.jsonl": '{"문장": "좋아요"}\n{"글": "좋아요"}\n'.encode("cp949")},
         {"model": "m", "input_file": "a.jsonl", "encoding": "cp949"}),
    ],
}  # fmt: skip
REFUSED = {
    "run_classifier": [
        ("--init_checkpoint: *whole has no weights: none of bert_model", TEXTS | {"whole/config.json": "{}"}, TRAIN),
        *((message, TEXTS | files, PREDICT | given) for message, files, given in (
            ("Nothing to evaluate or predict with: no --init_checkpoint, and none in *out",
             {"out/run.json": '{"task_name": "custom"}'}, {"init_checkpoint": None}),
            ("*c.ckpt lacks 2 of the model's variables",
             {**checkpoint("whole", "c.ckpt"), "v.txt": FINISHED["v.txt"]}, {"vocab_file": "v.txt", "labels": "a,b"}),
        )),
        ("--dev_file: *train.csv, line 2: the label 'up' is not one of 'a', 'b'",
         TEXTS | model(2, CLASSIFIER | {"labels": ["a", "b"]}), EVALUATE),
        *((message, TEXTS | files, TRAIN | given) for message, files, given in (
            ("--max_seq_length=129 is more than the 128 tokens that *whole/bert_config.json allows",
             model(), {"max_seq_length": 129}),
            ("*whole/bert_model.safetensors*position_embeddings: [128, 4] in the checkpoint, [64, 4] in the model",
             model(max_position_embeddings=64), {}),
            ("--vocab_file: *v.txt is not the vocabulary *, *whole/vocab.txt: 2 of its tokens have other ids there, "
             "such as 'a', 5 there and 0 here. Leave --vocab_file out",
             {**model(), "v.txt": "\n".join(["a", *TOKENS[1:5], "[PAD]"])}, {"vocab_file": "v.txt"}),
            ("6 training examples, --train_batch_size=32 and --num_train_epochs=3.0 give less than one step",
             model(), {"train_batch_size": 32}),
            ("--output_dir=*out holds a run of other labels (only there a, b; only here down, up): choose another",
             {**model(), **checkpoint("out", "model.ckpt-1"), "out/head_config.json": json.dumps(
                 KIND | {"labels": ["a", "b"]})}, {}),
            ("--output_dir=*out holds a run of run_ner.py: choose another directory",
             {**model(), "out/run.json": '{"tag_scheme": "iob2"}'}, {}),
            ("--output_dir=*out has files that a run would replace, but is not the directory of one",
             {**model(), "out/eval_results.txt": ""}, {}),
            ("--teacher: *t is a BertForTokenClassification; this task has a BertForSequenceClassification",
             model() | model(2, TAGGER, "t"), {"teacher": "t"}),
            ("The model has no bert_config.json or config.json", model(2, CLASSIFIER, "t"),
             {"teacher": "t", "init_checkpoint": None}),
        )),
        *((message, FINISHED | {"out/run.json": json.dumps(RUN | there)}, FURTHER | given)
          for message, there, given in (
            ("--output_dir=*out holds a run with *--lora_alpha=None; this one is with --lora_rank=2 --lora_alpha=4.0",
             {}, {"lora_rank": 2}),
            ("--output_dir=*out already holds a run: choose another one for --search", {},
             {"dev_file": "train.csv", "do_eval": True, "search": "learning_rate=1e-5,2e-5"}),
        )),
        # Of several seeds, before the first one is trained.
        ("--output_dir=*out/seed-12346 holds a finished run with other settings (*--text_b: more there, None now",
         {**TEXTS, "out/seeds.json": "{}", "v.txt": FINISHED["v.txt"], **checkpoint("c", "c.ckpt"),
          **checkpoint("out/seed-12346", "model.ckpt-9"),
          "out/seed-12346/head_config.json": FINISHED["out/head_config.json"],
          "out/seed-12346/run.json": json.dumps(RUN | {"text_b": "more"})},
         FURTHER | {"bert_config_file": "c/bert_config.json", "num_seeds": 2, "dev_file": "train.csv",
                    "do_eval": True}),
    ],
    "run_pretraining": [
        *((message, ROWS | files, PRETRAIN | given) for message, files, given in (
            ("--do_whole_word_mask is for unmasked records; these were already masked",
             {"a.tfrecord": MASKED}, {"max_predictions_per_seq": 1, "do_whole_word_mask": True}),
            ("The records are unmasked, *: give --vocab_file", {}, {"bert_size": "tiny", "init_checkpoint": None}),
            ("--input_file: masked records, but ELECTRA masks its texts", {"a.tfrecord": MASKED},
             {"bert_size": "electra_small", "init_checkpoint": None, "objective": "electra"}),
            ("*v.txt has 7 lines but *has vocab_size 6: use the vocabulary",
             {"v.txt": "\n".join([*TOKENS, "b"])}, {"vocab_file": "v.txt"}),
            ("--vocab_file=*v.txt has more tokens than *",
             {"v.txt": "\n".join([*TOKENS, "b"]), "pretraining_data.a.json": json.dumps(
                 {"output_files": ["a.tfrecord"], "flags": {"vocab_file": "v"}, "vocab_size": 6})},
             {"vocab_file": "v.txt"}),
            ("--student_layers=0,5: the teacher has the layers 0 to 1; name each once", {},
             {"init_checkpoint": None, "teacher": "whole", "student_layers": "0,5"}),
            ("--student_layers: *'x'", {}, {"init_checkpoint": None, "teacher": "whole", "student_layers": "0,x"}),
        )),
        *((message, ROWS | files, BEGIN | given) for message, files, given in (
            ("Nothing to evaluate: no checkpoint in --output_dir=*out, and no --init_checkpoint",
             {}, {"do_train": None, "do_eval": True}),
            ("--output_dir=*out holds a run of another configuration (*hidden_size: 32 there, 4 now",
             checkpoint("out", "model.ckpt-1"), {"vocab_file": "whole/vocab.txt"}),
        )),
    ],
    "create_pretraining_data": [
        ("do_lower_case=False contradicts *whole/tokenizer_config.json",
         {**TEXT, **model(), **CASING},
         CREATE | {"vocab_file": "whole/vocab.txt", "do_lower_case": False}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("script", BEFORE)
def test_flags_and_missing_files_are_named_before_tensorflow_is_imported(script, tmp_path):
    check_cases(script, BEFORE[script], tmp_path)


@pytest.mark.parametrize("script", REFUSED)
def test_what_does_not_fit_is_one_line_and_writes_nothing(script, tmp_path):
    check_cases(script, REFUSED[script], tmp_path, is_warm=True)
