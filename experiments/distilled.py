"""A fine-tuned model distilled to some of its layers, beside the same layers fine-tuned without a teacher.

    python -m experiments.distilled --init_checkpoint=minilm-l6-h384 --glue_dir=glue --student_layers=0,2,5 \\
      --output_dir=distilled

For each task: the teacher is fine-tuned; then its layers learn from it and the labels; then the same layers, from the
same start, from the labels alone. At the end each model predicts the dev set. In output_dir: distilled.md (the table),
distilled.json, and for each run its folder, its log and results/<run>.json. After a crash, the same command skips
finished runs and resumes the interrupted one.
"""

import json
import os
import time

from absl import flags, logging

from bert_tf.store import save
from bert_tf.system import script as system_script
from bert_tf.system.storage import write_text_file
from experiments.ablation_tables import cell, estimate
from experiments.script_runs import Run, do_runs, scores_in

# Task -> passes over its training set.
TASKS = {"SST-2": 1.0, "MRPC": 3.0}
ROWS = ("teacher", "its layers, taught by it", "its layers, from labels alone")
_METRIC = "eval_accuracy"
_REPEATS = 3


def define_flags() -> None:
    """Defines the flags."""
    define = flags
    define.DEFINE_string("init_checkpoint", None, "Model that is fine-tuned to be the teacher.")
    define.DEFINE_string("glue_dir", None, "Directory with the tasks in GLUE's layout.")
    define.DEFINE_string("output_dir", None, "Directory for all outputs. What is in it is resumed.")
    define.DEFINE_list("tasks", list(TASKS), f"Tasks: {', '.join(TASKS)}.")
    define.DEFINE_list("student_layers", None, "Layers of the teacher, counted from 0, that are the student.")
    define.DEFINE_integer("num_seeds", 3, "Students of each kind.", lower_bound=1)
    define.DEFINE_float("learning_rate", 5e-5, "Peak rate of all fine-tunings.")
    define.DEFINE_float("passes", 1.0, "Times the usual number of passes over a task's training set.", lower_bound=0.0)
    define.DEFINE_multi_string("fine_tuning_flag", [], "A further flag of run_classifier.py: --fine_tuning_flag=--...")
    flags.mark_flags_as_required(["init_checkpoint", "glue_dir", "output_dir", "student_layers"])


def fine_tuning_run(values, task: str, name: str, start: dict[str, str], num_seeds: int) -> Run:
    """A fine-tuning, once for each seed."""
    output_dir = os.path.join(values.output_dir, "runs", f"{task}-{name}")
    made = {
        "task_name": task, "data_dir": os.path.join(values.glue_dir, task), "output_dir": output_dir, **start,
        "do_train": True, "do_eval": True, "max_seq_length": 128, "learning_rate": values.learning_rate,
        "num_train_epochs": values.passes * TASKS[task], "num_seeds": num_seeds, "seed": 1, "keep_checkpoint_max": 1,
    }  # fmt: skip
    further = tuple(values.fine_tuning_flag)
    return Run(f"{task}-{name}", "run_classifier.py", made, lambda: scores_in(output_dir), further)


def write_layers(teacher: str, layers: list[int], output_dir: str) -> None:
    """Writes some layers of a model as one of its own, without its head."""
    from bert_tf.families.config import shallower
    from bert_tf.models import distillation
    from bert_tf.store.head_config import HeadConfig
    from bert_tf.store.open import open_model

    opened = open_model(teacher)
    opened.config, opened.head = shallower(opened.config, layers), HeadConfig()
    chosen = distillation.chosen_layers(opened.weights, layers)
    save.write_model(output_dir, chosen, opened, format="bert_tf", overwrite=True)


def sentences_per_second(model: str, sentences: list) -> float:
    """The speed of predictions for sentences or pairs; the best of three times."""
    from bert_tf import Predictor

    predictor = Predictor(model)
    best = float("inf")
    for _ in range(1 + _REPEATS):  # the first time compiles
        started = time.perf_counter()
        predictor.predict(sentences)
        best = min(best, time.perf_counter() - started)
    return len(sentences) / best


def create_table(content: dict) -> str:
    """distilled.json as Markdown."""
    tasks = list(content["tasks"])
    text = f"| | {' | '.join(f'{task}, % | {task}, examples/s' for task in tasks)} |\n|---|{'---|---|' * len(tasks)}\n"
    for row in ROWS:
        cells = []
        for task in tasks:
            values = content["tasks"][task][row]
            cells += [cell(values), f"{values['examples_per_second']:.0f}"]
        text += f"| {row} | {' | '.join(cells)} |\n"
    layers, seeds = content["student_layers"], content["num_seeds"]
    return text + (
        f"\nThe students are the teacher's layers {', '.join(layers)}; ± is one standard error over {seeds} "
        "seeds. Examples per second: predictions of the dev set, float32.\n"
    )


def dev_set(values, task: str) -> list:
    """The sentences or pairs of the dev set."""
    from bert_tf.tasks.classification.data import find_task, read_examples

    described = find_task(task)
    split, *_ = described.dev.values()
    examples = read_examples(described, split, os.path.join(values.glue_dir, task))
    return [example.text_a if example.text_b is None else (example.text_a, example.text_b) for example in examples]


def compare(values, task: str) -> dict:
    """Scores and speeds for a task, by row of the table."""
    layers = [int(layer) for layer in values.student_layers]
    teacher, taught, alone, cut = (
        os.path.join(values.output_dir, "runs", f"{task}-{name}") for name in ("teacher", "taught", "alone", "layers")
    )
    (kept,) = do_runs(
        [fine_tuning_run(values, task, "teacher", {"init_checkpoint": values.init_checkpoint}, 1)], values.output_dir
    ).values()
    write_layers(teacher, layers, cut)
    flags_of_student = {"teacher": teacher, "student_layers": ",".join(values.student_layers)}
    students = [
        fine_tuning_run(values, task, "taught", flags_of_student, values.num_seeds),
        fine_tuning_run(values, task, "alone", {"init_checkpoint": cut}, values.num_seeds),
    ]
    results = [kept, *do_runs(students, values.output_dir).values()]
    sentences = dev_set(values, task)
    rows = {}
    for name, model, kept in zip(ROWS, (teacher, taught, alone), results, strict=True):
        scores = kept["results"][_METRIC]
        model = os.path.join(model, "seed-1") if len(scores) > 1 else model
        speed = sentences_per_second(model, sentences)
        rows[name] = {**estimate([scores]), "scores": scores, "examples_per_second": speed}
    return rows


def main(_):
    values = flags.FLAGS
    logging.set_verbosity(logging.INFO)
    content = {
        "student_layers": values.student_layers,
        "num_seeds": values.num_seeds,
        "tasks": {task: compare(values, task) for task in values.tasks},
    }
    write_text_file(os.path.join(values.output_dir, "distilled.json"), json.dumps(content, indent=2) + "\n")
    text = create_table(content)
    write_text_file(os.path.join(values.output_dir, "distilled.md"), text)
    print(text)


if __name__ == "__main__":
    define_flags()
    system_script.run(main)
