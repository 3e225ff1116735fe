"""The stages of the demo: text, vocabulary, records, pre-training, what the model learned, loss curve."""

import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Mapping

from bert_tf.families import family_named
from bert_tf.pretraining.documents import to_text
from bert_tf.system.text_files import list_files
from bert_tf.text.tokenizer_files import Casing
from demo import report, sample_text
from demo.families import FAMILIES, FamilyPlan
from demo.folder import DemoError, lock_and_record_output_dir, run_script, write_state, write_text

# These make a small model learn in minutes. Short sequences: fewer positions to learn to attend to. Twice the usual
# 15% of masked tokens: twice as many predictions in the same time. In longer training neither pays off.
MAX_SEQ_LENGTH = 32
MASKED_LM_PROB = 0.3
MAX_PREDICTIONS = 10
_BYTES_PER_INSTANCE = 130  # of English text, at MAX_SEQ_LENGTH
_LEAST_BYTES, _FEW_BYTES = 50_000, 1_000_000
_EVAL_BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sizes of the demo: those that learn enough in two minutes on two cores. family: one of FAMILIES."""

    family: str = "bert"
    corpus_bytes: int = 4_000_000
    vocab_size: int = 4000
    hidden_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    train_batch_size: int = 32
    learning_rate: float = 1e-3
    num_train_steps: int = 2000
    num_warmup_steps: int = 100
    eval_every_steps: int = 200

    @property
    def kind(self) -> FamilyPlan:
        return FAMILIES[self.family]

    @property
    def max_seq_length(self) -> int:
        return MAX_SEQ_LENGTH * self.kind.longer_rows

    @property
    def max_predictions(self) -> int:
        return MAX_PREDICTIONS * self.kind.longer_rows

    @property
    def rows_per_step(self) -> int:
        return self.train_batch_size // self.kind.longer_rows


QUICK_PLAN = Plan(
    corpus_bytes=600_000,
    vocab_size=1500,
    hidden_size=64,
    num_attention_heads=2,
    num_train_steps=300,
    num_warmup_steps=30,
    eval_every_steps=100,
)


def run_demo(text: str, output_dir: str, plan: Plan) -> dict:
    """Runs all stages; returns the content of results.json."""
    named = list_files(text, "--text") if text else []
    files = [os.path.relpath(path) if os.path.exists(path) else path for path in named]
    sizes = [os.path.getsize(path) for path in files if os.path.exists(path)]
    settings = json.loads(json.dumps({"files": [files, sizes], "plan": dataclasses.asdict(plan)}))
    if sizes and len(sizes) == len(files) and not any(path.endswith(".gz") for path in files):
        check_size(sum(sizes), f"{len(files)} files")  # before a finished demo is replaced
    lock_and_record_output_dir(output_dir, settings)
    marks = [time.monotonic()]
    summary = {}
    stages = {title: stage for title, stage in _STAGES.items() if plan.kind.has_teacher or stage is not train_teacher}
    for number, (title, stage) in enumerate(stages.items(), start=1):
        print(f"\n=== {number} of {len(stages)}: {title} (minute {(marks[-1] - marks[0]) / 60:.1f})", flush=True)
        summary |= stage(files, plan, output_dir, summary)
        marks.append(time.monotonic())
    seconds = {title: round(end - begin, 1) for title, begin, end in zip(stages, marks, marks[1:], strict=False)}
    summary["seconds"] = seconds
    write_text(os.path.join(output_dir, "results.json"), json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    write_state(output_dir, settings, finished=True)
    print(
        f"\nDone in {(marks[-1] - marks[0]) / 60:.1f} minutes: "
        + ", ".join(f"{title} {value:.0f} s" for title, value in seconds.items())
    )
    return summary


def check_size(size: int, source: str, documents: int = 2) -> None:
    if size < _LEAST_BYTES or documents < 2:
        raise DemoError(
            f"There is too little text in {source}: {size:,} bytes. At least {_LEAST_BYTES:,} are needed (some thirty "
            f"pages), and {_FEW_BYTES:,} for a model to learn anything of interest."
        )


# --- stages ----------------------------------------------------------------------------------------------------------
# Each stage takes (files of --text, plan, output folder, summary so far) and returns its addition to the summary.


def make_text(files: list[str], plan: Plan, folder: str, summary: dict) -> dict:
    """Writes train.txt and heldout.txt; returns a description of them as `corpus`."""
    if not _is_done(folder, "corpus.json"):
        facts = make_corpus(files, plan, os.path.join(folder, "train.txt"), os.path.join(folder, "heldout.txt"))
        write_text(os.path.join(folder, "corpus.json"), json.dumps(facts, indent=2) + "\n")
    return {"corpus": _read_json(folder, "corpus.json")}


def make_corpus(files: list[str], plan: Plan, train_file: str, heldout_file: str) -> dict:
    """Writes training and held-out text; returns its `bytes`, `documents`, `sentences` and `needs_accents`."""
    source = f"{len(files)} files" if files else "the docstrings of the installed Python packages"
    read = functools.partial(sample_text.text_documents, files) if files else sample_text.docstring_documents
    documents = read(max_bytes=plan.corpus_bytes)
    text = to_text(documents)
    size = len(text.encode())
    check_size(size, source, len(documents))
    if size < _FEW_BYTES:
        print(f"Only {size:,} bytes of text: don't expect much. It gets interesting from about {_FEW_BYTES:,} on.")
    training, heldout = sample_text.split_held_out(documents)
    write_text(heldout_file, to_text(heldout))
    write_text(train_file, to_text(training))
    facts = {
        "bytes": size,
        "documents": len(documents),
        "heldout_documents": len(heldout),
        "sentences": sum(map(len, documents)),
        "needs_accents": sample_text.needs_accents(text),
    }
    print(
        f"{size / 1e6:.1f} MB from {source}: {facts['sentences']:,} sentences in {len(documents):,} documents, "
        f"of which {len(heldout):,} are held out."
    )
    return facts


def make_vocabulary(files: list[str], plan: Plan, folder: str, summary: dict) -> dict:
    """The vocabulary, by create_vocab.py."""
    if not _is_done(folder, plan.kind.vocabulary):
        further = dict(plan.kind.vocabulary_flags)
        if "kind" not in further:
            # For Chinese: the most frequent characters.
            further = {"max_characters": plan.vocab_size // 2, **_accents(plan, summary)}
        run_script(
            "create_vocab.py",
            input_file=os.path.join(folder, "train.txt"),
            output_file=os.path.join(folder, plan.kind.vocabulary),
            vocab_size=plan.vocab_size,
            **further,
        )
    return {}


def make_records(files: list[str], plan: Plan, folder: str, summary: dict) -> dict:
    """train.tfrecord and heldout.tfrecord, by create_pretraining_data.py."""
    for name in ("train", "heldout"):
        if not _is_done(folder, f"{name}.tfrecord"):
            run_script(
                "create_pretraining_data.py",
                input_file=os.path.join(folder, f"{name}.txt"),
                output_file=os.path.join(folder, f"{name}.tfrecord"),
                vocab_file=os.path.join(folder, plan.kind.vocabulary),
                max_seq_length=plan.max_seq_length,
                **plan.kind.record_flags,
                **({} if plan.kind.is_unmasked else _masks(plan, summary, name)),
                **_accents(plan, summary),
            )
    return {}


def _masks(plan: Plan, summary: dict, name: str) -> dict:
    """The flags for records that hold masks: for training as many passes as it needs, so that each step sees others."""
    examples = plan.num_train_steps * plan.train_batch_size
    passes = min(20, math.ceil(examples * _BYTES_PER_INSTANCE / summary["corpus"]["bytes"]))
    times = passes if name == "train" else 1
    return {"max_predictions_per_seq": plan.max_predictions, "masked_lm_prob": MASKED_LM_PROB, "dupe_factor": times}


def train_teacher(files: list[str], plan: Plan, folder: str, summary: dict) -> dict:
    """teacher/, a BERT, by run_pretraining.py; returns its results on held-out text."""
    return {"teacher": _pretrain(plan, folder, "bert", "teacher", {}, {"nsp": False})}


def pretrain(files: list[str], plan: Plan, folder: str, summary: dict) -> dict:
    """model/, by run_pretraining.py; returns the results on held-out text."""
    flags = dict(plan.kind.training_flags)
    if plan.kind.has_teacher:
        # Every other layer of the teacher.
        kept = range(0, plan.num_hidden_layers, 2)
        flags = {"teacher": os.path.join(folder, "teacher"), "student_layers": ",".join(map(str, kept))}
    return {"heldout": _pretrain(plan, folder, plan.family, "model", plan.kind.config, flags)}


def _pretrain(plan: Plan, folder: str, family: str, name: str, keys: Mapping, flags: Mapping) -> dict[str, float]:
    """A model of a family in the directory `name`, by run_pretraining.py; returns its results.

    keys: further keys of the configuration, by BERT's names. flags: further flags.
    """
    kind = family_named(family)
    vocab_file = os.path.join(folder, plan.kind.vocabulary)
    values = {
        "vocab_size": len(kind.tokenizer_class.from_file(vocab_file, Casing()).vocab),
        "hidden_size": plan.hidden_size,
        "num_hidden_layers": plan.num_hidden_layers,
        "num_attention_heads": plan.num_attention_heads,
        "intermediate_size": 4 * plan.hidden_size,
        # A small model that sees each example once has nothing to overfit.
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        # BERT-Base's 0.02, scaled to the width. With 0.02 such a small model long predicts nothing but frequencies.
        "initializer_range": round(0.02 * math.sqrt(768 / plan.hidden_size), 3),
        **({"type_vocab_size": 2} if family == "bert" else {}),
        **keys,
    }
    if "student_layers" not in flags:  # else it is the teacher's, with these layers
        flags = {"bert_config_file": os.path.join(folder, kind.config_class.file_name), **flags}
        config = kind.config_class.from_dict(values)
        config.max_position_embeddings = plan.max_seq_length + config.first_position
        config.save(flags["bert_config_file"])
    dynamic = {"vocab_file": vocab_file, "masked_lm_prob": MASKED_LM_PROB} if plan.kind.is_unmasked else {}
    steps = int(plan.kind.share * plan.num_train_steps)
    heldout_instances = _read_json(folder, "pretraining_data.heldout.json")["instances"]
    run_script(
        "run_pretraining.py",
        input_file=os.path.join(folder, "train.tfrecord"),
        eval_input_file=os.path.join(folder, "heldout.tfrecord"),
        output_dir=os.path.join(folder, name),
        do_train=True,
        do_eval=True,
        max_seq_length=plan.max_seq_length,
        max_predictions_per_seq=plan.max_predictions,
        train_batch_size=plan.rows_per_step,
        eval_batch_size=_EVAL_BATCH_SIZE,
        max_eval_steps=math.ceil(heldout_instances / _EVAL_BATCH_SIZE),
        learning_rate=plan.learning_rate,
        num_train_steps=steps,
        num_warmup_steps=plan.num_warmup_steps,
        eval_every_steps=plan.eval_every_steps,
        log_every_steps=plan.eval_every_steps // 2,
        save_checkpoints_steps=plan.eval_every_steps,
        **dynamic,
        **flags,
    )
    with open(os.path.join(folder, name, "eval_results.txt"), encoding="utf-8") as file:
        return {key.strip(): float(value) for key, value in (line.split("=") for line in file)}


def say_what_it_learned(files: list[str], plan: Plan, folder: str, summary: dict) -> dict:
    """Prints the results compared with guessing by frequency, and fills masks in held-out sentences."""
    from bert_tf.store.open import read_tokenizer

    model = os.path.join(folder, "model", plan.kind.trained)
    tokenizer = read_tokenizer(model)
    records = [os.path.join(folder, f"{name}.tfrecord") for name in ("train", "heldout")]
    baselines = report.frequency_baselines(*records, tokenizer, plan.max_seq_length, plan.max_predictions)
    most_frequent = tokenizer.spell(tokenizer.inv_vocab[baselines.pop("most_frequent_id")])
    heldout_instances = _read_json(folder, "pretraining_data.heldout.json")["instances"]
    print(f"On {heldout_instances:,} examples from documents it has never seen:")
    print(report.results_table(summary["heldout"], baselines, most_frequent))
    if teacher := summary.get("teacher"):
        loss, accuracy = teacher["masked_lm_loss"], teacher["masked_lm_accuracy"]
        print(f"  Its teacher, with twice the layers: masked LM loss {loss:.3f}, accuracy {accuracy:.1%}.")
    print()
    rows = report.fill_questions(folder, model, tokenizer, with_fixed=not files)
    print(report.guesses_table(rows), flush=True)
    results = {"baselines": baselines, "fill_mask": rows}
    if plan.family == "electra":
        results["replaced"] = report.find_replaced(os.path.join(folder, "model", "discriminator"), tokenizer, rows)
        print("\nThe discriminator, on the same sentences with another word there:\n")
        print(report.replaced_table(results["replaced"]), flush=True)
    return results


def draw_loss_curve(files: list[str], plan: Plan, folder: str, summary: dict) -> dict:
    """loss_curve.png."""
    from bert_tf.training.plots import plot_training_log

    picture, model = os.path.join(folder, "loss_curve.png"), os.path.join(folder, "model")
    plot_training_log(
        os.path.join(model, "train_log.jsonl"),
        picture,
        {name: ("without a model", value) for name, value in summary["baselines"].items()},
    )
    print(f"{picture} shows the loss curve; so does TensorBoard: tensorboard --logdir {model}")
    return {}


_STAGES = {
    "text": make_text,
    "vocabulary": make_vocabulary,
    "training records": make_records,
    "teacher": train_teacher,
    "pre-training": pretrain,
    "what it learned": say_what_it_learned,
    "loss curve": draw_loss_curve,
}


def _accents(plan: Plan, summary: dict) -> dict:
    """The flag that keeps accents, for languages that need them; only word pieces can be without."""
    needed = summary["corpus"]["needs_accents"] and plan.kind.vocabulary == "vocab.txt"
    return {"strip_accents": False} if needed else {}


def _is_done(folder: str, name: str) -> bool:
    path = os.path.join(folder, name)
    if os.path.exists(path):
        print(f"{path} already exists.")
        return True
    return False


def _read_json(folder: str, name: str) -> dict:
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return json.load(file)
