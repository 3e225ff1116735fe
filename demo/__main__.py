"""Pre-training from end to end on two CPU cores, in under five minutes: text in, a pre-trained BERT out.

    python -m demo                              # the English documentation inside the installed Python packages
    python -m demo --text='my_texts/*.txt'      # your text, in any language

It runs create_vocab.py, create_pretraining_data.py and run_pretraining.py as you would, printing each command before it
runs. Then it compares the model with guessing by frequency, fills [MASK] in a few sentences and draws the loss curve.
Everything is in --output_dir: train.txt and heldout.txt, vocab.txt, *.tfrecord, model/, loss_curve.png, results.json.
"""

import dataclasses
import signal
import sys

from absl import flags, logging

from bert_tf.system import checks, script
from demo import stages
from demo.families import FAMILIES
from demo.folder import DemoError

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "text",
    "",
    "Your text: UTF-8 files, a comma-separated list of globs. If empty, the documentation in Python packages.",
)
flags.DEFINE_string("output_dir", "demo_output", "Output directory. An earlier demo's output there is replaced.")
flags.DEFINE_enum("family", "bert", list(FAMILIES), "The family of the model.")
flags.DEFINE_bool("quick", False, "Take about a minute, to check that everything works; the model learns little.")


def main(_):
    logging.set_verbosity(logging.WARNING)
    # Exiting with an exception also ends a running script, which would otherwise continue without the demo.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if FLAGS.text:
            checks.check_input_files(FLAGS.text, "--text")
        script.start_tensorflow()
        plan = dataclasses.replace(stages.QUICK_PLAN if FLAGS.quick else stages.Plan(), family=FLAGS.family)
        stages.run_demo(FLAGS.text, FLAGS.output_dir, plan)
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. The same command resumes where it stopped.")
    except (DemoError, ValueError) as error:
        sys.exit(f"\nThe demo stopped: {error}")


if __name__ == "__main__":
    script.run(main)
