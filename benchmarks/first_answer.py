"""CPU seconds from the start of Python to the first answer of a classifier, beside transformers' pipeline.

    python benchmarks/first_answer.py --model=runs/classifier_hf

The model is a Hugging Face directory, which both read. Processes take turns; for each side it prints the medians, over
all threads, until the import is done, until the model is open, and until a text has its answer.
"""

import json
import os
import statistics
import subprocess
import sys

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("model", None, "Hugging Face directory of a classifier.")
flags.DEFINE_integer("repeats", 5, "Processes of each side.", lower_bound=1)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
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


def start(side: str) -> list[float]:
    """CPU seconds of one process until each of the three stages is done."""
    import_it, open_it = SIDES[side]
    program = PROGRAM.format(import_it=import_it, open_it=open_it.format(model=FLAGS.model), text=TEXT)
    environment = {**os.environ, "PYTHONPATH": ROOT}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def main(_):
    runs = {side: [] for side in SIDES}
    for _ in range(FLAGS.repeats):
        for side in SIDES:
            runs[side].append(start(side))
    print(f"{'CPU seconds until':<18}{'import':>8}{'open':>8}{'answer':>8}")
    for side, found in runs.items():
        medians = [statistics.median(stage) for stage in zip(*found, strict=True)]
        print(f"{side:<18}" + "".join(f"{seconds:8.2f}" for seconds in medians))


if __name__ == "__main__":
    flags.mark_flags_as_required(["model"])
    app.run(main)
