"""CPU seconds from the start of Python to the first answer of a classifier, beside transformers' pipeline.

    python benchmarks/first_answer.py --model=runs/classifier_hf

The model is a Hugging Face directory, which both read; with --name also by its name, from a hub on the loopback
interface whose files are in the cache (and once from an empty cache, beside `hf download`, in seconds). Processes take
turns; for each side it prints the medians, over all threads, until the import is done, until the model is open, and
until a text has its answer.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("model", None, "Hugging Face directory of a classifier.")
flags.DEFINE_bool("name", False, "Also open the model by a name on the hub.")
flags.DEFINE_integer("repeats", 5, "Processes of each side.", lower_bound=1)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAME = "owner/model"  # on the hub
TEXT = "The stage is set for a film that is better than its title."
SIDES = {
    "bert_tf": ("from bert_tf import Predictor", "Predictor({model!r})"),
    "transformers": (
        "from transformers import pipeline",
        "pipeline('text-classification', model={model!r}, device='cpu')",
    ),
}
PROGRAM = """
import json, time
{import_it}
seconds = [time.process_time()]
answer = {open_it}
seconds.append(time.process_time())
answer({text!r})
print(json.dumps([*seconds, time.process_time()]))
"""


def start(side: str, model: str, environment: dict[str, str]) -> list[float]:
    """CPU seconds of one process until each of the three stages is done."""
    import_it, open_it = SIDES[side]
    program = PROGRAM.format(import_it=import_it, open_it=open_it.format(model=model), text=TEXT)
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def cold_seconds(environment: dict[str, str], *command: str) -> float:
    """Seconds of a command that fetches a model into an empty cache."""
    with tempfile.TemporaryDirectory() as home:
        begin = time.perf_counter()
        subprocess.run(command, env={**environment, "HF_HOME": home}, capture_output=True, check=True)
        return time.perf_counter() - begin


def main(_):
    with contextlib.ExitStack() as stack:
        sides = {side: (side, FLAGS.model) for side in SIDES}
        environment = {**os.environ, "PYTHONPATH": ROOT}
        if FLAGS.name:
            sys.path.append(f"{ROOT}/tests")
            from helpers import hub_server

            server = stack.enter_context(hub_server.serving(hub_server.HubServer()))
            server.put(NAME, FLAGS.model)
            sides["bert_tf by name"] = ("bert_tf", NAME)
            environment |= server.environment(stack.enter_context(tempfile.TemporaryDirectory()))
            fetch = f"import bert_tf; bert_tf.download({NAME!r})"
            commands = {"bert_tf.download": (sys.executable, "-c", fetch), "hf download": ("hf", "download", NAME)}
            for name, command in commands.items():
                seconds = [cold_seconds(environment, *command) for _ in range(FLAGS.repeats)]
                print(f"{name}, empty cache: {statistics.median(seconds):.2f} s")
            start("bert_tf", NAME, environment)  # fills the cache
        measure(sides, environment)


def measure(sides: dict[str, tuple[str, str]], environment: dict[str, str]) -> None:
    """Prints the medians of all sides."""
    runs = {side: [] for side in sides}
    for _ in range(FLAGS.repeats):
        for side, (kind, model) in sides.items():
            runs[side].append(start(kind, model, environment))
    print(f"{'CPU seconds until':<18}{'import':>8}{'open':>8}{'answer':>8}")
    for side, stages in runs.items():
        medians = [statistics.median(stage) for stage in zip(*stages, strict=True)]
        print(f"{side:<18}" + "".join(f"{seconds:8.2f}" for seconds in medians))


if __name__ == "__main__":
    flags.mark_flags_as_required(["model"])
    app.run(main)
