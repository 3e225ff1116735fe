"""Seconds from the start of run_classifier.py to the end of its first training step: first start, and later ones.

    python benchmarks/start_up.py --data_dir=glue/MRPC --model=minilm-l6-h384

The first start has an empty folder of compiled programs, later ones what the first one left. For each it prints the
seconds of wall time and of CPU time, over all threads, until the imports are done, until the data are encoded, until
the weights are read, and until the first step is logged. Needs /proc (Linux). Run nothing else at the same time.
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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What the log says when a stage is done.
STAGES = {"imports": "Casing from", "data": "Seed ", "weights": "Initialised ", "first step": "train step 1:"}


def cpu_seconds(process: int) -> float:
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(folder: str, compiled: str) -> dict[str, tuple[float, float]]:
    """Stage -> (wall, CPU) seconds of one start, which is stopped after its first step."""
    command = [sys.executable, os.path.join(ROOT, "run_classifier.py"), "--task_name=mrpc", "--do_train",
               f"--data_dir={FLAGS.data_dir}", f"--init_checkpoint={FLAGS.model}", f"--output_dir={folder}",
               "--max_seq_length=128", "--train_batch_size=32", "--log_every_steps=1"]  # fmt: skip
    begin = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": ROOT, "BERT_TF_COMPILED": compiled}
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
        print("start   " + "".join(f"{f'{stage} (wall, CPU)':>26}" for stage in STAGES))
        for number in range(1 + FLAGS.repeats):
            seconds = start(os.path.join(folder, f"run-{number}"), os.path.join(folder, "compiled"))
            print(
                f"{number + 1:<8}" + "".join(f"{wall:18.1f} {cpu:7.1f}" for wall, cpu in seconds.values()), flush=True
            )


if __name__ == "__main__":
    flags.mark_flags_as_required(["data_dir", "model"])
    app.run(main)
