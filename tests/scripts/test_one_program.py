"""With --distribution_strategy=tpu, every step of every script is one XLA program with static shapes.

No TPU is here: helpers/one_program.py compiles for the CPU what the scripts give to `strategy.run`.
"""

import json
import pathlib
import random

import pytest
import tensorflow as tf
from helpers import one_program
from helpers.descendants import save_model
from helpers.mains import run_mains
from helpers.paths import GOLDEN
from helpers.script_cases import selected_cases
from helpers.slow import exhaustive, slow
from helpers.tiny import ONE_LAYER, write_encoder

from bert_tf import BertForMaskedLM, BertForPreTraining

CORPUS = GOLDEN / "pretraining" / "corpus_*.txt"
MARKS = ["first", "second", "third"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "which", *MARKS]
PIECES += [f"w{number}" for number in range(100 - len(PIECES))]
STEP = "Trainer.replica_step"


def write_inputs(folder) -> None:
    """Writes an encoder, and text and examples of every task, of different lengths."""
    write_encoder(folder, PIECES)
    (folder / "config.json").write_text(json.dumps(ONE_LAYER))
    generator = random.Random(0)

    def words(most: int) -> str:
        return " ".join(f"w{generator.randrange(90)}" for _ in range(generator.randint(1, most)))

    (folder / "text.txt").write_text("".join(words(9) + "\n" + "\n" * (n % 5 == 4) for n in range(100)))
    rows = [f"{words(20)}\t{words(9)}\t{n % 3}\t{('x', 'x,y', '')[n % 3]}\n" for n in range(24)]
    (folder / "pairs.tsv").write_text("one\ttwo\tnumber\tseveral\n" + "".join(rows))
    (folder / "ner.conll").write_text("".join(f"w{n} B-PER\n" + f"w{n} O\n" * (n % 7) + "\n" for n in range(24)))
    choices = "".join(",".join([str(n), *(words(5) for _ in range(6)), str(n % 4)]) + "\n" for n in range(24))
    (folder / "swag.csv").write_text("number,sent1,sent2,ending0,ending1,ending2,ending3,label\n" + choices)
    paragraphs = []
    for number in range(24):
        answers = [{"text": MARKS[number % 3], "answer_start": 0}]
        question = {"id": str(number), "question": "which", "answers": answers, "is_impossible": False}
        paragraphs.append({"context": f"{MARKS[number % 3]} {words(12)}", "qas": [question]})
    (folder / "squad.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))


def pretraining_steps(folder) -> dict:
    """Name -> (script, flags) of data and pre-training."""
    data = {
        "input_file": folder / "text.txt", "vocab_file": folder / "vocab.txt", "max_seq_length": 32, "num_workers": 1,
        "max_predictions_per_seq": 5,
    }  # fmt: skip
    training = {
        "distribution_strategy": "tpu", "bert_config_file": folder / "config.json", "do_train": True, "do_eval": True,
        "num_train_steps": 4, "num_warmup_steps": 1, "iterations_per_loop": 2, "max_seq_length": 32,
        "train_batch_size": 8, "eval_batch_size": 8, "max_eval_steps": 2, "max_predictions_per_seq": 5,
    }  # fmt: skip
    kinds = {
        "masked": ({}, {}),
        "unmasked": ({"masking": "dynamic"}, {"vocab_file": folder / "vocab.txt"}),
        "packed": ({"masking": "dynamic", "pack_sequences": True}, {"vocab_file": folder / "vocab.txt"}),
        "no nsp": ({"nsp": False}, {"nsp": False}),
        "left to right": ({"nsp": False, "masking": "dynamic"}, {"nsp": False, "objective": "ltr"}),
        "lamb in bfloat16": ({}, {"optimizer": "lamb", "dtype": "bfloat16"}),
    }
    steps = {}
    for name, (making, using) in kinds.items():
        file = folder / f"{name.replace(' ', '_')}.tfrecord"
        steps[f"data, {name}"] = ("create_pretraining_data", {**data, **making, "output_file": file})
        for parts in (1, 2):
            files = {"input_file": file, "eval_input_file": file, "output_dir": folder / f"{name}-{parts}"}
            steps[f"{name}, {parts}"] = (
                "run_pretraining", {**training, **using, **files, "gradient_accumulation_steps": parts}
            )  # fmt: skip
    return steps


def descendant_steps(folder) -> dict:
    """Name -> (script, flags) of pre-training of other families, and with a teacher."""
    steps = {}
    kinds = {
        "albert": (BertForPreTraining, {"next_sentence": "order", "ngram": 3, "max_predictions_per_seq": 5}, {}),
        "electra": (BertForMaskedLM, {"masking": "dynamic", "nsp": False}, {"objective": "electra"}),
        "roberta": (BertForMaskedLM, {"masking": "dynamic", "rows": "full_sentences"}, {}),
        "bert": (BertForMaskedLM, {"masking": "dynamic", "nsp": False}, {"mask_smoothing": 0.7, "student_layers": "1"}),
    }
    for name, (model_class, making, using) in kinds.items():
        model = pathlib.Path(save_model(folder / name, name, model_class))
        rows, title = folder / f"{name}.tfrecord", "distilbert" if name == "bert" else name
        vocab = next(path for file in ("vocab.txt", "spiece.model", "vocab.json") if (path := model / file).exists())
        common = {"vocab_file": vocab, "max_seq_length": 32}
        making = {**common, **making, "input_file": CORPUS, "output_file": rows, "num_workers": 1}
        steps[f"data, {title}"] = ("create_pretraining_data", making)
        start = "teacher" if name == "bert" else "init_checkpoint"
        using = {
            **common, **using, start: model, "input_file": rows, "do_train": True, "do_eval": True,
            "distribution_strategy": "tpu", "num_train_steps": 4, "num_warmup_steps": 1, "iterations_per_loop": 2,
            "train_batch_size": 8, "eval_batch_size": 8, "max_eval_steps": 2, "max_predictions_per_seq": 5,
        }  # fmt: skip
        if name == "electra":  # both models begin anew: the one saved is not of a generator's size
            del using["init_checkpoint"]
            using |= {"bert_config_file": model / "electra_config.json", "generator_size": 0.5}
        for parts in (1, 2):
            own = {"output_dir": folder / f"{title}-{parts}", "gradient_accumulation_steps": parts}
            steps[f"{title}, {parts}"] = ("run_pretraining", {**using, **own})
    return steps


def fine_tuning_steps(folder) -> dict:
    """Name -> (script, flags) of every task."""
    training = {
        "distribution_strategy": "tpu", "init_checkpoint": folder / "encoder", "do_train": True, "max_seq_length": 32,
        "train_batch_size": 8, "predict_batch_size": 4, "num_train_epochs": 1, "write_tf_records": False,
    }  # fmt: skip
    whole = {"do_eval": True, "do_predict": True}

    def files(name: str, *kinds: str) -> dict:
        return {f"{kind}_file": folder / name for kind in kinds}

    table = files("pairs.tsv", "train", "dev", "test") | {"task_name": "custom", "text_a": "one", "text_b": "two"}
    single, pairs = {**table, "text_b": None, "label": "number"}, {**table, "task_name": None}
    squad = files("squad.json", "train", "dev", "predict") | {"doc_stride": 12, "max_query_length": 4}
    ner, swag = (files(name, "train", "dev", "test") for name in ("ner.conll", "swag.csv"))
    kinds = {
        "classes": ("run_classifier", {**table, "label": "number"}),
        "with a teacher": (
            "run_classifier",
            {**table, "label": "number", "teacher": folder / "classes-1" / "best_model"},
        ),
        "regression": ("run_classifier", {**table, "label": "number", "regression": True}),
        "several labels": ("run_classifier", {**table, "label": "several", "multi_label": True}),
        "squad 1": ("run_squad", squad),
        "squad 2": ("run_squad", {**squad, "version_2_with_negative": True}),
        "entities": ("run_ner", ner),
        "choices": ("run_swag", swag),
        "similar texts": ("run_similarity", {**pairs, "score": "number", "score_range": "0,2"}),
        "ranking": ("run_similarity", pairs),
        "long texts": ("run_classifier", {**single, "long_texts": "windows", "window_stride": 8, "max_seq_length": 16}),
        "adapters": ("run_classifier", {**table, "label": "number", "lora_rank": 2}),
    }
    steps = {}
    for name, (script, flags) in kinds.items():
        for parts in (1, 2):
            own = {"output_dir": folder / f"{name}-{parts}", "gradient_accumulation_steps": parts}
            every = {**training, **(whole if parts == 1 else {}), **flags, **own}
            steps[f"{name}, {parts}"] = script, {flag: value for flag, value in every.items() if value is not None}
    return steps


def steps_of(folder) -> dict:
    steps = {**pretraining_steps(folder), **descendant_steps(folder), **fine_tuning_steps(folder)}
    (folder / "lines.txt").write_text("w1 w2 ||| w3\nw4 w5\nw6\n")
    features = {
        "distribution_strategy": "tpu", "init_checkpoint": folder / "encoder", "batch_size": 2, "layers": -1,
        "input_file": folder / "lines.txt", "output_file": folder / "features.jsonl", "max_seq_length": 16,
    }  # fmt: skip
    return {**steps, "features": ("extract_features", features), **ordinary(steps)}


def ordinary(steps: dict) -> dict:
    """The same runs as on any CPU, of the same rows."""
    found = {}
    for name, (script, flags) in steps.items():
        if name.endswith(", 1"):
            padding = {} if script == "run_pretraining" else {"static_padding": True}
            own = {"distribution_strategy": "one_device", "output_dir": f"{flags['output_dir']}-ordinary", **padding}
            found[f"{name}, ordinary"] = script, {**flags, **own}
    return found


NAMES = [
    *(f"{name}, {parts}" for name in (
        "masked", "unmasked", "packed", "no nsp", "left to right", "lamb in bfloat16", "albert", "electra", "roberta",
        "distilbert", "classes", "with a teacher", "regression", "several labels", "squad 1",
        "squad 2", "entities", "choices", "similar texts", "ranking", "long texts",
        "adapters",
    ) for parts in (1, 2)),
    "features",
]  # fmt: skip
# Programs of two micro-batches differ from those of one in the same way for all, and some tasks by their loss alone.
_ALIKE = {"no nsp, 1", "regression, 1", "several labels, 1", "squad 1, 1"}
_OFTEN = {"packed, 2", "electra, 2", "classes, 2"}
COMPARED = [name for name in NAMES if name.endswith(", 1")]
EXHAUSTIVE = [name for name in NAMES if name in _ALIKE or (name.endswith(", 2") and name not in _OFTEN)]


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """Step -> (outcome, reports of `one_program`), the log, and the folder of the runs."""
    folder = tmp_path_factory.mktemp("one_program")
    write_inputs(folder)
    least = {*EXHAUSTIVE, *(f"{name}, ordinary" for name in COMPARED)}
    steps = selected_cases(request, steps_of(folder), least, "exhaustive")
    return *run_mains(steps, "helpers.one_program"), folder


@pytest.mark.parametrize("name", [*slow(*(name for name in NAMES if name not in EXHAUSTIVE)), *exhaustive(*EXHAUSTIVE)])
def test_each_step_is_one_static_program(ran, name):
    ended, log, _ = ran
    outcome, reports = ended[name]
    assert outcome == "done", log[-3000:]
    for report in reports:
        assert not report["found"], report
        assert set(report["modules"]) == {1}, report
    if name == "features":
        assert len(reports) == 1
        return
    training = [report for report in reports if report["name"] == STEP]
    assert [report["traces"] for report in training] == [1]  # all batches have the same shapes
    for report in reports:
        assert report["traces"] <= 2, report  # with labels, and to predict


def logged(folder) -> list[dict]:
    """The numbers of a run's log, but those of its speed."""
    lines = map(json.loads, (folder / "train_log.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name != "time" and "_per_" not in name} for line in lines]


@pytest.mark.parametrize("name", exhaustive(*COMPARED))
def test_compiled_steps_are_those_of_an_ordinary_run(ran, name):
    """Loss, gradient norm and metrics of each step, and of evaluations after the last."""
    ended, log, folder = ran
    assert ended[f"{name}, ordinary"][0] == "done", log[-3000:]
    place, tolerance = folder / name.replace(", ", "-"), 2e-2 if "bfloat16" in name else 1e-3
    one, other = logged(place), logged(place.with_name(f"{place.name}-ordinary"))
    assert len(one) == len(other) > 1
    for line, expected in zip(one, other, strict=True):
        assert line.keys() == expected.keys() and line == pytest.approx(expected, rel=tolerance, abs=tolerance / 10)


def test_what_a_tpu_can_not_run_is_found():
    """The check itself: a step with shapes that depend on values, and one with work for the host."""
    strategy = one_program.Strategy()
    strategy.run(lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0)), (tf.constant([1.0, -1.0]),))
    strategy.run(lambda x: 2 * x, (tf.constant([1.0, -1.0]),))
    dynamic, static = one_program.report()
    assert dynamic["found"]
    assert not static["found"]
    with pytest.raises(tf.errors.InvalidArgumentError):
        strategy.run(lambda x: tf.strings.length(tf.strings.as_string(x)), (tf.constant([1.0]),))
    one_program.forget()


def test_flags_that_make_no_sense_on_a_tpu_are_refused():
    scripts = {
        "run_pretraining": {"input_file": "none"},
        **{name: {"do_train": True} for name in ("run_classifier", "run_squad", "run_ner", "run_swag")},
        "run_classifier_with_tfhub": {"bert_hub_module_handle": ".", "do_train": True},
    }
    steps = {}
    for flag, value in (("use_xla", True), ("dtype", "float16")):
        for script, flags in scripts.items():
            steps[f"{script} {flag}"] = (script, {**flags, "output_dir": "none", "use_tpu": True, flag: value})
    files = {"input_file": "none", "output_file": "none", "init_checkpoint": "none"}
    steps["extract_features dtype"] = (
        "extract_features", {**files, "distribution_strategy": "tpu", "dtype": "float16"}
    )  # fmt: skip
    ended, _ = run_mains(steps, "helpers.one_program")
    reasons = {
        "use_xla": "ValueError: --use_xla: a TPU always compiles the whole step with XLA; leave it out.",
        "dtype": "ValueError: --dtype=float16: a TPU computes in bfloat16 or float32; give --dtype=bfloat16.",
    }
    assert {name: outcome for name, (outcome, _) in ended.items()} == {name: reasons[name.split()[1]] for name in steps}
