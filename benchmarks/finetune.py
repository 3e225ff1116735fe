"""Wall time of fine-tuning, compared with transformers with PyTorch, one after the other on the same machine.

    python benchmarks/finetune.py --data_dir=glue/MRPC --model=minilm-l6-h384
    python benchmarks/finetune.py --task=SST-2 --data_dir=glue/SST-2 --model=minilm-l6-h384 --rows=8000
    python benchmarks/finetune.py --task=KLUE-NLI --data_dir=klue --random=4x768 --rows=2000 --dtype=float32

Each side is a separate process and does what its users do: start, read, tokenize, train (MRPC 3 epochs, others one)
with batches of 32 padded to their own longest, evaluate on the dev set. transformers' batches are of similar
length, as its Trainer makes them with train_sampling_strategy="group_by_length" (in version 4,
group_by_length=True); with --nogroup_by_length they are shuffled. `--model` is a Hugging Face directory. Run nothing
else at the same time: two such programs on two cores slow each other down several times. Of KLUE-NLI the dev set is
read, whose other rows are then evaluated.

The last line has the least time for the matrix products of all examples without any padding, at this machine's rate.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import random_xlm_roberta
from absl import app, flags
from measured import add

FLAGS = flags.FLAGS
flags.DEFINE_enum("task", "MRPC", ["MRPC", "SST-2", "KLUE-NLI"], "Task of GLUE or KLUE.")
flags.DEFINE_string("data_dir", None, "Directory with the task's files in GLUE's layout, or klue-nli-v1.1_dev.json.")
flags.DEFINE_string("model", None, "Hugging Face directory of the weights to start from.")
flags.DEFINE_integer("seed", 1, "Seed of both sides.")
flags.DEFINE_float("epochs", None, "Passes over the training set, e.g. 0.1; if unset, 3 of MRPC, 1 of SST-2.")
flags.DEFINE_enum("dtype", "bfloat16", ["bfloat16", "float32"], "Of the computation, on both sides.")
flags.DEFINE_integer("rows", None, "Train on the first so many rows.")
flags.DEFINE_float("learning_rate", 5e-5, "Peak rate.")
flags.DEFINE_integer("repeats", 1, "Rounds; each runs both sides.")
flags.DEFINE_bool("group_by_length", True, "transformers: batches of similar length.")
flags.DEFINE_bool("transformers_side", False, "For internal use: be the transformers side.")

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BATCH_SIZE, MAX_LENGTH, WARMUP, WEIGHT_DECAY = 32, 128, 0.1, 0.01
EPOCHS = {"MRPC": 3.0, "SST-2": 1.0, "KLUE-NLI": 1.0}
LABELS = ("contradiction", "entailment", "neutral")  # of KLUE-NLI


def epochs() -> float:
    return EPOCHS[FLAGS.task] if FLAGS.epochs is None else FLAGS.epochs


def read_columns(name: str) -> tuple[list[list[str]], list[int]]:
    """Columns of texts, one or two, and the labels, of "train" or "dev"."""
    path = os.path.join(FLAGS.data_dir, name)
    if FLAGS.task == "KLUE-NLI":
        with open(f"{path}.json", encoding="utf-8") as file:
            rows = json.load(file)
        columns = [[row[column] for row in rows] for column in ("premise", "hypothesis")]
        return columns, [LABELS.index(row["gold_label"]) for row in rows]
    with open(f"{path}.tsv", encoding="utf-8-sig") as file:
        rows = [line.rstrip("\r\n").split("\t") for line in file][1:]
    texts, label = ((3, 4), 0) if FLAGS.task == "MRPC" else ((0,), 1)
    return [[row[column] for row in rows] for column in texts], [int(row[label]) for row in rows]


def fine_tune_with_transformers() -> None:
    """A typical training loop with transformers; prints its dev scores."""
    import random

    import torch
    import transformers
    from transformers.trainer_pt_utils import LengthGroupedSampler

    transformers.logging.set_verbosity_error()
    torch.manual_seed(FLAGS.seed)
    shuffler = random.Random(FLAGS.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(FLAGS.model)
    num_labels = len(LABELS) if FLAGS.task == "KLUE-NLI" else 2
    model = transformers.AutoModelForSequenceClassification.from_pretrained(FLAGS.model, num_labels=num_labels)

    def encode(name):
        columns, labels = read_columns(name)
        encoded = tokenizer(*columns, truncation=True, max_length=MAX_LENGTH, return_attention_mask=False)
        rows = zip(*encoded.values(), labels, strict=True)
        return [dict(zip((*encoded, "label"), row, strict=True)) for row in rows]

    train, dev = encode("train"), encode("dev")
    if FLAGS.group_by_length:  # for the score their order does not matter
        dev.sort(key=lambda row: len(row["input_ids"]))
    lengths = [len(row["input_ids"]) for row in train]
    grouped = LengthGroupedSampler(BATCH_SIZE, lengths=lengths)  # another order each time
    collate = transformers.DataCollatorWithPadding(tokenizer)
    decayed = [p for name, p in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    others = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=FLAGS.learning_rate)
    steps = int(len(train) / BATCH_SIZE * epochs())
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(steps * WARMUP), steps)
    model.train()
    done = 0
    while done < steps:
        order = list(grouped) if FLAGS.group_by_length else shuffler.sample(range(len(train)), len(train))
        for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            batch = collate([train[row] for row in order[start : start + BATCH_SIZE]])
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=FLAGS.dtype == "bfloat16"):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
            if done == steps:
                break
    model.eval()
    correct = 0
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=FLAGS.dtype == "bfloat16"):
        for start in range(0, len(dev), BATCH_SIZE):
            batch = collate(dev[start : start + BATCH_SIZE])
            correct += int((model(**batch).logits.argmax(-1) == batch["labels"]).sum())
    print(json.dumps({"accuracy": correct / len(dev)}))


def run_ours(output_dir: str) -> dict:
    data = [f"--task_name={FLAGS.task}", f"--data_dir={FLAGS.data_dir}"]
    if FLAGS.task == "KLUE-NLI":
        files = [f"--{name}_file={FLAGS.data_dir}/{name}.json" for name in ("train", "dev")]
        data = ["--task_name=custom", *files, "--text_a=premise", "--text_b=hypothesis", "--label=gold_label"]
    command = [
        sys.executable, os.path.join(ROOT, "run_classifier.py"), *data, "--do_train", "--do_eval",
        f"--init_checkpoint={FLAGS.model}", f"--output_dir={output_dir}",
        f"--max_seq_length={MAX_LENGTH}", f"--train_batch_size={BATCH_SIZE}", f"--eval_batch_size={BATCH_SIZE}",
        f"--learning_rate={FLAGS.learning_rate}", f"--num_train_epochs={epochs()}", f"--dtype={FLAGS.dtype}",
        f"--warmup_proportion={WARMUP}", f"--weight_decay_rate={WEIGHT_DECAY}", "--clip_norm=1",
        f"--seed={FLAGS.seed}", "--eval_every_steps=1000000",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(os.path.join(output_dir, "eval_results.txt")) as file:
        values = dict(line.strip().split(" = ") for line in file)
    return {"accuracy": float(values["eval_accuracy"])}


def run_transformers() -> dict:
    command = [
        sys.executable,
        os.path.abspath(__file__),
        "--transformers_side",
        *sys.argv[1:],
        f"--data_dir={FLAGS.data_dir}",
        f"--model={FLAGS.model}",
    ]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(result.stdout.splitlines()[-1])


def limit_of_task():
    """What the examples of the flags need at least; imports what transformers must not wait for."""
    sys.path.insert(0, ROOT)
    from machine import Limit, encoder_flops

    from bert_tf.store.open import open_model
    from bert_tf.tasks.rows import InputExample, Task, encode_examples

    opened = open_model(FLAGS.model, with_weights=False)
    config, tokenizer = opened.config, opened.make_tokenizer()
    flops = 0.0
    for name, passes in (("train", 3 * epochs()), ("dev", 1)):  # backward counts twice forward
        examples = [InputExample("", *texts) for texts in zip(*read_columns(name)[0], strict=True)]
        lengths = encode_examples(examples, Task("", (), None), tokenizer, MAX_LENGTH).lengths
        flops += passes * encoder_flops(config, lengths, read=1)
    return Limit(config, flops, rows=BATCH_SIZE * round(float(lengths.mean())), dtype=FLAGS.dtype)


def cut_data(folder: str) -> str:
    """A folder with the first rows of the training set and all of the dev set; of KLUE-NLI both are in one file."""
    if FLAGS.task == "KLUE-NLI":
        with open(os.path.join(FLAGS.data_dir, "klue-nli-v1.1_dev.json"), encoding="utf-8") as source:
            rows = json.load(source)
        for name, part in (("train", rows[: FLAGS.rows]), ("dev", rows[FLAGS.rows :][:1000])):
            with open(os.path.join(folder, f"{name}.json"), "w", encoding="utf-8") as target:
                json.dump(part, target, ensure_ascii=False)
        return folder
    for name, rows in (("train.tsv", FLAGS.rows + 1), ("dev.tsv", None)):
        with (
            open(os.path.join(FLAGS.data_dir, name), encoding="utf-8") as source,
            open(os.path.join(folder, name), "w", encoding="utf-8") as target,
        ):
            target.writelines(itertools.islice(source, rows))
    return folder


def main(_):
    if FLAGS.transformers_side:
        fine_tune_with_transformers()
        return
    with tempfile.TemporaryDirectory() as folder:
        if FLAGS.task == "KLUE-NLI":
            FLAGS.rows = FLAGS.rows or 2000
        if FLAGS.rows:
            FLAGS.data_dir = cut_data(folder)
        if FLAGS.random:
            texts = [text for column in read_columns("train")[0] for text in column]
            FLAGS.model = random_xlm_roberta.write_model(f"{folder}/model", texts, "BertModel")
        compare()


def compare():
    """Prints the seconds of both sides, round by round."""
    limit = limit_of_task()
    limit.measure()
    print(f"{'side':>14} {'seconds':>8} {'accuracy':>9}")
    ratios, sides = [], {}
    for _ in range(FLAGS.repeats):
        seconds = {}
        for side in ("transformers", "bert_tf"):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                scores = run_transformers() if side == "transformers" else run_ours(os.path.join(folder, "output"))
                seconds[side] = time.perf_counter() - start
            print(f"{side:>14} {seconds[side]:8.1f} {scores['accuracy']:9.4f}", flush=True)
            sides.setdefault(f"{side}, s", []).append(seconds[side])
            sides.setdefault(f"{side}, dev accuracy", []).append(100 * scores["accuracy"])
        limit.measure()
        print(f"bert_tf takes {seconds['bert_tf'] / seconds['transformers']:.2f} of the time of transformers; {limit}")
        ratios.append(seconds["transformers"] / seconds["bert_tf"])
    figures = {name: statistics.median(values) for name, values in sides.items()}
    title = f"{FLAGS.task}, {epochs():g} epoch{'s' * (epochs() != 1)}"
    title += f", random XLM-RoBERTa, {FLAGS.random}" if FLAGS.random else ""
    peers = ["transformers", "torch"]
    add("fine-tuning", title, {**figures, "matrix products alone, s": limit.seconds()}, peers, ratios)


if __name__ == "__main__":
    flags.mark_flags_as_required(["data_dir"])
    app.run(main)
