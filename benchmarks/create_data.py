"""Speed of create_pretraining_data on one core, step by step.

    python benchmarks/create_pretraining_data.py
    python benchmarks/create_pretraining_data.py --max_seq_length=512 --max_predictions_per_seq=77

Prints seconds for reading and tokenizing, building instances, and writing, without start-up (imports, vocabulary), and
the ratio to --original_seconds, what the original takes for the same text and flags.
"""

import os
import pathlib
import random
import resource
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from absl import app, flags  # noqa: E402

FLAGS = flags.FLAGS
NOVELS = ROOT.parent / "shared" / "data" / "novels"
flags.DEFINE_string("text", f"{NOVELS}/train-00.txt,{NOVELS}/train-01.txt", "Text files, a list of globs.")
flags.DEFINE_string("vocab_file", str(ROOT / "tests" / "golden" / "vocab.txt"), "Vocabulary, uncased.")
flags.DEFINE_integer("max_seq_length", 128, "As in create_pretraining_data.py.")
flags.DEFINE_integer("max_predictions_per_seq", 20, "As in create_pretraining_data.py.")
flags.DEFINE_integer("dupe_factor", 5, "As in create_pretraining_data.py.")
flags.DEFINE_bool("do_whole_word_mask", False, "As in create_pretraining_data.py.")
flags.DEFINE_float("original_seconds", None, "The original's time; known for the default text and flags if unset.")

# On two cores of a Xeon (Sapphire Rapids or later), one used: (S, whole words) -> seconds without start-up.
ORIGINAL_SECONDS = {(128, False): 16.7, (128, True): 18.0, (512, False): 17.5}


def main(_):
    from bert_tf import pretraining_data, text_files
    from bert_tf.pretraining_instances import VocabularyIds, create_instances_from_documents
    from bert_tf.tokenization import FullTokenizer

    files = text_files.list_files(FLAGS.text, flag="--text")
    megabytes = sum(os.path.getsize(path) for path in files) / 1e6
    tokenizer = FullTokenizer(FLAGS.vocab_file)
    times = {}
    start = time.perf_counter()

    def lap(name):
        nonlocal start
        times[name] = time.perf_counter() - start
        start = time.perf_counter()

    documents = pretraining_data.read_documents(files, tokenizer, show_progress=False)
    lap("read and tokenize")
    instances = create_instances_from_documents(
        documents,
        FLAGS.max_seq_length,
        FLAGS.dupe_factor,
        0.1,
        0.15,
        FLAGS.max_predictions_per_seq,
        VocabularyIds.from_vocab(tokenizer.vocab),
        random.Random(12345),
        FLAGS.do_whole_word_mask,
        show_progress=False,
    )
    lap("build instances")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "out.tfrecord")
        pretraining_data.write_instance_to_example_files(
            instances, FLAGS.max_seq_length, FLAGS.max_predictions_per_seq, [path], show_progress=False
        )
        lap("write")
        size = os.path.getsize(path)

    total = sum(times.values())
    for name, seconds in times.items():
        print(f"{name:18} {seconds:6.2f} s")
    print(f"{'total':18} {total:6.2f} s")
    print(
        f"{len(instances)} instances of {megabytes:.2f} MB of text, {len(instances) / total:,.0f} instances/s, "
        f"{megabytes / total:.2f} MB of text/s, {size / len(instances):.0f} bytes an instance, "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB of RAM at most"
    )
    original = FLAGS.original_seconds
    if original is None and FLAGS.dupe_factor == 5 and FLAGS["text"].using_default_value:
        original = ORIGINAL_SECONDS.get((FLAGS.max_seq_length, FLAGS.do_whole_word_mask))
    if original:
        print(f"{original / total:.1f} times the speed of the original ({original:.1f} s)")


if __name__ == "__main__":
    app.run(main)
