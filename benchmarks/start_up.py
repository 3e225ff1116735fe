"""Seconds from the start of run_classifier.py to the end of its first training step: first start, and later ones.

    python benchmarks/start_up.py --data_dir=glue/MRPC --model=minilm-l6-h384

The first start has an empty folder of compiled programs, later ones what the first one left. For each it prints the
seconds of wall time and of CPU time, over all threads, until the imports are done, until the data are encoded, until
the weights are read, and until the first step is logged. With --trainer each is followed by a start of transformers'
Trainer (`pip install accelerate`), which does the same work. Needs /proc (Linux). Run nothing else at the same time.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", None, "Directory with the MRPC files of GLUE.")
flags.DEFINE_string("model", None, "Directory of the model to start from.")
flags.DEFINE_integer("repeats", 3, "Starts after the first.", lower_bound=1)
flags.DEFINE_bool("trainer", False, "Also start transformers' Trainer.")

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What the log says when a stage is done.
STAGES = {"imports": "Casing from", "data": "Seed ", "weights": "Initialised ", "first step": "train step 1:"}
# What a user of transformers writes; it says the same when a stage is done.
TRAINER = """
import sys
import torch, transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer
transformers.logging.set_verbosity_error()
print("Casing from", file=sys.stderr, flush=True)
model, train_file, folder = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model)
with open(train_file, encoding="utf-8-sig") as file:
    rows = [line.rstrip("\\r\\n").split("\\t") for line in file][1:]
encoded = tokenizer([row[3] for row in rows], [row[4] for row in rows], truncation=True, max_length=128)
data = [{**{key: encoded[key][i] for key in encoded}, "label": int(row[0])} for i, row in enumerate(rows)]
print("Seed ", file=sys.stderr, flush=True)
network = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2)
print("Initialised ", file=sys.stderr, flush=True)

class Says(transformers.TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        print("train step 1:", file=sys.stderr, flush=True)

settings = transformers.TrainingArguments(
    folder, per_device_train_batch_size=32, use_cpu=True, report_to=[], train_sampling_strategy="group_by_length")
collator = DataCollatorWithPadding(tokenizer)
Trainer(network, settings, train_dataset=data, data_collator=collator, callbacks=[Says()]).train()
"""


def cpu_seconds(process: int) -> float:
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def our_command(folder: str) -> list[str]:
    return [sys.executable, os.path.join(ROOT, "run_classifier.py"), "--task_name=mrpc", "--do_train",
            f"--data_dir={FLAGS.data_dir}", f"--init_checkpoint={FLAGS.model}", f"--output_dir={folder}",
            "--max_seq_length=128", "--train_batch_size=32", "--log_every_steps=1"]  # fmt: skip


def trainer_command(folder: str) -> list[str]:
    return [sys.executable, "-c", TRAINER, FLAGS.model, os.path.join(FLAGS.data_dir, "train.tsv"), folder]


def start(command: list[str], compiled: str) -> dict[str, tuple[float, float]]:
    """Stage -> (wall, CPU) seconds of one start, which is stopped after its first step."""
    begin = time.monotonic()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]),
        "BERT_TF_COMPILED": compiled,
    }
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    seconds, lines = {}, []
    for line in process.stderr:
        lines.append(line)
        for stage, text in STAGES.items():
            if text in line and stage not in seconds:
                seconds[stage] = (time.monotonic() - begin, cpu_seconds(process.pid))
                if len(seconds) == len(STAGES):
                    process.send_signal(signal.SIGTERM)  # it ends as a run does, and keeps what it compiled
    process.wait()
    if len(seconds) < len(STAGES):
        raise RuntimeError("".join(lines[-20:]))
    return seconds


def main(_):
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'start':<18}" + "".join(f"{f'{stage} (wall, CPU)':>26}" for stage in STAGES))
        sides = {"bert_tf": our_command} | ({"transformers": trainer_command} if FLAGS.trainer else {})
        for number in range(1, 2 + FLAGS.repeats):
            for side, command in sides.items():
                target = os.path.join(folder, f"{side}-{number}")
                seconds = start(command(target), os.path.join(folder, "compiled"))
                line = "".join(f"{wall:18.1f} {cpu:7.1f}" for wall, cpu in seconds.values())
                print(f"{f'{number} {side}':<18}{line}", flush=True)


if __name__ == "__main__":
    flags.mark_flags_as_required(["data_dir", "model"])
    app.run(main)
