"""Kills scripts at random moments, starts them again until they end, and compares what they and undisturbed runs leave.

    make test-kill                                                    # 500 kills, an hour or more on two cores
    python tests/kill_campaign.py --kills=20 --scenarios=ner --scenarios=shards --seed=3

A moment is a random time, or a random change of a file (written, closed, renamed, removed, a folder made), before or
after it. All files that a run leaves must be there with the same bytes, but for those that tell times. Kills take turns
over the scenarios; each run is killed up to three times. What differs is kept, and the exit code is 1.
"""

import collections
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time

from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers import warm  # noqa: E402
from helpers.paths import GOLDEN  # noqa: E402
from helpers.pretraining_runs import flags_of, two_workers, write_inputs  # noqa: E402
from helpers.script_cases import arguments_of  # noqa: E402
from helpers.small_data import PIECES, WORLDS, texts_of  # noqa: E402
from helpers.tiny import write_encoder  # noqa: E402

from bert_tf.system.atomic import is_temporary_name  # noqa: E402

FLAGS = flags.FLAGS
MOST_KILLS = 3  # of one run
TWO_REPLICAS = {"distribution_strategy": "mirrored", "num_virtual_cpus": 2}
# They hold times, speeds, or drawings of them.
UNEQUAL = re.compile(r"train_log\.jsonl|loss\.png|run\.json|pretraining_data\.data\.json|events\.out\..*")
# They have no folder of their own, so what a killed one has half-written stays, under a name that nothing reads.
ONE_FILE = {"create_vocab", "extract_features"}

# Runs a script whose process kills itself before or after its n-th change of a file; the changes are counted in a file.
_PRELUDE = """
import builtins, functools, os, runpy, signal, sys
script, limit, after, counted = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "after", sys.argv[4]
sys.argv = [script, *sys.argv[5:]]
import tensorflow as tf
changes, main = 0, os.getpid()

def counting(call):
    @functools.wraps(call)
    def counted_call(*arguments, **named):
        global changes
        if os.getpid() == main:
            changes += 1
            if changes == limit and not after:
                os.kill(main, signal.SIGKILL)
        result = call(*arguments, **named)
        if os.getpid() == main and changes == limit and after:
            os.kill(main, signal.SIGKILL)
        return result
    return counted_call

places = [(os, name) for name in ("replace", "rename", "remove", "unlink", "mkdir", "rmdir", "fsync")]
places += [(tf.io.gfile, name) for name in ("rename", "remove", "makedirs", "rmtree", "copy")]
places += [(tf.io.gfile.GFile, name) for name in ("write", "flush", "close")] + [(tf.io.TFRecordWriter, "write")]
for place, name in places:
    setattr(place, name, counting(getattr(place, name)))
try:
    runpy.run_path(script, run_name="__main__")
finally:
    with open(counted, "w") as file:
        file.write(str(changes))
"""


# --- what is run ------------------------------------------------------------------------------------------------------


def fine_tuning(script: str, **changes):
    """A function that writes the data of a fine-tuning script into a folder, and returns script and flags."""

    def write(folder: pathlib.Path) -> tuple[str, dict]:
        write_data, ending, own = WORLDS[script]
        write_encoder(folder, PIECES)
        for seed, (name, count) in enumerate((("train", 32), ("dev", 11), ("test", 7))):
            write_data(folder / f"{name}.{ending}", list(texts_of(count, seed)))
        return script, {
            **own, "init_checkpoint": folder / "encoder", "do_train": True, "do_eval": True, "do_predict": True,
            "max_seq_length": 24, "train_file": folder / f"train.{ending}", "dev_file": folder / f"dev.{ending}",
            "predict_file" if script == "run_squad" else "test_file": folder / f"test.{ending}", "train_batch_size": 8,
            "predict_batch_size": 4, "num_train_epochs": 4, "learning_rate": 3e-3, "eval_every_steps": 6, "seed": 3,
            "save_checkpoints_steps": 3, "iterations_per_loop": 3, "deterministic": True, "keep_checkpoint_max": 2,
            "output_dir": folder / "out", **changes,
        }  # fmt: skip

    return write


def pretraining(**changes):
    """A function that writes records into a folder, and returns script and flags."""

    def write(folder: pathlib.Path) -> tuple[str, dict]:
        data = write_inputs(folder)
        further = {
            "do_eval": True,
            "eval_every_steps": 15,
            "iterations_per_loop": 5,
            "vocab_file": folder / "vocab.txt",
        }
        (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
        return "run_pretraining", flags_of(data, folder / "out", **further, **changes)

    return write


def on_text(script: str, output: str, **changes):
    """A function that writes a text into a folder, and returns script and flags."""

    def write(folder: pathlib.Path) -> tuple[str, dict]:
        write_encoder(folder, PIECES)
        for part in range(3):
            lines = [" ".join(words) + ".\n" + "\n" * (number % 9 == 8)
                     for number, (words, *_) in enumerate(texts_of(2000, part))]  # fmt: skip
            (folder / f"text-{part}.txt").write_text("".join(lines))
        named = {"vocab_file": folder / "vocab.txt", "init_checkpoint": folder / "encoder"}
        given = {name: named[name] for name, value in changes.items() if value is None}
        kept = {name: value for name, value in changes.items() if value is not None}
        text = folder / ("text-0.txt" if script == "extract_features" else "text-*.txt")
        return script, {"input_file": text, "output_file": folder / "out" / output, **given, **kept}

    return write


def conversion(folder: pathlib.Path) -> tuple[str, dict]:
    """A conversion of the golden model."""
    source = GOLDEN / "model" / "config1" / "bert_model.ckpt"
    config = {"bert_config_file": GOLDEN / "model" / "config1" / "bert_config.json"}
    return "convert_checkpoint", {
        "from": source,
        "to": folder / "out",
        "format": "huggingface",
        **config,
        "overwrite": True,
    }


SCENARIOS = {
    "classifier": fine_tuning("run_classifier"),
    "squad": fine_tuning("run_squad"),
    "ner": fine_tuning("run_ner"),
    "swag": fine_tuning("run_swag"),
    "similarity": fine_tuning("run_similarity"),
    "classifier of two replicas": fine_tuning("run_classifier", **TWO_REPLICAS),
    "classifier in float16": fine_tuning("run_classifier", dtype="float16"),
    "classifier with seeds": fine_tuning("run_classifier", num_seeds=2, num_train_epochs=2),
    "classifier with a search": fine_tuning("run_classifier", search="weight_decay_rate=0.01,0.1", num_train_epochs=2),
    "pretraining": pretraining(),
    "pretraining of two replicas": pretraining(**TWO_REPLICAS),
    "pretraining in float16": pretraining(dtype="float16"),
    "pretraining of two workers": pretraining(distribution_strategy="multi_worker_mirrored", num_train_steps=30),
    "shards": on_text("create_pretraining_data", "data.tfrecord", vocab_file=None, num_shards=6, num_workers=2,
                      max_seq_length=32, dupe_factor=2),
    "one file": on_text("create_pretraining_data", "data.tfrecord", vocab_file=None, max_seq_length=32, dupe_factor=2),
    "vocabulary": on_text("create_vocab", "vocab.txt", vocab_size=300),
    "features": on_text("extract_features", "features.jsonl", init_checkpoint=None, layers="-1", max_seq_length=24),
    "conversion": conversion,
}  # fmt: skip


# --- how it is killed -------------------------------------------------------------------------------------------------


def run_once(
    scenario: str, script: str, values: dict, folder: pathlib.Path, seconds=warm.HANG_SECONDS, limit=0, after=False
) -> int:
    """Runs a script, killed after some seconds or at its change number `limit`; returns the exit code."""
    program = [str(ROOT / f"{script}.py"), *arguments_of(values)]
    if script in ONE_FILE:
        (folder / "out").mkdir(exist_ok=True)
    if scenario.endswith("two workers"):
        with two_workers([sys.executable, *program], folder) as processes:
            with contextlib.suppress(warm.TimeoutExpired):
                processes[0].wait(seconds)
            if processes[0].poll() is not None:
                processes[1].wait()
            return processes[0].poll() if processes[0].poll() is not None else -9
    counted = ["after" if after else "before", str(folder / "changes"), *program[1:]]
    with open(folder / "log.txt", "w") as log:
        command = [sys.executable, "-c", _PRELUDE, program[0], str(limit), *counted]
        process = warm.Popen(command, stdout=log, stderr=log, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"})
        with contextlib.suppress(warm.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        return process.wait()


def contents(script: str, folder: pathlib.Path) -> dict[str, bytes]:
    """Name of each file that must be equal -> its bytes."""
    files = (path for path in folder.rglob("*") if path.is_file() and not UNEQUAL.fullmatch(path.name))
    if script in ONE_FILE:
        files = (path for path in files if not is_temporary_name(path.name))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Campaign:
    """A scenario: its undisturbed run, and the killed ones."""

    def __init__(self, name: str, folder: pathlib.Path):
        self.name, self.folder = name, folder
        folder.mkdir(parents=True)
        self.script, self.values = SCENARIOS[name](folder)
        begin = time.monotonic()
        code = run_once(name, self.script, self.values, folder)
        if code:
            raise RuntimeError(f"{name}: the undisturbed run ended with {code}; see {folder}")
        self.seconds = time.monotonic() - begin
        counted = folder / "changes"
        self.changes = int(counted.read_text()) if counted.exists() else 0
        self.expected = contents(self.script, folder / "out")
        shutil.rmtree(folder / "out")

    def kill(self, generator: random.Random) -> tuple[int, str]:
        """Kills a new run up to three times and lets it end; returns the number of kills, and what is wrong, if any."""
        kills, told = 0, []
        for _ in range(generator.randint(1, MOST_KILLS)):
            if self.changes and generator.random() < 0.5:
                moment = {"limit": generator.randint(1, self.changes), "after": generator.random() < 0.5}
            else:
                moment = {"seconds": generator.uniform(0, self.seconds)}
            told.append(moment)
            code = run_once(self.name, self.script, self.values, self.folder, **moment)
            kills += code == -9
            if code not in (0, -9):
                return kills, f"{self.name}, killed at {told}: it ended with {code}"
            if not code:
                break
        else:
            code = run_once(self.name, self.script, self.values, self.folder)
        if code:
            return kills, f"{self.name}, killed at {told}: it ended with {code}"
        found = contents(self.script, self.folder / "out")
        if found == self.expected:
            shutil.rmtree(self.folder / "out")
            return kills, ""
        names = sorted(name for name in found.keys() | self.expected if found.get(name) != self.expected.get(name))
        return kills, f"{self.name}, killed at {told}: other files: {', '.join(names)}"


def main(_):
    generator = random.Random(FLAGS.seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kills-"))
    campaigns = {name: Campaign(name, folder / str(number)) for number, name in enumerate(FLAGS.scenarios)}
    kills, problems = collections.Counter(), []
    while kills.total() < FLAGS.kills and not problems:
        for name, campaign in campaigns.items():
            count, problem = campaign.kill(generator)
            kills[name] += count
            if problem:
                problems.append(problem)
                print(f"{problem}; see {campaign.folder}", flush=True)
                break
        print(json.dumps({"kills": kills.total(), **kills}), flush=True)
    if problems:
        sys.exit(1)
    shutil.rmtree(folder)
    print(f"{kills.total()} kills in {len(kills)} scenarios: all runs ended with the same files.")


if __name__ == "__main__":
    flags.DEFINE_integer("kills", 500, "Kills in total; a few more may come.", lower_bound=1)
    flags.DEFINE_integer("seed", 1, "Of the moments.")
    flags.DEFINE_multi_enum("scenarios", list(SCENARIOS), list(SCENARIOS), "Scenarios to run; can be repeated.")
    app.run(main)
