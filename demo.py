"""The main job from end to end on two CPU cores, in under ten minutes: text in, a pre-trained BERT out.

    python -m demo                              # the English documentation inside the installed Python packages
    python -m demo --text='my_texts/*.txt'      # your text, in any language

It runs create_vocab.py, create_pretraining_data.py and run_pretraining.py as you would, printing each command before it
runs. Then it compares the model with guessing by frequency, fills [MASK] in a few sentences and draws the loss curve.
Everything is in --output_dir: train.txt and heldout.txt, vocab.txt, *.tfrecord, model/, loss_curve.png, results.json.
"""

import collections
import dataclasses
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

from absl import flags, logging

from bert_tf import script_flags

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "text",
    "",
    "Your text: UTF-8 files, a comma-separated list of globs. If empty, the documentation in Python packages.",
)
flags.DEFINE_string("output_dir", "demo_output", "Where everything goes. An earlier demo's output there is replaced.")
flags.DEFINE_bool("quick", False, "About a minute, to check that all works: the model learns little in that time.")

# What makes a small model learn in minutes. Short sequences: fewer positions to learn to attend to. Twice the usual
# 15% of masked tokens: twice as many examples of guessing in the same time. In longer training neither pays.
MAX_SEQ_LENGTH = 32
MASKED_LM_PROB = 0.3
MAX_PREDICTIONS = 10
_BYTES_PER_INSTANCE = 130  # of English text, at MAX_SEQ_LENGTH
_LEAST_BYTES, _FEW_BYTES = 50_000, 1_000_000
_EVAL_BATCH_SIZE = 64

FIXED_SENTENCES = [
    "Return the [MASK] of the list.",
    "If [MASK] is None, the default value is used.",
    "This function is deprecated and will be [MASK] in a future version.",
    "Raises an [MASK] if the argument is not valid.",
    "The number of [MASK] in the array.",
    "Returns [MASK] if the file exists.",
]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sizes of the demo: of what was tried, what learned most in four minutes on two cores."""

    corpus_bytes: int = 8_000_000
    vocab_size: int = 4000
    hidden_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    train_batch_size: int = 32
    learning_rate: float = 1e-3
    num_train_steps: int = 6000
    num_warmup_steps: int = 300
    eval_every_steps: int = 500


QUICK_PLAN = Plan(
    corpus_bytes=600_000,
    vocab_size=1500,
    hidden_size=64,
    num_attention_heads=2,
    num_train_steps=300,
    num_warmup_steps=30,
    eval_every_steps=100,
)


class DemoError(Exception):
    """What the user has to be told, without a traceback."""


# --- the output folder and the scripts -------------------------------------------------------------------------------


def claim_output_dir(output_dir: str, settings: dict) -> None:
    """Prepares the folder and says what becomes of what is in it.

    A demo that was interrupted goes on if text and sizes are the same; any other is replaced.

    Raises:
      DemoError: the folder holds something else than a demo.
    """
    state_file = os.path.join(output_dir, "demo.json")
    if os.path.isdir(output_dir) and os.listdir(output_dir):
        if not os.path.exists(state_file):
            raise DemoError(f"{output_dir} holds files, but no demo. Choose another folder with --output_dir.")
        with open(state_file, encoding="utf-8") as file:
            state = json.load(file)
        if state["settings"] == settings and not state["finished"]:
            print(f"Going on with the demo in {output_dir} that was interrupted.")
            return
        why = "a finished demo" if state["finished"] else "a demo with other text or sizes"
        print(f"{output_dir} holds {why}: starting over, it is replaced.")
        for entry in os.scandir(output_dir):
            # The state file stays until the end, so that a folder half emptied is still known as ours.
            if entry.name != "demo.json":
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.remove(entry.path)
    else:
        print(f"Everything goes to {output_dir}.")
    os.makedirs(output_dir, exist_ok=True)
    write_state(output_dir, settings, finished=False)


def write_state(output_dir: str, settings: dict | None, finished: bool) -> None:
    """Notes in the folder which demo it holds, and whether it came to its end."""
    write_text(os.path.join(output_dir, "demo.json"), json.dumps({"settings": settings, "finished": finished}) + "\n")


def write_text(path: str, text: str) -> None:
    """Writes a local file whole or not at all."""
    with open(path + ".tmp", "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def run_script(script: str, **script_flags) -> None:
    """Runs a script of this project with flags, showing the command; its output and progress bars go to the terminal.

    Raises:
      DemoError: it failed.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    command = [sys.executable, os.path.join(folder, script)]
    command += [f"--{name}={value}" for name, value in script_flags.items()]
    shown = [shlex.quote(_short_path(part)) for part in command[:2]] + [shlex.quote(part) for part in command[2:]]
    print("$ " + " ".join(shown[:2]) + "".join(f" \\\n    {part}" for part in shown[2:]), flush=True)
    returncode = subprocess.call(command)
    if returncode:
        raise DemoError(f"{script} failed (exit code {returncode}); its own message is above.")


def _short_path(path: str) -> str:
    return min(path, os.path.relpath(path), key=len)


# --- stages ----------------------------------------------------------------------------------------------------------


def make_corpus(files: list[str], plan: Plan, train_file: str, heldout_file: str) -> dict:
    """Writes training and held-out text; returns what was found (`bytes`, `documents`, `sentences`, `needs_accents`).

    Raises:
      DemoError: there is too little text.
    """
    from bert_tf import corpus

    if files:
        documents = corpus.text_documents(files, plan.corpus_bytes)
        source = f"{len(files)} files"
    else:
        documents = corpus.docstring_documents(plan.corpus_bytes)
        source = "the docstrings of the installed Python packages"
    text = corpus.to_text(documents)
    size = len(text.encode())
    if size < _LEAST_BYTES or len(documents) < 2:
        raise DemoError(
            f"There is too little text in {source}: {size:,} bytes. At least {_LEAST_BYTES:,} are needed (some thirty "
            f"pages), and {_FEW_BYTES:,} before a model learns anything of interest."
        )
    if size < _FEW_BYTES:
        print(f"Only {size:,} bytes of text: don't expect much. From some {_FEW_BYTES:,} on it gets interesting.")
    training, heldout = corpus.split_held_out(documents)
    write_text(heldout_file, corpus.to_text(heldout))
    write_text(train_file, corpus.to_text(training))
    found = {
        "bytes": size,
        "documents": len(documents),
        "heldout_documents": len(heldout),
        "sentences": sum(map(len, documents)),
        "needs_accents": corpus.needs_accents(text),
    }
    print(
        f"{size / 1e6:.1f} MB from {source}: {found['sentences']:,} sentences in {len(documents):,} documents, "
        f"of which {len(heldout):,} are held out."
    )
    return found


def frequency_baselines(train_records: str, heldout_records: str, vocab_size: int) -> dict:
    """What guessing by frequency alone reaches on the held-out records, for comparison with a model.

    Returns:
      `masked_lm_loss`: of the distribution of the training targets, one added to each count; nats.
      `masked_lm_accuracy`: of always guessing the most frequent target, whose id is `most_frequent_id`.
      `next_sentence_accuracy`: of always giving the more frequent answer.
    """
    import numpy as np
    import tensorflow as tf

    from bert_tf.records import pretraining_features

    features = pretraining_features(MAX_SEQ_LENGTH, MAX_PREDICTIONS)
    features = {name: features[name] for name in ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels")}

    def target_counts(path):
        counts, next_counts = np.zeros(vocab_size), np.zeros(2)
        for batch in tf.data.TFRecordDataset(path).batch(1024).as_numpy_iterator():
            parsed = {name: value.numpy() for name, value in tf.io.parse_example(batch, features).items()}
            ids = parsed["masked_lm_ids"][parsed["masked_lm_weights"] > 0]
            counts += np.bincount(ids, minlength=vocab_size)
            next_counts += np.bincount(parsed["next_sentence_labels"][:, 0], minlength=2)
        return counts, next_counts

    train_counts, _ = target_counts(train_records)
    counts, next_counts = target_counts(heldout_records)
    log_probabilities = np.log((train_counts + 1) / (train_counts + 1).sum())
    return {
        "masked_lm_loss": float(-(counts * log_probabilities).sum() / counts.sum()),
        "masked_lm_accuracy": float(counts[train_counts.argmax()] / counts.sum()),
        "next_sentence_accuracy": float(next_counts.max() / next_counts.sum()),
        "most_frequent_id": int(train_counts.argmax()),
    }


def heldout_questions(train_file: str, heldout_file: str, tokenizer, count: int = 8) -> list[tuple[str, str]]:
    """(text with a [MASK], the word that stood there) for sentences of different held-out documents.

    The choice knows nothing of the model: documents at equal distances, in each the first sentence of a fitting length,
    and there the middle one of the words that are frequent in training without being the most frequent.
    """
    with open(train_file, encoding="utf-8") as file:
        frequencies = collections.Counter(
            piece for line in file.read(1_500_000).splitlines() for piece in tokenizer.tokenize(line)
        )
    frequent = {piece for piece, _ in frequencies.most_common(400)[15:]}
    with open(heldout_file, encoding="utf-8") as file:
        documents = [document.splitlines() for document in file.read().split("\n\n")]
    questions = []
    for document in documents:
        for sentence in document:
            if not 7 <= len(tokenizer.tokenize(sentence)) <= 25:
                continue
            # Words; one by one the characters of Chinese, which the tokenizer sets apart too.
            words = [
                match
                for match in re.finditer(r"[\u3400-\u9fff]|[^\W\d_]+", sentence)
                if len(pieces := tokenizer.tokenize(match[0])) == 1 and pieces[0] in frequent
            ]
            if words:
                word = words[len(words) // 2]
                questions.append((f"{sentence[: word.start()]}[MASK]{sentence[word.end() :]}", word[0]))
                break
    step = max(1, len(questions) // count)
    return questions[::step][:count]


def guesses_table(rows: list[dict]) -> str:
    """Rows {"text", "answer" or None, "guesses": [(token, probability)]} as an aligned table."""
    lines = []
    for row in rows:
        start = row["text"].index("[MASK]")
        before, after = row["text"][:start], row["text"][start + len("[MASK]") :]
        before = before if len(before) <= 40 else "..." + before[-37:]
        after = after if len(after) <= 40 else after[:37] + "..."
        guesses = "  ".join(f"{token} {probability:.0%}" for token, probability in row["guesses"])
        lines.append((f"{before}[MASK]{after}", row["answer"] or "", guesses))
    titles = ("sentence", "was", "guesses")
    widths = [max(len(line[column]) for line in (titles, *lines)) for column in range(2)]
    return "\n".join(
        f"  {text:<{widths[0]}}  {answer:<{widths[1]}}  {guesses}".rstrip()
        for text, answer, guesses in (titles, tuple("-" * width for width in (*widths, len(titles[2]))), *lines)
    )


def results_table(results: dict, baselines: dict, most_frequent: str) -> str:
    """The held-out numbers beside those of guessing by frequency."""
    rows = [
        ("masked LM loss", "masked_lm_loss", "{:.3f}", "frequencies of the training text"),
        ("masked LM accuracy", "masked_lm_accuracy", "{:.1%}", f'always "{most_frequent}"'),
        ("next sentence accuracy", "next_sentence_accuracy", "{:.1%}", "always the same answer"),
    ]
    lines = [f"  {'':<24}{'model':>8}  {'without a model':>16}"]
    for title, name, form, note in rows:
        lines.append(f"  {title:<24}{form.format(results[name]):>8}  {form.format(baselines[name]):>16}   {note}")
    return "\n".join(lines)


def read_eval_results(path: str) -> dict[str, float]:
    """The `key = value` lines of an eval_results.txt."""
    with open(path, encoding="utf-8") as file:
        return {key.strip(): float(value) for key, value in (line.split("=") for line in file)}


# --- the demo --------------------------------------------------------------------------------------------------------


def run_demo(text: str, output_dir: str, plan: Plan) -> dict:
    """Runs everything; returns what it also writes to results.json.

    Raises:
      DemoError: with what to tell the user.
      ValueError: --text matches no file, or a file is not UTF-8.
    """
    files = []
    if text:
        from bert_tf.text_files import list_files

        files = [os.path.relpath(path) if os.path.exists(path) else path for path in list_files(text, "--text")]
    sizes = [os.path.getsize(path) for path in files if os.path.exists(path)]
    settings = json.loads(json.dumps({"files": [files, sizes], "plan": dataclasses.asdict(plan)}))
    claim_output_dir(output_dir, settings)

    def path(name):
        return os.path.join(output_dir, name)

    seconds = {}
    started = time.monotonic()

    def stage(number, title):
        print(f"\n=== {number} of 6: {title} (minute {(time.monotonic() - started) / 60:.1f})", flush=True)
        seconds[title] = time.monotonic()

    def is_done(name):
        if os.path.exists(path(name)):
            print(f"{path(name)} is there already.")
            return True
        return False

    stage(1, "text")
    if not is_done("corpus.json"):
        found = make_corpus(files, plan, path("train.txt"), path("heldout.txt"))
        write_text(path("corpus.json"), json.dumps(found, indent=2) + "\n")
    with open(path("corpus.json"), encoding="utf-8") as file:
        found = json.load(file)
    accents = {"strip_accents": False} if found["needs_accents"] else {}

    stage(2, "vocabulary")
    if not is_done("vocab.txt"):
        run_script(
            "create_vocab.py",
            input_file=path("train.txt"),
            output_file=path("vocab.txt"),
            vocab_size=plan.vocab_size,
            max_characters=plan.vocab_size // 2,  # of Chinese, the frequent ones
            **accents,
        )

    stage(3, "training records")
    # As often over the text as the training will take examples, so that each step sees masks of its own.
    examples = plan.num_train_steps * plan.train_batch_size
    dupe_factor = min(20, math.ceil(examples * _BYTES_PER_INSTANCE / found["bytes"]))
    for name, times in (("train", dupe_factor), ("heldout", 1)):
        if not is_done(f"{name}.tfrecord"):
            run_script(
                "create_pretraining_data.py",
                input_file=path(f"{name}.txt"),
                output_file=path(f"{name}.tfrecord"),
                vocab_file=path("vocab.txt"),
                max_seq_length=MAX_SEQ_LENGTH,
                max_predictions_per_seq=MAX_PREDICTIONS,
                masked_lm_prob=MASKED_LM_PROB,
                dupe_factor=times,
                **accents,
            )

    stage(4, "pre-training")
    from bert_tf.tokenization import FullTokenizer

    tokenizer = FullTokenizer(path("vocab.txt"), strip_accents=accents.get("strip_accents"))
    config = {
        "vocab_size": len(tokenizer.vocab),
        "hidden_size": plan.hidden_size,
        "num_hidden_layers": plan.num_hidden_layers,
        "num_attention_heads": plan.num_attention_heads,
        "intermediate_size": 4 * plan.hidden_size,
        "hidden_act": "gelu",
        # A small model that sees each example once has nothing to overfit.
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": MAX_SEQ_LENGTH,
        "type_vocab_size": 2,
        # BERT-Base's 0.02, scaled to the width. With 0.02 such a small model long stays at the words' frequencies.
        "initializer_range": round(0.02 * math.sqrt(768 / plan.hidden_size), 3),
    }
    write_text(path("bert_config.json"), json.dumps(config, indent=2) + "\n")
    with open(path("pretraining_data.heldout.json"), encoding="utf-8") as file:
        heldout_instances = json.load(file)["instances"]
    run_script(
        "run_pretraining.py",
        input_file=path("train.tfrecord"),
        eval_input_file=path("heldout.tfrecord"),
        output_dir=path("model"),
        bert_config_file=path("bert_config.json"),
        do_train=True,
        do_eval=True,
        max_seq_length=MAX_SEQ_LENGTH,
        max_predictions_per_seq=MAX_PREDICTIONS,
        train_batch_size=plan.train_batch_size,
        eval_batch_size=_EVAL_BATCH_SIZE,
        max_eval_steps=math.ceil(heldout_instances / _EVAL_BATCH_SIZE),
        learning_rate=plan.learning_rate,
        num_train_steps=plan.num_train_steps,
        num_warmup_steps=plan.num_warmup_steps,
        eval_every_steps=plan.eval_every_steps,
        log_every_steps=plan.eval_every_steps // 2,
        save_checkpoints_steps=plan.eval_every_steps,
    )

    stage(5, "what it learned")
    results = read_eval_results(path("model/eval_results.txt"))
    baselines = frequency_baselines(path("train.tfrecord"), path("heldout.tfrecord"), len(tokenizer.vocab))
    most_frequent = tokenizer.inv_vocab[baselines.pop("most_frequent_id")]
    print(f"On {heldout_instances:,} examples of documents it has never seen:")
    print(results_table(results, baselines, most_frequent) + "\n")
    rows = fill_questions(path, tokenizer, with_fixed=not files)
    print(guesses_table(rows), flush=True)

    stage(6, "loss curve")
    from bert_tf.plots import plot_training_log

    plot_training_log(
        path("model/train_log.jsonl"),
        path("loss_curve.png"),
        {name: ("without a model", value) for name, value in baselines.items()},
    )
    total = time.monotonic() - started
    marks = [*seconds.values(), time.monotonic()]
    seconds = {title: round(end - begin, 1) for title, begin, end in zip(seconds, marks, marks[1:], strict=False)}
    summary = {
        "corpus": found,
        "heldout": results,
        "baselines": baselines,
        "fill_mask": rows,
        "seconds": seconds,
    }
    write_text(path("results.json"), json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    write_state(output_dir, settings, finished=True)
    print(f"{path('loss_curve.png')} shows how it went; TensorBoard, too: tensorboard --logdir {path('model')}")
    print(
        f"\nDone in {total / 60:.1f} minutes: "
        + ", ".join(f"{title} {value:.0f} s" for title, value in seconds.items())
    )
    return summary


def fill_questions(path, tokenizer, with_fixed: bool) -> list[dict]:
    """Lets the trained model fill [MASK] in held-out sentences and, for the built-in text, in a few fixed ones."""
    from bert_tf import BertConfig, BertForPreTraining, checkpoints, fill_mask, load_weights

    model = BertForPreTraining(BertConfig.from_json_file(path("bert_config.json")))
    load_weights(model, checkpoints.latest_checkpoint(path("model")))
    questions = [(sentence, None) for sentence in FIXED_SENTENCES] if with_fixed else []
    questions += heldout_questions(path("train.txt"), path("heldout.txt"), tokenizer)
    guesses = fill_mask(model, tokenizer, [text for text, _ in questions], top_k=3)
    return [
        {"text": text, "answer": answer, "guesses": best[0]}
        for (text, answer), best in zip(questions, guesses, strict=True)
    ]


def main(_):
    # For the scripts, too: what TensorFlow says about GPUs that it did not find is no concern of a demo.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.set_verbosity(logging.WARNING)
    # Leaving through an exception takes a running script along; by itself it would go on without the demo.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        run_demo(FLAGS.text, FLAGS.output_dir, QUICK_PLAN if FLAGS.quick else Plan())
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. The same command goes on where it stood.")
    except (DemoError, ValueError) as error:
        sys.exit(f"\nThe demo stopped: {error}")


if __name__ == "__main__":
    script_flags.run(main)
