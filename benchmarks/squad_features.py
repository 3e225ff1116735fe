"""CPU time of reading a SQuAD file and splitting it into windows, on one core.

    python benchmarks/squad_features.py --predict_file=dev-v1.1.json --vocab_file=vocab.txt

Start-up does not count. For comparison, transformers' tokenizer (Rust, one thread) does the same: windows and offsets.
"""

import os
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from absl import app, flags

from bert_tf.tasks.squad import data as squad_data
from bert_tf.tasks.squad import windows as squad_windows
from bert_tf.text.wordpiece import FullTokenizer

FLAGS = flags.FLAGS
flags.DEFINE_string("predict_file", None, "SQuAD JSON.")
flags.DEFINE_string("vocab_file", None, "Uncased vocabulary.")
flags.DEFINE_integer("repeats", 3, "Rounds.")


def main(_):
    import tensorflow as tf  # noqa: F401 - start-up is not measured
    import tokenizers

    print(f"{'round':>5} {'words':>7} {'offsets':>8} {'tokenizers':>10}  seconds of CPU")
    for number in range(FLAGS.repeats):
        seconds = []
        for way in ("words", "offsets"):
            start = time.process_time()
            tokenizer = FullTokenizer(FLAGS.vocab_file)
            data = squad_data.read_squad_examples([FLAGS.predict_file], False)
            settings = squad_windows.WindowSettings(answer_from=way)
            windows = squad_windows.build_windows(data.examples, tokenizer, settings, False, num_processes=1)
            seconds.append(time.process_time() - start)
        start = time.process_time()
        peer = tokenizers.BertWordPieceTokenizer(FLAGS.vocab_file, lowercase=True)
        peer.enable_truncation(384, stride=128, strategy="only_second")
        data = squad_data.read_squad_examples([FLAGS.predict_file], False)
        pairs = [(example.question_text, example.paragraph.context) for example in data.examples]
        encoded = peer.encode_batch(pairs)
        _ = [(part.ids, part.offsets) for first in encoded for part in (first, *first.overflowing)]
        seconds.append(time.process_time() - start)
        print(f"{number + 1:5d} {seconds[0]:7.2f} {seconds[1]:8.2f} {seconds[2]:10.2f}", flush=True)
    print(f"{len(data.examples)} questions, {len(windows)} windows")


if __name__ == "__main__":
    flags.mark_flags_as_required(["predict_file", "vocab_file"])
    app.run(main)
