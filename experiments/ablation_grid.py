"""The cells of the ablations, and the runs of the scripts that they need."""

import dataclasses
import math
import os
from collections.abc import Iterable

from bert_tf.families import config_of_size
from bert_tf.text.tokenizer_files import load_vocab
from experiments.script_runs import Run, results_in, scores_in

# Table 8: how the tokens to predict are replaced, as mask_rate, random_rate, keep_rate.
MASK_STRATEGIES = ((0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.8, 0.2, 0.0), (0.8, 0.0, 0.2), (0.0, 0.8, 0.2), (0.0, 1.0, 0.0))


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """How a cell's model is pre-trained; all fields but the size are flags of run_pretraining.py."""

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
        values = {name: value for name, value in dataclasses.asdict(self).items() if name != "bert_size"}
        if self.objective == "ltr":
            values = {name: value for name, value in values.items() if not name.endswith("_rate")}
        return values


@dataclasses.dataclass(frozen=True)
class Cell:
    """A row of a table.

    Attributes:
      table: 5, 6 or 8, as in the paper. name: the row's name there.
      pretraining: how the model is pre-trained. from_scratch: fine-tune its size from random weights instead.
    """

    table: int
    name: str
    pretraining: Pretraining
    from_scratch: bool = False

    @property
    def fine_tuning_name(self) -> str:
        """A name for files; equal cells have the same."""
        return f"{self.pretraining.bert_size}-from_scratch" if self.from_scratch else self.pretraining.name


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
    chosen = [cell for table in tables for cell in cells[table]]
    for cell in chosen:
        config_of_size(cell.pretraining.bert_size)  # raises for an unknown one
    return chosen


# --- runs ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings that all cells share; the fields are the flags of experiments/ablations.py."""

    train_text: str
    heldout_text: str
    task_name: str
    data_dir: str | None
    output_dir: str
    vocab_file: str | None
    vocab_size: int
    do_lower_case: bool
    initializer_range: float
    dropout: float
    max_seq_length: int
    num_train_steps: int
    train_batch_size: int
    learning_rate: float
    masked_lm_prob: float
    max_eval_steps: int
    fine_tuning_batch_size: int
    fine_tuning_learning_rate: float
    num_train_epochs: float
    num_pretraining_seeds: int
    num_seeds: int
    seed: int
    squad_train_file: str | None = None
    squad_dev_file: str | None = None
    pretraining_flag: tuple[str, ...] = ()
    fine_tuning_flag: tuple[str, ...] = ()
    squad_flag: tuple[str, ...] = ()

    @property
    def vocabulary(self) -> str:
        """The vocabulary of all cells: given, or learned from the text."""
        return self.vocab_file or os.path.join(self.output_dir, "vocab.txt")

    def configuration_file(self, bert_size: str) -> str:
        """The bert_config.json of a size; other values have another name, so that no finished run is taken for them."""
        values = f"initializer_{self.initializer_range:g}-dropout_{self.dropout:g}"
        return os.path.join(self.output_dir, "configurations", f"{bert_size}-{values}.json")


def repetitions(settings: Settings) -> list[str]:
    """Names of the repetitions of each cell: one for each seed of pre-training."""
    return [f"seed_{settings.seed + number}" for number in range(settings.num_pretraining_seeds)]


def count_tokens(settings: Settings) -> int:
    """The vocabulary's size."""
    return max(load_vocab(settings.vocabulary).values()) + 1


def write_configurations(cells: Iterable[Cell], settings: Settings) -> None:
    """Writes the bert_config.json of every size; needs the vocabulary."""
    import tensorflow as tf

    vocab_size = count_tokens(settings)
    for size in {cell.pretraining.bert_size for cell in cells}:
        config = config_of_size(size, vocab_size)
        config.initializer_range = settings.initializer_range
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = settings.dropout
        path = settings.configuration_file(size)
        tf.io.gfile.makedirs(os.path.dirname(path))
        config.save(path)


def create_vocabulary_runs(settings: Settings) -> list[Run]:
    """The run that learns the vocabulary; none if it is given."""
    if settings.vocab_file:
        return []
    flags = {
        "input_file": settings.train_text, "output_file": settings.vocabulary, "vocab_size": settings.vocab_size,
        "do_lower_case": settings.do_lower_case,
    }  # fmt: skip
    return [Run("vocabulary", "create_vocab.py", flags)]


def create_runs(cells: Iterable[Cell], settings: Settings) -> list[Run]:
    """The runs that the cells need after vocabulary and configurations, each after those it depends on.

    All cells come once before any is repeated with another seed. A run may occur twice.
    """
    cells = list(cells)
    runs = []
    for nsp in sorted({cell.pretraining.nsp for cell in cells}):
        for part, text in (("train", settings.train_text), ("heldout", settings.heldout_text)):
            flags = {
                "input_file": text, "output_file": _records(settings.output_dir, part, nsp),
                "vocab_file": settings.vocabulary, "do_lower_case": settings.do_lower_case,
                "max_seq_length": settings.max_seq_length, "nsp": nsp, "masking": "dynamic",
                "random_seed": settings.seed,
            }  # fmt: skip
            runs.append(Run(f"data-{part}-{_kind(nsp)}", "create_pretraining_data.py", flags))
    for number in range(settings.num_pretraining_seeds):
        for cell in cells:
            if not cell.from_scratch:
                runs.append(_pretraining_run(cell.pretraining, number, settings))
            runs.append(_fine_tuning_run(cell, number, settings))
            if cell.table == 5 and settings.squad_train_file:
                runs.append(_squad_run(cell, number, settings))
    return runs


def _kind(nsp: bool) -> str:
    return "pairs" if nsp else "single"


def _records(folder: str, part: str, nsp: bool) -> str:
    return os.path.join(folder, "data", f"{part}-{_kind(nsp)}.tfrecord")


def _pretraining_run(pretraining: Pretraining, number: int, settings: Settings) -> Run:
    name = f"{pretraining.name}-{repetitions(settings)[number]}"
    output_dir = os.path.join(settings.output_dir, "pretraining", name)
    flags = {
        "input_file": _records(settings.output_dir, "train", pretraining.nsp),
        "eval_input_file": _records(settings.output_dir, "heldout", pretraining.nsp),
        "output_dir": output_dir, "vocab_file": settings.vocabulary, "do_train": True, "do_eval": True,
        "bert_config_file": settings.configuration_file(pretraining.bert_size), **pretraining.flags(),
        "max_seq_length": settings.max_seq_length,
        "max_predictions_per_seq": math.ceil(settings.max_seq_length * settings.masked_lm_prob),
        "masked_lm_prob": settings.masked_lm_prob if pretraining.objective == "mlm" else None,
        "train_batch_size": settings.train_batch_size, "eval_batch_size": settings.train_batch_size,
        "max_eval_steps": settings.max_eval_steps, "learning_rate": settings.learning_rate,
        "num_train_steps": settings.num_train_steps, "num_warmup_steps": settings.num_train_steps // 10,
        "keep_checkpoint_max": 1, "seed": settings.seed + number,
    }  # fmt: skip

    def read() -> dict:
        results = results_in(output_dir)
        kind = "next_token" if pretraining.objective == "ltr" else "masked_lm"
        return {
            "token_loss": results[f"{kind}_loss"],
            "token_accuracy": results[f"{kind}_accuracy"],
            "next_sentence_accuracy": results.get("next_sentence_accuracy"),
        }

    return Run(f"pretraining-{name}", "run_pretraining.py", flags, read, settings.pretraining_flag)


def _shared_flags(cell: Cell, number: int, settings: Settings) -> dict:
    """Flags of both scripts of fine-tuning; no two trainings of a cell have the same seed."""
    pretrained = os.path.join(
        settings.output_dir, "pretraining", f"{cell.pretraining.name}-{repetitions(settings)[number]}"
    )
    configuration = settings.configuration_file(cell.pretraining.bert_size)
    return {
        "vocab_file": settings.vocabulary, "do_lower_case": settings.do_lower_case, "do_train": True,
        "init_checkpoint": None if cell.from_scratch else pretrained,
        "bert_config_file": configuration if cell.from_scratch else None,
        "max_seq_length": settings.max_seq_length, "train_batch_size": settings.fine_tuning_batch_size,
        "learning_rate": settings.fine_tuning_learning_rate, "num_train_epochs": settings.num_train_epochs,
        "num_seeds": settings.num_seeds, "seed": settings.seed + number * settings.num_seeds,
        "write_tf_records": False, "keep_checkpoint_max": 1,
    }  # fmt: skip


def _fine_tuning_run(cell: Cell, number: int, settings: Settings) -> Run:
    name = f"{cell.fine_tuning_name}-{repetitions(settings)[number]}"
    output_dir = os.path.join(settings.output_dir, "fine_tuning", name)
    flags = {
        "task_name": settings.task_name, "data_dir": settings.data_dir, "output_dir": output_dir, "do_eval": True,
        **_shared_flags(cell, number, settings), "eval_batch_size": settings.fine_tuning_batch_size,
    }  # fmt: skip
    return Run(
        f"fine_tuning-{name}", "run_classifier.py", flags, lambda: scores_in(output_dir), settings.fine_tuning_flag
    )


def _squad_run(cell: Cell, number: int, settings: Settings) -> Run:
    name = f"{cell.fine_tuning_name}-{repetitions(settings)[number]}"
    output_dir = os.path.join(settings.output_dir, "squad", name)
    flags = {
        "train_file": settings.squad_train_file, "dev_file": settings.squad_dev_file, "output_dir": output_dir,
        "do_eval": True, **_shared_flags(cell, number, settings),
    }  # fmt: skip
    return Run(f"squad-{name}", "run_squad.py", flags, lambda: scores_in(output_dir), settings.squad_flag)
