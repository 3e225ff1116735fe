"""Families side by side: each pre-trained for the same wall time on your own text, then fine-tuned on GLUE tasks.

    python -m experiments.families --train_text='novels/train-*.txt' --heldout_text=novels/heldout.txt \\
      --glue_dir=glue --minutes=10 --num_seeds=3 --output_dir=families

A family's number of steps is what a short run of it on this machine does in --minutes, so nothing else should run
meanwhile. All models have 4 layers and hidden size 256 (the mini size), the same batch, sequence length and rate; each
family has its own kind of vocabulary, of the same size, its own rows, masks and optimizer settings. In output_dir:
families.md (the table), families.json, and for each run its folder, its log and results/<run>.json. After a crash, the
same command skips finished runs and resumes the interrupted one.
"""

import json
import math
import os

from absl import flags, logging

from bert_tf.families import family_named
from bert_tf.system import script as system_script
from bert_tf.system.storage import write_text_file
from experiments.ablation_tables import cell, estimate
from experiments.script_runs import Run, do_runs, results_in

_CALIBRATION_STEPS = 120
SIZE = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
# Kind of vocabulary -> its file.
VOCABULARIES = {"wordpiece": "vocab.txt", "sentencepiece": "spiece.model", "byte_bpe": "vocab.json"}
# Family -> kind of vocabulary, flags of the records, flags of the run, keys of the configuration.
FAMILIES = {
    "bert": ("wordpiece", {"masking": "dynamic"}, {}, {"type_vocab_size": 2}),
    "electra": (
        "wordpiece",
        {"masking": "dynamic", "nsp": False},
        {"objective": "electra", "generator_size": 0.25},
        {"embedding_size": 128},
    ),
    # Its LAMB is for batches of thousands.
    "albert": (
        "sentencepiece",
        {"next_sentence": "order", "ngram": 3, "do_whole_word_mask": True},
        {"optimizer": "adamw"},
        {"embedding_size": 128},
    ),
    "roberta": ("byte_bpe", {"masking": "dynamic", "rows": "full_sentences"}, {}, {}),
}
# Task -> passes over its training set, and the metric in the table.
TASKS = {"SST-2": (0.25, "eval_accuracy"), "MRPC": (3, "eval_accuracy"), "CoLA": (2, "eval_matthews")}


def define_flags() -> None:
    """Defines the flags."""
    define = flags
    define.DEFINE_string("train_text", None, "Text to pre-train on: globs separated by commas; one sentence per line.")
    define.DEFINE_string("heldout_text", None, "Text to evaluate the pre-training on, in the same form.")
    define.DEFINE_string("glue_dir", None, "Directory with SST-2, MRPC and CoLA in GLUE's layout.")
    define.DEFINE_string("output_dir", None, "Directory for all outputs. What is in it is resumed.")
    define.DEFINE_list("families", list(FAMILIES), "Families to compare.")
    define.DEFINE_float("minutes", 10, "Minutes of pre-training for each family and seed.", lower_bound=0.01)
    define.DEFINE_integer("num_seeds", 3, "Pre-trainings of each family.", lower_bound=1)
    define.DEFINE_integer("vocab_size", 8000, "Tokens of each vocabulary.", lower_bound=400)
    define.DEFINE_integer("max_seq_length", 128, "Tokens per row, in pre-training and fine-tuning.", lower_bound=16)
    define.DEFINE_integer("train_batch_size", 16, "Rows per step of pre-training.", lower_bound=1)
    define.DEFINE_float("learning_rate", 1e-3, "Peak rate of pre-training.")
    define.DEFINE_float("fine_tuning_learning_rate", 2e-4, "Peak rate of fine-tuning.")
    define.DEFINE_multi_string("pretraining_flag", [], "A further flag of run_pretraining.py: --pretraining_flag=--...")
    flags.mark_flags_as_required(["train_text", "heldout_text", "glue_dir", "output_dir"])


def data_runs(values, families: list[str]) -> list[Run]:
    """The runs that make vocabularies and records."""
    folder, runs = values.output_dir, []
    for kind in dict.fromkeys(FAMILIES[family][0] for family in families):
        made = {
            "input_file": values.train_text, "output_file": _vocabulary(folder, kind), "vocab_size": values.vocab_size,
            "kind": kind,
        }  # fmt: skip
        runs.append(Run(f"vocabulary-{kind}", "create_vocab.py", made))
    for family in families:
        kind, record_flags, *_ = FAMILIES[family]
        for part, text in (("train", values.train_text), ("heldout", values.heldout_text)):
            made = {
                "input_file": text, "output_file": _records(folder, part, family),
                "vocab_file": _vocabulary(folder, kind), "max_seq_length": values.max_seq_length,
                **({} if "masking" in record_flags else _predictions(values)), **record_flags,
            }  # fmt: skip
            runs.append(Run(f"data-{part}-{family}", "create_pretraining_data.py", made))
    return runs


def pretraining_run(values, family: str, seed: int, steps: int, calibration: bool = False) -> Run:
    """A pre-training of so many steps; or the short one that measures the speed."""
    kind, _, run_flags, _ = FAMILIES[family]
    name = f"calibration-{family}" if calibration else f"pretraining-{family}-seed_{seed}"
    output_dir = os.path.join(values.output_dir, "runs", name)
    made = {
        "input_file": _records(values.output_dir, "train", family), "output_dir": output_dir, "do_train": True,
        "bert_config_file": _configuration(values.output_dir, family), "learning_rate": values.learning_rate,
        "vocab_file": _vocabulary(values.output_dir, kind), "max_seq_length": values.max_seq_length,
        **({} if family == "electra" else _predictions(values)), "train_batch_size": values.train_batch_size,
        "num_train_steps": steps, "num_warmup_steps": steps // 10, "keep_checkpoint_max": 1, "seed": seed,
        "log_every_steps": 20 if calibration else 100, **run_flags,
    }  # fmt: skip
    if calibration:
        return Run(name, "run_pretraining.py", made, lambda: _speed(output_dir), tuple(values.pretraining_flag))
    made |= {
        "eval_input_file": _records(values.output_dir, "heldout", family), "do_eval": True, "eval_batch_size": 64,
        "max_eval_steps": 100,
    }  # fmt: skip
    return Run(name, "run_pretraining.py", made, lambda: results_in(output_dir), tuple(values.pretraining_flag))


def fine_tuning_runs(values, family: str, seed: int, from_scratch: bool = False) -> list[Run]:
    """The fine-tunings of a pre-trained model; or those of the same model from random weights."""
    runs = []
    trained = os.path.join(values.output_dir, "runs", f"pretraining-{family}-seed_{seed}")
    if family == "electra":
        trained = os.path.join(trained, "discriminator")
    start = {"init_checkpoint": trained}
    if from_scratch:
        start = {"bert_config_file": _configuration(values.output_dir, family)}
    for task, (epochs, _) in TASKS.items():
        name = f"{task}-{family}{'-from_scratch' if from_scratch else ''}-seed_{seed}"
        output_dir = os.path.join(values.output_dir, "runs", name)
        made = {
            "task_name": task, "data_dir": os.path.join(values.glue_dir, task), "output_dir": output_dir, **start,
            "vocab_file": _vocabulary(values.output_dir, FAMILIES[family][0]), "do_train": True, "do_eval": True,
            "max_seq_length": values.max_seq_length, "learning_rate": values.fine_tuning_learning_rate,
            "num_train_epochs": epochs, "seed": seed, "keep_checkpoint_max": 1,
        }  # fmt: skip
        runs.append(Run(name, "run_classifier.py", made, lambda output_dir=output_dir: results_in(output_dir)))
    return runs


def write_configurations(values, families: list[str]) -> None:
    """Writes the configuration of every family; needs the vocabularies."""
    from bert_tf.text.tokenizer_files import Casing

    for family in families:
        kind, *_, keys = FAMILIES[family]
        model = family_named(family)
        vocab = model.tokenizer_class.from_file(_vocabulary(values.output_dir, kind), Casing()).vocab
        config = model.config_class.from_dict({"vocab_size": max(vocab.values()) + 1, **SIZE, **keys})
        config.max_position_embeddings = values.max_seq_length + config.first_position
        config.save(_configuration(values.output_dir, family))


def create_table(content: dict) -> str:
    """families.json as Markdown."""
    columns = ["", "steps", "masked-LM loss, held-out", *(f"{task}, %" for task in TASKS)]
    text = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    for name, row in content["rows"].items():
        loss = cell(row["masked_lm_loss"], 1.0, 3) if "masked_lm_loss" in row else ""
        shown = [name, f"{row['steps']:,}" if row["steps"] else "", loss]
        text += f"| {' | '.join([*shown, *(cell(row[task]) for task in TASKS)])} |\n"
    return text + (
        f"\n{content['minutes']:g} minutes of pre-training each; ± is one standard error over {content['num_seeds']} "
        "seeds. Losses are per token of the family's own vocabulary, an ELECTRA's that of its small generator: compare "
        "them only within a vocabulary.\n"
    )


def _predictions(values) -> dict[str, int]:
    """An ELECTRA's number follows from the length by its original's rule."""
    return {"max_predictions_per_seq": math.ceil(0.15 * values.max_seq_length)}


def _vocabulary(folder: str, kind: str) -> str:
    return os.path.join(folder, "vocabularies", VOCABULARIES[kind])


def _records(folder: str, part: str, family: str) -> str:
    return os.path.join(folder, "data", f"{part}-{family}.tfrecord")


def _configuration(folder: str, family: str) -> str:
    return os.path.join(folder, f"{family}_config.json")


def _speed(output_dir: str) -> dict[str, float]:
    """Steps per second over the second half of a run."""
    with open(os.path.join(output_dir, "train_log.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    speeds = [line["examples_per_second"] for line in lines if "examples_per_second" in line]
    speeds = speeds[len(speeds) // 2 :]
    return {"examples_per_second": sum(speeds) / len(speeds)}


def main(_):
    values = flags.FLAGS
    logging.set_verbosity(logging.INFO)
    families = values.families
    folder = values.output_dir
    do_runs(data_runs(values, families), folder)
    write_configurations(values, families)
    calibrations = [pretraining_run(values, family, 0, _CALIBRATION_STEPS, calibration=True) for family in families]
    speeds = {
        run.name.removeprefix("calibration-"): kept["results"]["examples_per_second"]
        for run, kept in zip(calibrations, do_runs(calibrations, folder).values(), strict=True)
    }
    steps = {family: int(60 * values.minutes * speed / values.train_batch_size) for family, speed in speeds.items()}
    logging.info("Steps in %g minutes: %s.", values.minutes, steps)
    seeds = range(1, values.num_seeds + 1)
    runs = []
    for seed in seeds:
        for family in families:
            runs += [pretraining_run(values, family, seed, steps[family]), *fine_tuning_runs(values, family, seed)]
        runs += fine_tuning_runs(values, families[0], seed, from_scratch=True)
    results = do_runs(runs, folder)

    def estimates(name: str, metric: str) -> dict:
        return estimate([[results[f"{name}-seed_{seed}"]["results"][metric]] for seed in seeds])

    rows = {}
    for family in families:
        rows[family_named(family).config_class.title] = {
            "steps": steps[family],
            "masked_lm_loss": estimates(f"pretraining-{family}", "masked_lm_loss"),
            **{task: estimates(f"{task}-{family}", metric) for task, (_, metric) in TASKS.items()},
        }
    none = {task: estimates(f"{task}-{families[0]}-from_scratch", metric) for task, (_, metric) in TASKS.items()}
    rows["no pre-training"] = {"steps": 0, **none}
    content = {"minutes": values.minutes, "num_seeds": values.num_seeds, "rows": rows}
    write_text_file(os.path.join(folder, "families.json"), json.dumps(content, indent=2) + "\n")
    text = create_table(content)
    write_text_file(os.path.join(folder, "families.md"), text)
    print(text)


if __name__ == "__main__":
    define_flags()
    system_script.run(main)
