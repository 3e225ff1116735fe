"""Flags of the fine-tuning scripts: the same defaults in scripts and notebooks, and errors before TensorFlow loads."""

import json
import subprocess
import sys

import pytest
from helpers.paths import ROOT
from helpers.script_cases import assert_in_order

SETTINGS = {
    "run_classifier": "classification.settings.ClassificationSettings",
    "run_squad": "squad.settings.SquadSettings",
    "run_ner": "ner.settings.NerSettings",
    "run_swag": "choice.settings.ChoiceSettings",
    "run_similarity": "similarity.settings.SimilaritySettings",
}
# The scripts have the original's own defaults here; only run_classifier.py has a separate batch size for evaluation.
OF_SCRIPTS = {"run_squad": {"max_seq_length": 384}, "run_classifier": {"eval_batch_size": 8}}
# The defaults if nothing else is known: the settings have None there, which means that the flag was not given.
IF_NOT_GIVEN = {
    "do_lower_case": True, "learning_rate": 5e-5, "null_score_diff_threshold": 0.0, "model": "bert",
    "embedding_size": 300, "hidden_size": 300, "document_context": False, "lstm_size": 768, "lstm_layers": 2,
    "model_on_top": "bilstm", "answer_from": "words", "warmup_proportion": 0.1, "optimizer": "adamw",
    "distillation_weight": 0.5, "distillation_temperature": 2.0, "long_texts": "cut", "window_pooling": "mean",
    "max_windows": 8,
}  # fmt: skip

# Only run_classifier.py has eval_batch_size; vectors of texts have neither a classifier nor a teacher.
NOT_EVERYWHERE = ("eval_batch_size", "classifier_dropout", "new_head", "teacher", "student_layers",
                  "distillation_weight", "distillation_temperature")  # fmt: skip

_PROGRAM = """
import importlib, json, sys
sys.path.insert(0, {root!r})
module = importlib.import_module({script!r})
{body}
print(json.dumps([outcome, "tensorflow" in sys.modules or "keras" in sys.modules]))
"""
_DEFAULTS = """
import dataclasses
from bert_tf.training.settings import FineTuningSettings, settings_of
module.FLAGS([{script!r}])
package, name, kind = {settings!r}.split(".")
kind = getattr(importlib.import_module("bert_tf.tasks." + package + "." + name), kind)
flags, outcome = module.FLAGS.flag_values_dict(), []
for kind in (FineTuningSettings, kind):
    settings = settings_of(kind, flags, ("eval_batch_size",))
    for field in dataclasses.fields(kind):
        default = None if field.default is dataclasses.MISSING else field.default
        unset = getattr(settings, field.name)
        outcome.append([field.name, field.name in flags, flags.get(field.name), default, unset])
"""
_MAIN = """
module.FLAGS([{script!r}, *{arguments!r}])
try:
    module.main([])
    outcome = "done"
except Exception as error:
    outcome = type(error).__name__ + ": " + str(error)
"""


def run(script: str, body: str, **values):
    body = body.format(script=script, **values)
    program = _PROGRAM.format(root=str(ROOT), script=script, body=body)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("script", SETTINGS)
def test_flags_and_settings_have_the_same_names_and_defaults(script):
    fields, heavy = run(script, _DEFAULTS, settings=SETTINGS[script])
    assert not heavy and len(fields) > 45
    expected = OF_SCRIPTS.get(script, {}) | IF_NOT_GIVEN
    for name, is_flag, flag_default, default, unset in fields:
        assert unset == OF_SCRIPTS.get(script, {}).get(name, default) or not is_flag, name
        assert is_flag or name in NOT_EVERYWHERE, name
        if is_flag:
            assert flag_default == expected.get(name, default), name


@pytest.fixture
def files(tmp_path):
    (tmp_path / "two.csv").write_text("text,verdict\ngood film,up\n")
    (tmp_path / "two.jsonl").write_text('{"text": "good film"}\n')
    (tmp_path / "choice.csv").write_text("sent1,sent2,ending0,ending1\na,b,c,d\n")
    (tmp_path / "words.conll").write_text("\nw1 O\n")
    (tmp_path / "teacher.bin").write_text("")
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "train.tsv").write_text("sentence\tlabel\na\t1\n")
    return tmp_path


CUSTOM = ["--do_train", "--task_name=custom", "--text_a=text", "--label=verdict"]


@pytest.mark.parametrize(
    ("script", "flags", "message"),
    [
        ("run_classifier", ["--do_train"], "ValueError: Which task? Give --task_name or --tfds_name."),
        ("run_classifier", ["--do_train", "--task_name=mprc"], "ValueError: --task_name=mprc is not one of *mrpc"),
        ("run_classifier", ["--do_train", "--task_name=MRPC", "--data_dir=nowhere"],
         "FileNotFoundError: nowhere/train.tsv does not exist: --task_name=mrpc needs it"),
        ("run_classifier", ["--do_train", "--task_name=MRPC", "--data_dir={}/MRPC"],
         "ValueError: *MRPC/train.tsv, line 1: column 3 should be '#1 String'"),
        ("run_classifier", [*CUSTOM, "--train_file=none.csv"], "FileNotFoundError: --train_file=none.csv"),
        ("run_classifier", [*CUSTOM, "--train_file={}/two.csv", "--label=stars"],
         "ValueError: *two.csv, line 1: no column 'stars'; the header has 'text', 'verdict'"),
        ("run_classifier", [*CUSTOM, "--train_file={}/two.csv", "--dev_file=none.csv"],
         "FileNotFoundError: --dev_file=none.csv"),
        ("run_classifier", [*CUSTOM, "--train_file={}/two.jsonl"], "ValueError: *two.jsonl, line 1: no 'verdict'"),
        ("run_classifier", [*CUSTOM, "--train_file={}/two.csv", "--vocab_file=none.txt"],
         "FileNotFoundError: --vocab_file=none.txt"),
        ("run_classifier", [*CUSTOM, "--model_on_top=cnn"], "ValueError: --model_on_top is for the feature-based way"),
        ("run_classifier", [*CUSTOM, "--features=last", "--lstm_on_top"],
         "ValueError: --lstm_on_top trains all of BERT, --features freezes it: give one."),
        ("run_classifier", [*CUSTOM, "--features=last", "--model=cnn"],
         "ValueError: --features=last needs a BERT: give --model_on_top=cnn, not --model."),
        ("run_classifier", [*CUSTOM, "--long_texts=windows", "--text_b=text"],
         "ValueError: --long_texts=windows is for single texts; leave out --text_b=text."),
        ("run_classifier", [*CUSTOM, "--long_texts=windows", "--features=last"],
         "ValueError: --long_texts=windows combines the pooled outputs of BERT; leave out --features."),
        ("run_classifier", [*CUSTOM, "--long_texts=windows", "--lstm_on_top"],
         "ValueError: --long_texts=windows combines the pooled outputs of BERT; leave out --lstm_on_top."),
        ("run_classifier", [*CUSTOM, "--long_texts=windows", "--model=cnn"],
         "ValueError: --long_texts=windows is for --model=bert; this is a cnn."),
        ("run_classifier", [*CUSTOM, "--long_texts=windows", "--teacher={}/teacher.bin"],
         "ValueError: --teacher reads a text as one row, so that --long_texts=windows can't learn from it."),
        ("run_classifier", [*CUSTOM, "--long_texts=cut", "--max_windows=3"],
         "ValueError: --max_windows=3 is for --long_texts=windows."),
        ("run_swag", ["--do_train", "--train_file={}/choice.csv"], "ValueError: --train_file: *choice.csv: which col"),
        ("run_swag", ["--do_train", "--train_file={}/two.csv", "--context=text", "--choices=a,b"],
         "ValueError: --train_file: *two.csv, line *no 'a'"),
        ("run_ner", ["--do_train", "--train_file={}/words.conll", "--tag_column=4"],
         "ValueError: --train_file: *words.conll, line 2: no column --tag_column=4, there are 2"),
        ("run_ner", ["--do_eval", "--dev_file=none.conll"], "ValueError: --dev_file: no file matches 'none"),
        ("run_squad", ["--do_train", "--train_file=none.json"], "ValueError: --train_file: no file matches 'none"),
        ("run_squad", ["--do_predict", "--predict_file={}/two.csv", "--num_seeds=3"], "ValueError: --num_seeds=3"),
        ("run_squad", ["--do_eval", "--dev_file={}/two.csv", "--overwrite_output_dir"],
         "ValueError: --overwrite_output_dir starts the training over: give --do_train"),
        ("run_classifier", [*CUSTOM, "--learning_rate=-1"], "ValueError: --learning_rate=-1 must be from 0 to 1."),
        ("run_ner", ["--do_eval", "--warmup_proportion=1.5"], "ValueError: --warmup_proportion=1.5 must be a share"),
        ("run_ner", ["--do_train", "--train_file={}/words.conll", "--num_seeds=2"],
         "ValueError: --num_seeds chooses by the results on a dev set: give --do_eval"),
        ("run_ner", ["--do_train", "--train_file={}/words.conll", "--search=learning_rate=1e-5,2e-5"],
         "ValueError: --search chooses by the results on a dev set: give --do_eval"),
        ("run_swag", ["--do_train", "--search=max_seq_length=64,128"],
         "ValueError: --search: 'max_seq_length' can't be searched; learning_rate, *"),
        ("run_swag", ["--do_train", "--search=num_train_epochs=2,3", "--num_train_epochs=3"],
         "ValueError: --num_train_epochs is also in --search: give it in one of the two."),
        ("run_squad", ["--do_train", "--search=learning_rate=2e-5,x"],
         "ValueError: --search: learning_rate=x is no number; write it as *"),
        ("run_classifier", ["--do_predict", "--task_name=MRPC", "--search=learning_rate=2e-5,3e-5"],
         "ValueError: --search compares trained models: give --do_train."),
    ],
)  # fmt: skip
def test_mistakes_are_answered_before_tensorflow_is_imported(files, script, flags, message):
    arguments = [f"--output_dir={files}/out", *(flag.replace("{}", str(files)) for flag in flags)]
    outcome, heavy = run(script, _MAIN, arguments=arguments)
    assert_in_order(message, outcome)
    assert outcome.startswith(message.split("*")[0]) and not heavy
    assert not (files / "out").exists()
