"""The paper's ablations on your own text: its Tables 5, 6 and 8 as a grid of small models.

    python -m experiments.ablations --train_text='novels/train-*.txt' --heldout_text=novels/heldout.txt \\
      --task_name=MRPC --data_dir=glue/MRPC --bert_size=tiny --output_dir=ablations

Each cell of the grid is pre-trained by run_pretraining.py, evaluated on held-out text, and fine-tuned by
run_classifier.py (Table 5, with --squad_train_file, by run_squad.py, too); cells that start from the same pre-training
share it. --num_pretraining_seeds and --num_seeds repeat both, for standard errors. In output_dir: ablations.md (the
tables), ablations.json, and for each run its folder, its log and results/<run>.json. After a crash, the same command
skips finished runs and resumes the interrupted one.

Paper: Devlin et al. 2019, sections 5.1, 5.2 and C.2.
"""

import dataclasses
import json
import os

from absl import flags, logging

from bert_tf.system import script as system_script
from bert_tf.system.storage import write_text_file
from experiments.ablation_grid import (
    Settings,
    count_tokens,
    create_grid,
    create_runs,
    create_vocabulary_runs,
    repetitions,
    write_configurations,
)
from experiments.ablation_tables import create_records, create_tables
from experiments.script_runs import do_runs


def define_flags() -> None:
    """Defines the flags: those of `Settings`, and the choice of cells."""
    define = flags
    define.DEFINE_string("train_text", None, "Text to pre-train on: globs separated by commas; one sentence per line.")
    define.DEFINE_string("heldout_text", None, "Text to evaluate the pre-training on, in the same form.")
    define.DEFINE_string("task_name", None, "Task of run_classifier.py to fine-tune on, e.g. MRPC.")
    define.DEFINE_string("data_dir", None, "Directory with the task's files.")
    define.DEFINE_string("output_dir", None, "Directory for all outputs. A grid in it is resumed.")
    define.DEFINE_list("tables", ["5", "6", "8"], "Tables of the paper: 5 objectives, 6 sizes, 8 masks.")
    define.DEFINE_string("bert_size", "tiny", "Size of the models in Tables 5 and 8, as in run_pretraining.py.")
    define.DEFINE_list("sizes", ["tiny", "L-4_H-128", "mini"], "Sizes of Table 6.")
    define.DEFINE_string("vocab_file", None, "A vocabulary. If unset, one is learned from --train_text.")
    define.DEFINE_integer("vocab_size", 8000, "Without --vocab_file: tokens to learn.", lower_bound=100)
    define.DEFINE_bool("do_lower_case", True, "Lower-case the text and strip accents.")
    define.DEFINE_float(
        "initializer_range",
        0.02,
        "Standard deviation of the initial weights. 0.02 suits a hidden size of 768; narrow models learn faster from "
        "more, about 0.5 / sqrt(hidden size).",
        lower_bound=0,
    )
    define.DEFINE_float("dropout", 0.1, "Dropout rate of all models, in pre-training and fine-tuning.", 0, 1)
    define.DEFINE_integer("max_seq_length", 128, "Tokens per sequence, in pre-training and fine-tuning.", lower_bound=8)
    define.DEFINE_integer("num_train_steps", 10000, "Steps of each pre-training, 10% of them warm-up.", lower_bound=1)
    define.DEFINE_integer("train_batch_size", 32, "Sequences per step of pre-training.", lower_bound=1)
    define.DEFINE_float("learning_rate", 1e-4, "Peak rate of pre-training; small models need more, about 1e-3.")
    define.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens that masked LM predicts.", 0, 1)
    define.DEFINE_integer("max_eval_steps", 100, "Maximum batches of held-out text.", lower_bound=1)
    define.DEFINE_integer("fine_tuning_batch_size", 32, "Examples per step of fine-tuning.", lower_bound=1)
    define.DEFINE_float("fine_tuning_learning_rate", 5e-5, "Peak rate of fine-tuning; small models need more.")
    define.DEFINE_float("num_train_epochs", 3.0, "Passes over the task's training set.")
    define.DEFINE_integer(
        "num_pretraining_seeds",
        1,
        "Pre-train each cell this many times, with seeds --seed, --seed + 1, ...",
        lower_bound=1,
    )
    define.DEFINE_integer("num_seeds", 1, "Fine-tune each pre-trained model this many times.", lower_bound=1)
    define.DEFINE_integer("seed", 12345, "Seed of everything.")
    define.DEFINE_multi_string(
        "pretraining_flag", [], "A further flag of run_pretraining.py: --pretraining_flag=--dtype=bfloat16."
    )
    define.DEFINE_multi_string("fine_tuning_flag", [], "A further flag of run_classifier.py; can be repeated.")
    define.DEFINE_string("squad_train_file", None, "SQuAD JSON to fine-tune the models of Table 5 on as well.")
    define.DEFINE_string("squad_dev_file", None, "SQuAD JSON to evaluate these on.")
    define.DEFINE_multi_string(
        "squad_flag",
        [],
        "A further flag of run_squad.py, which gets the flags of fine-tuning: --squad_flag=--num_train_epochs=2.",
    )
    define.DEFINE_string(
        "metric", None, "Metric of eval_results.txt for the tables. If unset, the main metric of the GLUE task."
    )
    flags.mark_flags_as_required(["train_text", "heldout_text", "task_name", "output_dir"])


def main(_):
    values = flags.FLAGS
    logging.set_verbosity(logging.INFO)
    fields = {field.name: values[field.name].value for field in dataclasses.fields(Settings)}
    for name in ("pretraining_flag", "fine_tuning_flag", "squad_flag"):
        fields[name] = tuple(fields[name])
    settings = Settings(**fields)
    if bool(settings.squad_train_file) != bool(settings.squad_dev_file):
        raise ValueError("--squad_train_file and --squad_dev_file need each other.")
    if settings.squad_train_file and "5" not in values.tables:
        raise ValueError("--squad_train_file is for Table 5: add it to --tables.")
    if settings.squad_flag and not settings.squad_train_file:
        raise ValueError("--squad_flag needs --squad_train_file.")
    cells = create_grid([int(table) for table in values.tables], values.bert_size, values.sizes)
    metric = values.metric
    if not metric:
        if settings.task_name.lower() == "custom":
            metric = "eval_accuracy"
        else:
            from bert_tf.tasks.classification import data

            metric = f"eval_{data.find_task(settings.task_name, '').metrics[0]}"
    do_runs(create_vocabulary_runs(settings), settings.output_dir)
    write_configurations(cells, settings)
    results = do_runs(create_runs(cells, settings), settings.output_dir)
    records = create_records(cells, results, count_tokens(settings), repetitions(settings))
    if metric not in records[0]["fine_tuning"]:
        raise ValueError(f"--metric={metric} is not one of {', '.join(sorted(records[0]['fine_tuning']))}.")
    content = {"settings": dataclasses.asdict(settings), "metric": metric, "cells": records}
    write_text_file(os.path.join(settings.output_dir, "ablations.json"), json.dumps(content, indent=2) + "\n")
    title = f"{settings.task_name} {metric.removeprefix('eval_')}, %"
    text = create_tables(records, metric, title)
    write_text_file(os.path.join(settings.output_dir, "ablations.md"), text)
    print(text)


if __name__ == "__main__":
    define_flags()
    system_script.run(main)
