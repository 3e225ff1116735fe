"""Texts longer than the model: what windows and a longer row bring and cost, beside cutting.

    python -m experiments.long_texts --init_checkpoint=minilm-l6-h384 --sst2_dir=glue/SST-2 --novels_dir=novels \\
      --output_dir=long_texts --fine_tuning_flag=--dtype=bfloat16

The task is made of SST-2 and novels: a text is some consecutive sentences of a novel, with one sentence of a film
review between two of them, at any place; the label is the review's. What decides is thus one sentence, which a text
that is cut has lost if it stood too far behind. Texts to train on are made of SST-2's training set and train-*.txt,
those to evaluate on of its dev set and heldout.txt. The same files and flags always give the same texts.

In output_dir: train.csv and dev.csv (text, label, and place, the number of words before the review), long_texts.md (the
table), long_texts.json, and for each run its folder, its log and results/<run>.json. After a crash, the same command
skips finished runs and resumes the interrupted one.
"""

import json
import os
import random
from collections.abc import Iterator, Sequence

from absl import flags, logging

from bert_tf.system import script as system_script
from bert_tf.system.storage import write_text_file
from experiments.csv_text import csv_text
from experiments.script_runs import Run, do_runs, results_in

_FEWEST_WORDS = 6  # of a review to train on: many of SST-2's are pieces of sentences that say little
_SEED = 1
_METRIC = "eval_accuracy"


def define_flags() -> None:
    """Defines the flags."""
    define = flags
    define.DEFINE_string("init_checkpoint", None, "Model that is fine-tuned.")
    define.DEFINE_string("sst2_dir", None, "SST-2 in GLUE's layout.")
    define.DEFINE_string("novels_dir", None, "Novels: train-*.txt and heldout.txt, one sentence a line.")
    define.DEFINE_string("output_dir", None, "Directory for all outputs. What is in it is resumed.")
    define.DEFINE_integer("words", 250, "Words of the novel in a text, at least.", lower_bound=1)
    define.DEFINE_integer("num_train", 3000, "Texts to train on.", lower_bound=1)
    define.DEFINE_integer("num_dev", 872, "Texts to evaluate on.", lower_bound=1)
    define.DEFINE_integer("max_seq_length", 128, "Tokens of a window, and of a text that is cut.", lower_bound=3)
    define.DEFINE_integer("whole_length", 512, "Tokens of a row that holds a whole text; 0: no such run.")
    define.DEFINE_list("poolings", ["mean", "max", "attention"], "How windows are combined: a run for each.")
    define.DEFINE_integer("window_stride", 112, "Tokens between the starts of two windows.", lower_bound=1)
    define.DEFINE_float("num_train_epochs", 2.0, "Passes over the training set.", lower_bound=0.0)
    define.DEFINE_multi_string("fine_tuning_flag", [], "A further flag of run_classifier.py: --fine_tuning_flag=--...")
    flags.mark_flags_as_required(["init_checkpoint", "sst2_dir", "novels_dir", "output_dir"])


# --- texts -----------------------------------------------------------------------------------------------------------


def passages(paths: Sequence[str], words: int) -> Iterator[list[str]]:
    """Consecutive sentences of a document with at least so many words together, none twice; all documents in order."""
    import tensorflow as tf

    for path in paths:
        with tf.io.gfile.GFile(path) as file:
            passage, count = [], 0
            for line in file:
                if not line.strip():
                    passage, count = [], 0
                    continue
                passage.append(line.strip())
                count += len(line.split())
                if count >= words:
                    yield passage
                    passage, count = [], 0


def reviews(path: str, fewest_words: int) -> list[tuple[str, str]]:
    """(sentence, label) of a file of SST-2; sentences with fewer words are left out."""
    from bert_tf.system.text_files import read_text_lines

    rows = [line.split("\t") for line in list(read_text_lines(path))[1:]]
    return [(text.strip(), label) for text, label in rows if len(text.split()) >= fewest_words]


def create_texts(
    labelled: Sequence[tuple[str, str]], novel: Iterator[list[str]], count: int, seed: int
) -> list[tuple[str, str, int]]:
    """(text, label, words before the review) of so many texts.

    Only `random.Random.random` is used, whose numbers are the same in every version of Python.

    Raises:
      ValueError: there are too few reviews or passages.
    """
    generator = random.Random(seed)
    order = sorted(range(len(labelled)), key=lambda _: generator.random())[:count]
    texts = []
    for number, passage in zip(order, novel, strict=False):
        review, label = labelled[number]
        position = int(generator.random() * (len(passage) + 1))
        text = " ".join([*passage[:position], review, *passage[position:]])
        texts.append((text, label, len(" ".join(passage[:position]).split())))
    if len(texts) < count:
        raise ValueError(f"There are reviews and passages for {len(texts)} texts, not for {count}: ask for fewer.")
    return texts


def write_task(values) -> None:
    """Writes train.csv and dev.csv."""
    import tensorflow as tf

    names = sorted(name for name in tf.io.gfile.listdir(values.novels_dir) if name.startswith("train-"))
    novels = {"train": names, "dev": ["heldout.txt"]}
    for seed, (kind, count) in enumerate((("train", values.num_train), ("dev", values.num_dev)), _SEED):
        paths = [os.path.join(values.novels_dir, name) for name in novels[kind]]
        labelled = reviews(os.path.join(values.sst2_dir, f"{kind}.tsv"), _FEWEST_WORDS if kind == "train" else 1)
        texts = create_texts(labelled, passages(paths, values.words), count, seed)
        content = csv_text(("text", "label", "place"), texts)
        write_text_file(os.path.join(values.output_dir, f"{kind}.csv"), content)


# --- runs ------------------------------------------------------------------------------------------------------------


def ways_of(values) -> dict[str, dict]:
    """Row of the table -> its own flags of run_classifier.py."""
    short = {"max_seq_length": values.max_seq_length}
    windows = {**short, "long_texts": "windows", "window_stride": values.window_stride, "max_windows": 32}
    ways = {f"cut at {values.max_seq_length} tokens": short}
    for pooling in values.poolings:
        ways[f"windows of {values.max_seq_length} tokens, {pooling}"] = {**windows, "window_pooling": pooling}
    if values.whole_length:
        ways[f"one row of up to {values.whole_length} tokens"] = {"max_seq_length": values.whole_length}
    return ways


def runs_of(values) -> dict[str, Run]:
    """The fine-tunings by row of the table."""
    runs = {}
    for row, flags_of_row in ways_of(values).items():
        name = f"{flags_of_row.get('window_pooling', 'cut')}-{flags_of_row['max_seq_length']}"
        output_dir = os.path.join(values.output_dir, "runs", name)
        made = {
            "task_name": "custom", "text_a": "text", "label": "label", "do_train": True, "do_eval": True,
            **{f"{kind}_file": os.path.join(values.output_dir, f"{kind}.csv") for kind in ("train", "dev")},
            "init_checkpoint": values.init_checkpoint, "output_dir": output_dir, "eval_batch_size": 32, "seed": 1,
            "num_train_epochs": values.num_train_epochs, "write_tf_records": False, **flags_of_row,
        }  # fmt: skip
        further = tuple(values.fine_tuning_flag)
        runs[row] = Run(name, "run_classifier.py", made, lambda output_dir=output_dir: results_in(output_dir), further)
    return runs


def create_table(rows: dict[str, dict]) -> str:
    """long_texts.json as Markdown."""
    text = "| | dev accuracy, % | seconds |\n|---|---|---|\n"
    for name, kept in rows.items():
        text += f"| {name} | {100 * kept['results'][_METRIC]:.1f} | {kept['seconds']:.0f} |\n"
    return text + "\nSeconds: a whole run, with its evaluations.\n"


def main(_):
    values = flags.FLAGS
    logging.set_verbosity(logging.INFO)
    import tensorflow as tf

    tf.io.gfile.makedirs(values.output_dir)
    write_task(values)
    runs = runs_of(values)
    done = do_runs(runs.values(), values.output_dir)
    rows = {row: done[run.name] for row, run in runs.items()}
    write_text_file(os.path.join(values.output_dir, "long_texts.json"), json.dumps(rows, indent=2) + "\n")
    text = create_table(rows)
    write_text_file(os.path.join(values.output_dir, "long_texts.md"), text)
    print(text)


if __name__ == "__main__":
    define_flags()
    system_script.run(main)
