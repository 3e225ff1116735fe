"""The paper's ablations on your own text: its Tables 5, 6 and 8 as a grid of small models.

    python -m experiments.ablations --train_text='novels/train-*.txt' --heldout_text=novels/heldout.txt \\
      --task_name=MRPC --data_dir=glue/MRPC --bert_size=tiny --output_dir=ablations

Each cell of the grid is pre-trained by run_pretraining.py, evaluated on held-out text, and fine-tuned by
run_classifier.py; cells that start from the same pre-training share it. In output_dir: ablations.md (the tables),
ablations.json, and for each run its folder, its log and results/<run>.json. After a crash, the same command skips
finished runs and resumes the interrupted one.

Paper: Devlin et al. 2019, sections 5.1, 5.2 and C.2.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from absl import flags, logging

from bert_tf.models.config import BertConfig
from bert_tf.system import script as system_script
from bert_tf.system.atomic import write_text_file
from bert_tf.system.progress import progress_bar

SCRIPTS = pathlib.Path(__file__).resolve().parents[1]

# Table 8: how the tokens to predict are replaced, as mask_rate, random_rate, keep_rate.
MASK_STRATEGIES = ((0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.8, 0.2, 0.0), (0.8, 0.0, 0.2), (0.0, 0.8, 0.2), (0.0, 1.0, 0.0))

_LINES_OF_LOG = 15
_SECONDS_BETWEEN_LOOKS = 0.5


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """How a cell's model is pre-trained; the fields are flags of run_pretraining.py."""

    bert_size: str
    objective: str = "mlm"
    nsp: bool = True
    mask_rate: float = 0.8
    random_rate: float = 0.1
    keep_rate: float = 0.1

    @property
    def name(self) -> str:
        """A name for files."""
        parts = [self.bert_size, self.objective] + ([] if self.nsp else ["no_nsp"])
        if self.rates != MASK_STRATEGIES[0]:
            parts.append("_".join(f"{100 * rate:g}" for rate in self.rates))
        return "-".join(parts)

    @property
    def rates(self) -> tuple[float, float, float]:
        """mask_rate, random_rate, keep_rate."""
        return self.mask_rate, self.random_rate, self.keep_rate

    def flags(self) -> dict:
        """Flags of run_pretraining.py; a left-to-right model has no masks."""
        values = dataclasses.asdict(self)
        if self.objective == "ltr":
            values = {name: value for name, value in values.items() if not name.endswith("_rate")}
        return values


@dataclasses.dataclass(frozen=True)
class Cell:
    """A row of a table.

    Attributes:
      table: 5, 6 or 8, as in the paper. name: the row's name there.
      pretraining: how the model is pre-trained. from_scratch: fine-tune its size from random weights instead.
      lstm_on_top: fine-tune with a BiLSTM on top.
    """

    table: int
    name: str
    pretraining: Pretraining
    from_scratch: bool = False
    lstm_on_top: bool = False

    @property
    def fine_tuning_name(self) -> str:
        """A name for files; equal cells have the same."""
        name = f"{self.pretraining.bert_size}-from_scratch" if self.from_scratch else self.pretraining.name
        return name + ("-lstm" if self.lstm_on_top else "")


def create_grid(tables: Iterable[int], bert_size: str, sizes: Iterable[str]) -> list[Cell]:
    """The cells of the tables.

    Args:
      tables: of 5 (objectives), 6 (sizes), 8 (masking).
      bert_size: of the models in Tables 5 and 8. sizes: those of Table 6.

    Raises:
      ValueError: no such table or size; names the flag.
    """
    base = Pretraining(bert_size)
    no_nsp = dataclasses.replace(base, nsp=False)
    left_to_right = dataclasses.replace(no_nsp, objective="ltr")
    cells = {
        5: [
            Cell(5, "BERT", base),
            Cell(5, "No NSP", no_nsp),
            Cell(5, "LTR & No NSP", left_to_right),
            Cell(5, "+ BiLSTM", left_to_right, lstm_on_top=True),
            Cell(5, "no pre-training", base, from_scratch=True),
        ],
        6: [Cell(6, size, Pretraining(size)) for size in sizes],
        8: [
            Cell(
                8,
                " / ".join(f"{100 * rate:g}" for rate in rates),
                Pretraining(bert_size, mask_rate=rates[0], random_rate=rates[1], keep_rate=rates[2]),
            )
            for rates in MASK_STRATEGIES
        ],
    }
    if unknown := [table for table in tables if table not in cells]:
        raise ValueError(f"--tables={unknown[0]} is not one of {', '.join(map(str, cells))}, the tables of the paper.")
    chosen = [cell for table in tables for cell in cells[table]]
    for cell in chosen:
        BertConfig.from_size(cell.pretraining.bert_size)  # raises for an unknown one
    return chosen


# --- runs ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a script.

    Attributes:
      name: of its log and its results. script: file name. flags: without the leading dashes; None: not given.
      extra: further flags as on a command line. read: reads the results, once the script has succeeded.
    """

    name: str
    script: str
    flags: Mapping[str, object]
    read: Callable[[], dict] = dict
    extra: tuple[str, ...] = ()

    def command(self) -> list[str]:
        given = [f"--{name}={value}" for name, value in self.flags.items() if value is not None]
        return [self.script, *given, *self.extra]


def result_of(run: Run, output_dir: str) -> dict | None:
    """The saved result of a run: `results`, and `seconds` of its last start; None if it isn't finished.

    Raises:
      ValueError: it was run with other flags; names them.
    """
    path = os.path.join(output_dir, "results", f"{run.name}.json")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        kept = json.load(file)
    now, then = run.command(), kept["command"]
    if now != then:
        different = [part for part in now if part not in then] + [f"not {part}" for part in then if part not in now]
        raise ValueError(
            f"--output_dir={output_dir} has results for other flags ({run.name}: now {', '.join(different)}). Choose "
            f"another directory, or delete {path} and the run's folder."
        )
    return kept


def do_run(run: Run, output_dir: str, wait: Callable[[], None] = lambda: None) -> dict:
    """Runs a script, with its output in logs/<name>.log, and saves the results; see `result_of`.

    Args:
      wait: called from time to time while the script runs.

    Raises:
      ChildProcessError: it failed; the message ends with the last lines of its log.
    """
    log_path = os.path.join(output_dir, "logs", f"{run.name}.log")
    for folder in ("logs", "results"):
        os.makedirs(os.path.join(output_dir, folder), exist_ok=True)
    command = run.command()
    logging.info("%s; its log is %s", " ".join(command), log_path)
    started = time.monotonic()
    with open(log_path, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPTS / command[0]), *command[1:]], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_SECONDS_BETWEEN_LOOKS)
                wait()
        finally:
            if process.poll() is None:  # on SIGTERM a training run saves a checkpoint
                process.terminate()
                process.wait()
    if process.returncode:
        with open(log_path, encoding="utf-8", errors="replace") as file:
            last = "".join(file.readlines()[-_LINES_OF_LOG:])
        raise ChildProcessError(
            f"{run.script} failed with exit code {process.returncode} in the run {run.name}; the end of {log_path}:\n"
            f"{last}"
        )
    kept = {"command": command, "results": run.read(), "seconds": round(time.monotonic() - started, 1)}
    path = os.path.join(output_dir, "results", f"{run.name}.json")
    write_text_file(path, json.dumps(kept, indent=2) + "\n")
    return kept


def do_runs(runs: Iterable[Run], output_dir: str) -> dict[str, dict]:
    """Does all unfinished runs one after the other, with a progress bar; returns name -> `result_of`.

    Raises:
      ValueError, ChildProcessError: see `result_of` (before anything runs) and `do_run`.
    """
    runs = list({run.name: run for run in runs}.values())
    done = {run.name: kept for run in runs if (kept := result_of(run, output_dir))}
    if done:
        logging.info("%d of %d runs are already done.", len(done), len(runs))
    with progress_bar(total=len(runs), initial=len(done), desc="ablations", unit="run") as bar, _stopped_by_signal():
        for run in runs:
            if run.name in done:
                continue
            bar.set_postfix_str(run.name)
            done[run.name] = do_run(run, output_dir, bar.refresh if sys.stderr.isatty() else lambda: None)
            bar.update()
    return done


@contextlib.contextmanager
def _stopped_by_signal() -> Iterator[None]:
    """Makes SIGTERM end this process as Ctrl-C does, so that the script it waits for ends, too."""

    def stop(*_):
        raise SystemExit(128 + signal.SIGTERM)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings that all cells share; the fields are the flags of this module."""

    train_text: str
    heldout_text: str
    task_name: str
    data_dir: str | None
    output_dir: str
    vocab_file: str | None
    vocab_size: int
    do_lower_case: bool
    max_seq_length: int
    num_train_steps: int
    train_batch_size: int
    learning_rate: float
    masked_lm_prob: float
    max_eval_steps: int
    fine_tuning_batch_size: int
    fine_tuning_learning_rate: float
    num_train_epochs: float
    num_seeds: int
    seed: int
    pretraining_flag: tuple[str, ...] = ()
    fine_tuning_flag: tuple[str, ...] = ()


def create_runs(cells: Iterable[Cell], settings: Settings) -> list[Run]:
    """The runs that the cells need, each after those it depends on; a run may occur twice."""
    folder = settings.output_dir
    cells = list(cells)
    runs = []
    vocab_file = settings.vocab_file
    if not vocab_file:
        vocab_file = os.path.join(folder, "vocab.txt")
        flags = {
            "input_file": settings.train_text, "output_file": vocab_file, "vocab_size": settings.vocab_size,
            "do_lower_case": settings.do_lower_case,
        }  # fmt: skip
        runs.append(Run("vocabulary", "create_vocab.py", flags))
    for nsp in sorted({cell.pretraining.nsp for cell in cells}):
        for part, text in (("train", settings.train_text), ("heldout", settings.heldout_text)):
            flags = {
                "input_file": text, "output_file": _records(folder, part, nsp), "vocab_file": vocab_file,
                "do_lower_case": settings.do_lower_case, "max_seq_length": settings.max_seq_length, "nsp": nsp,
                "masking": "dynamic", "random_seed": settings.seed,
            }  # fmt: skip
            runs.append(Run(f"data-{part}-{_kind(nsp)}", "create_pretraining_data.py", flags))
    for cell in cells:
        runs.append(_pretraining_run(cell.pretraining, vocab_file, settings))
        runs.append(_fine_tuning_run(cell, vocab_file, settings))
    return runs


def _kind(nsp: bool) -> str:
    return "pairs" if nsp else "single"


def _records(folder: str, part: str, nsp: bool) -> str:
    return os.path.join(folder, "data", f"{part}-{_kind(nsp)}.tfrecord")


def _pretraining_run(pretraining: Pretraining, vocab_file: str, settings: Settings) -> Run:
    output_dir = os.path.join(settings.output_dir, "pretraining", pretraining.name)
    flags = {
        "input_file": _records(settings.output_dir, "train", pretraining.nsp),
        "eval_input_file": _records(settings.output_dir, "heldout", pretraining.nsp),
        "output_dir": output_dir, "vocab_file": vocab_file, "do_train": True, "do_eval": True,
        **pretraining.flags(),
        "max_seq_length": settings.max_seq_length,
        "max_predictions_per_seq": math.ceil(settings.max_seq_length * settings.masked_lm_prob),
        "masked_lm_prob": settings.masked_lm_prob if pretraining.objective == "mlm" else None,
        "train_batch_size": settings.train_batch_size, "eval_batch_size": settings.train_batch_size,
        "max_eval_steps": settings.max_eval_steps, "learning_rate": settings.learning_rate,
        "num_train_steps": settings.num_train_steps, "num_warmup_steps": settings.num_train_steps // 10,
        "keep_checkpoint_max": 1, "seed": settings.seed,
    }  # fmt: skip

    def read() -> dict:
        with open(os.path.join(output_dir, "eval_results.txt"), encoding="utf-8") as file:
            results = {key: float(value) for key, value in (line.split(" = ") for line in file)}
        kind = "next_token" if pretraining.objective == "ltr" else "masked_lm"
        return {
            "token_loss": results[f"{kind}_loss"],
            "token_accuracy": results[f"{kind}_accuracy"],
            "next_sentence_accuracy": results.get("next_sentence_accuracy"),
        }

    name = f"pretraining-{pretraining.name}"
    return Run(name, "run_pretraining.py", flags, read, settings.pretraining_flag)


def _fine_tuning_run(cell: Cell, vocab_file: str, settings: Settings) -> Run:
    output_dir = os.path.join(settings.output_dir, "fine_tuning", cell.fine_tuning_name)
    pretrained = os.path.join(settings.output_dir, "pretraining", cell.pretraining.name)
    flags = {
        "task_name": settings.task_name, "data_dir": settings.data_dir, "output_dir": output_dir,
        "vocab_file": vocab_file, "do_lower_case": settings.do_lower_case, "do_train": True, "do_eval": True,
        "init_checkpoint": None if cell.from_scratch else pretrained,
        "bert_config_file": os.path.join(pretrained, "bert_config.json") if cell.from_scratch else None,
        "lstm_on_top": True if cell.lstm_on_top else None,
        "max_seq_length": settings.max_seq_length, "train_batch_size": settings.fine_tuning_batch_size,
        "eval_batch_size": settings.fine_tuning_batch_size, "learning_rate": settings.fine_tuning_learning_rate,
        "num_train_epochs": settings.num_train_epochs, "seed": settings.seed,
        # One seed is no special case: it writes the same results file, with a mean over one.
        "num_seeds": settings.num_seeds, "write_tf_records": False, "keep_checkpoint_max": 1,
    }  # fmt: skip

    def read() -> dict:
        if settings.num_seeds > 1:
            with open(os.path.join(output_dir, "seeds.json"), encoding="utf-8") as file:
                return json.load(file)["summary"]
        with open(os.path.join(output_dir, "eval_results.txt"), encoding="utf-8") as file:
            values = {key: float(value) for key, value in (line.split(" = ") for line in file)}
        return {name: dict.fromkeys(("mean", "min", "max"), value) for name, value in values.items()}

    name = f"fine_tuning-{cell.fine_tuning_name}"
    return Run(name, "run_classifier.py", flags, read, settings.fine_tuning_flag)


# --- tables ----------------------------------------------------------------------------------------------------------

_TITLES = {
    5: "Table 5: pre-training objectives",
    6: "Table 6: model sizes",
    8: "Table 8: masking of the tokens to predict (% [MASK] / random / same)",
}
_NOTES = {
    5: "The losses of masked and left-to-right models measure different predictions: compare the last column.",
    6: "",
    8: "Each held-out loss uses the row's own kind of masks.",
}


def parameters_of(size: str, vocab_size: int) -> int:
    """The number of a model's parameters in pre-training, including heads."""
    from bert_tf.models.bert.variable_names import expected_shapes

    return sum(math.prod(shape) for shape in expected_shapes(BertConfig.from_size(size, vocab_size)).values())


def create_records(cells: Iterable[Cell], results: Mapping[str, dict], vocab_size: int) -> list[dict]:
    """The content of ablations.json: a record for each cell.

    Args:
      results: from `do_runs`.
    """
    records = []
    for cell in cells:
        config = BertConfig.from_size(cell.pretraining.bert_size, vocab_size)
        pretraining = results[f"pretraining-{cell.pretraining.name}"]
        fine_tuning = results[f"fine_tuning-{cell.fine_tuning_name}"]
        record = {
            "table": cell.table,
            "name": cell.name,
            "layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "heads": config.num_attention_heads,
            "parameters": parameters_of(cell.pretraining.bert_size, vocab_size),
            **dataclasses.asdict(cell.pretraining),
            "lstm_on_top": cell.lstm_on_top,
            "pretraining": None if cell.from_scratch else pretraining["results"],
            "pretraining_seconds": 0 if cell.from_scratch else pretraining["seconds"],  # of its last start
            "fine_tuning": fine_tuning["results"],
            "fine_tuning_seconds": fine_tuning["seconds"],
        }
        records.append(record)
    return records


def create_tables(records: Iterable[dict], metric: str, title: str) -> str:
    """The tables as Markdown.

    Args:
      records: from `create_records`. metric: of fine-tuning, e.g. "eval_accuracy". title: of the last column.
    """
    records = list(records)
    text = ""
    for table in dict.fromkeys(record["table"] for record in records):
        sizes = ["layers", "hidden", "heads", "parameters"] if table == 6 else []
        columns = ["", *sizes, "held-out loss", "perplexity", *(["next sentence, %"] if table == 5 else []), title]
        text += f"## {_TITLES[table]}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
        for record in (record for record in records if record["table"] == table):
            row = [record["name"]]
            if table == 6:
                row += [str(record[name]) for name in ("layers", "hidden_size", "heads")]
                row += [f"{record['parameters'] / 1e6:.1f} M"]
            before, after = record["pretraining"], record["fine_tuning"][metric]
            row += [f"{before['token_loss']:.3f}", f"{math.exp(before['token_loss']):.1f}"] if before else ["", ""]
            if table == 5:
                accuracy = before and before["next_sentence_accuracy"]
                row += [f"{100 * accuracy:.1f}" if accuracy is not None else ""]
            spread = f" ({100 * after['min']:.1f} to {100 * after['max']:.1f})" if after["min"] != after["max"] else ""
            row += [f"{100 * after['mean']:.1f}{spread}"]
            text += f"| {' | '.join(row)} |\n"
        text += f"\n{_NOTES[table]}\n\n" if _NOTES[table] else "\n"
    return text.rstrip() + "\n"


# --- main ------------------------------------------------------------------------------------------------------------


def define_flags() -> None:
    """Defines the flags: those of `Settings`, and the choice of cells."""
    define = flags
    define.DEFINE_string("train_text", None, "Text to pre-train on: globs separated by commas; one sentence per line.")
    define.DEFINE_string("heldout_text", None, "Text to evaluate the pre-training on, in the same form.")
    define.DEFINE_string("task_name", None, "Task of run_classifier.py to fine-tune on, e.g. MRPC.")
    define.DEFINE_string("data_dir", None, "Directory with the task's files.")
    define.DEFINE_string("output_dir", None, "Directory for all outputs. A grid found there is resumed.")
    define.DEFINE_list("tables", ["5", "6", "8"], "Tables of the paper: 5 objectives, 6 sizes, 8 masks.")
    define.DEFINE_string("bert_size", "tiny", "Size of the models in Tables 5 and 8, as in run_pretraining.py.")
    define.DEFINE_list("sizes", ["tiny", "L-4_H-128", "mini"], "Sizes of Table 6.")
    define.DEFINE_string("vocab_file", None, "A vocabulary. If unset, one is learned from --train_text.")
    define.DEFINE_integer("vocab_size", 8000, "Without --vocab_file: tokens to learn.", lower_bound=100)
    define.DEFINE_bool("do_lower_case", True, "Lower-case the text and strip accents.")
    define.DEFINE_integer("max_seq_length", 128, "Tokens per sequence, in pre-training and fine-tuning.", lower_bound=8)
    define.DEFINE_integer("num_train_steps", 10000, "Steps of each pre-training, 10% of them warm-up.", lower_bound=1)
    define.DEFINE_integer("train_batch_size", 32, "Sequences per step of pre-training.", lower_bound=1)
    define.DEFINE_float("learning_rate", 1e-4, "Peak rate of pre-training; small models need more, about 1e-3.")
    define.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens that masked LM predicts.", 0, 1)
    define.DEFINE_integer("max_eval_steps", 100, "Maximum batches of held-out text.", lower_bound=1)
    define.DEFINE_integer("fine_tuning_batch_size", 32, "Examples per step of fine-tuning.", lower_bound=1)
    define.DEFINE_float("fine_tuning_learning_rate", 5e-5, "Peak rate of fine-tuning; small models need more.")
    define.DEFINE_float("num_train_epochs", 3.0, "Passes over the task's training set.")
    define.DEFINE_integer("num_seeds", 1, "Fine-tune this many times, and report the mean.", lower_bound=1)
    define.DEFINE_integer("seed", 12345, "Seed of everything.")
    define.DEFINE_multi_string(
        "pretraining_flag", [], "A further flag of run_pretraining.py: --pretraining_flag=--dtype=bfloat16."
    )
    define.DEFINE_multi_string("fine_tuning_flag", [], "A further flag of run_classifier.py; can be repeated.")
    define.DEFINE_string(
        "metric", None, "Metric of eval_results.txt for the tables. If unset, the main metric of the GLUE task."
    )
    flags.mark_flags_as_required(["train_text", "heldout_text", "task_name", "output_dir"])


def main(_):
    values = flags.FLAGS
    logging.set_verbosity(logging.INFO)
    fields = {field.name: values[field.name].value for field in dataclasses.fields(Settings)}
    for name in ("pretraining_flag", "fine_tuning_flag"):
        fields[name] = tuple(fields[name])
    settings = Settings(**fields)
    if unknown := [table for table in values.tables if not table.isdecimal()]:
        raise ValueError(f"--tables={unknown[0]} must be numbers of the paper's tables: 5, 6, 8.")
    cells = create_grid([int(table) for table in values.tables], values.bert_size, values.sizes)
    metric = values.metric
    if not metric:
        if settings.task_name.lower() == "custom":
            metric = "eval_accuracy"
        else:
            from bert_tf.tasks.classification import glue

            metric = f"eval_{glue.find_task(settings.task_name, '').metrics[0]}"
    results = do_runs(create_runs(cells, settings), settings.output_dir)

    from bert_tf.text.vocab import load_vocab

    vocab_size = max(load_vocab(settings.vocab_file or os.path.join(settings.output_dir, "vocab.txt")).values()) + 1
    records = create_records(cells, results, vocab_size)
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
