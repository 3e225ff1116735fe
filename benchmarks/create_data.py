"""Speed, memory and disk of create_pretraining_data on one core, beside the original's way.

    python benchmarks/create_data.py
    python benchmarks/create_data.py --text='../shared/data/novels/train-0*.txt' --noplain

For each of four settings (128 and 512 tokens, single pieces and whole words masked) the text is tokenized, instances
are built and records written by one process on one core. Start-up and compilation are not counted: a small run comes
first. Beside it, on the same machine in the same run, the same work in plain Python: the tokenizer one character at a
time (tests/plain_tokenization.py), instances by tests/plain_pretraining.py, records by protocol buffers. That is
the original's way (its random numbers come from `random.shuffle` and `randint`, too), with a little of its work left
out. `original` is the ratio to what the original itself took on a reference machine (two cores of a Xeon with AMX, one
used), known for the default text.

"own MB" is the most memory the process had of its own, libraries and the tokenizer's tables included, "RSS MB" the same
with what is mapped from files: libraries, and the scratch files that the system may take away again.

Then unmasked records, packed ones, compressed ones, and what all of the machine's cores give.
"""

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import random
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from absl import app, flags, logging  # noqa: E402

FLAGS = flags.FLAGS
NOVELS = ROOT.parent / "shared" / "data" / "novels"
flags.DEFINE_string("text", f"{NOVELS}/train-00.txt,{NOVELS}/train-01.txt", "Text files, a list of globs.")
flags.DEFINE_string("vocab_file", str(ROOT / "tests" / "golden" / "vocab.txt"), "Vocabulary, uncased.")
flags.DEFINE_integer("dupe_factor", 5, "As in create_pretraining_data.py.")
flags.DEFINE_bool("plain", True, "Run the plain Python way, too.")
flags.DEFINE_bool("forms", True, "Also unmasked, packed and compressed records, and all cores.")

# The original on the default text: (S, whole words) -> seconds without start-up.
ORIGINAL_SECONDS = {(128, False): 16.7, (128, True): 18.0, (512, False): 17.5}
SETTINGS = [(128, 20, False), (128, 20, True), (512, 77, False), (512, 77, True)]


def run_ours(text: str, vocab_file: str, warm_up: str, arguments: dict) -> dict:
    """One run in a process of its own: seconds, and the most memory in use (without and with pages of files)."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments["num_workers"]])
    from bert_tf.pretraining_data import create_pretraining_data

    logging.set_verbosity(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        create_pretraining_data(warm_up, f"{folder}/warm", vocab_file, **{**arguments, "num_shards": 1})
        threading.Thread(target=watch_memory, args=(peaks := {},), daemon=True).start()
        start = time.perf_counter()
        summary = create_pretraining_data(text, f"{folder}/out", vocab_file, **arguments)
        seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "instances": summary["instances"],
        "rows": summary["rows"],
        "padding": summary["padding_share"],
        "bytes": sum(summary["output_bytes"].values()),
        **peaks,
    }


def watch_memory(peaks: dict) -> None:
    """Keeps the highest RssAnon and VmRSS of this process, in MB."""
    while True:
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            name, value = line.split(":", 1)
            if name in ("RssAnon", "VmRSS"):
                peaks[name] = max(peaks.get(name, 0), int(value.split()[0]) / 1024)
        time.sleep(0.02)


def run_plain(text: str, vocab_file: str, arguments: dict) -> dict:
    """The same records in plain Python."""
    import plain_pretraining
    import tensorflow as tf
    from plain_tokenization import PlainTokenizer

    from bert_tf.pretraining_instances import VocabularyIds
    from bert_tf.text_files import list_files
    from bert_tf.tokenization import load_vocab

    # The same stream, drawn as the original draws it.
    plain_pretraining.shuffle = lambda items, rng: rng.shuffle(items)
    plain_pretraining._randint = lambda rng, low, high: rng.randint(low, high)
    vocab = load_vocab(vocab_file)
    start = time.perf_counter()
    documents = plain_pretraining.read_documents(list_files(text), PlainTokenizer(vocab))
    tokenized = time.perf_counter()
    instances = plain_pretraining.create_instances_from_documents(
        documents,
        arguments["max_seq_length"],
        arguments["dupe_factor"],
        0.1,
        0.15,
        arguments["max_predictions_per_seq"],
        VocabularyIds.from_vocab(vocab),
        random.Random(12345),
        arguments["do_whole_word_mask"],
    )
    with tempfile.TemporaryDirectory() as folder, tf.io.TFRecordWriter(f"{folder}/out") as writer:
        for instance in instances:
            writer.write(_protocol_buffer(instance, arguments).SerializeToString())
    end = time.perf_counter()
    return {"seconds": end - start, "tokenizing": tokenized - start, "instances": len(instances)}


def _protocol_buffer(instance, arguments):
    import tensorflow as tf

    length, width = arguments["max_seq_length"], arguments["max_predictions_per_seq"]

    def integers(values, size):
        values = list(values) + [0] * (size - len(values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    weights = [1.0] * len(instance.masked_lm_ids) + [0.0] * (width - len(instance.masked_lm_ids))
    features = {
        "input_ids": integers(instance.token_ids, length),
        "input_mask": integers([1] * len(instance.token_ids), length),
        "segment_ids": integers(instance.segment_ids, length),
        "masked_lm_positions": integers(instance.masked_lm_positions, width),
        "masked_lm_ids": integers(instance.masked_lm_ids, width),
        "masked_lm_weights": tf.train.Feature(float_list=tf.train.FloatList(value=weights)),
        "next_sentence_labels": integers([int(instance.is_random_next)], 1),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def in_process(function, *arguments):
    """The result of a function in a new process, so that its memory is its own."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main(_):
    from bert_tf.text_files import list_files

    files = list_files(FLAGS.text, flag="--text")
    megabytes = sum(os.path.getsize(path) for path in files) / 1e6
    warm_up = str(ROOT / "tests" / "golden" / "pretraining" / "corpus_0.txt")
    basic = {"dupe_factor": FLAGS.dupe_factor, "show_progress": False, "num_workers": 1}
    is_default = FLAGS["text"].using_default_value and FLAGS.dupe_factor == 5
    print(f"{megabytes:.2f} MB of text, dupe_factor {FLAGS.dupe_factor}, one core")
    print(
        f"{'S':>4} {'whole words':>11} {'seconds':>8} {'MB/s':>6} {'instances/s':>11} {'bytes/inst.':>11} "
        f"{'own MB':>7} {'RSS MB':>7} {'plain':>7} {'original':>8}"
    )
    results = []
    for length, predictions, whole_words in SETTINGS:
        arguments = basic | {
            "max_seq_length": length,
            "max_predictions_per_seq": predictions,
            "do_whole_word_mask": whole_words,
        }
        ours = in_process(run_ours, FLAGS.text, FLAGS.vocab_file, warm_up, arguments)
        ratios = {"plain": "", "original": ""}
        if FLAGS.plain:
            plain = in_process(run_plain, FLAGS.text, FLAGS.vocab_file, arguments)
            assert plain["instances"] == ours["instances"]
            ratios["plain"] = f"{plain['seconds'] / ours['seconds']:.1f}x"
        if is_default and (length, whole_words) in ORIGINAL_SECONDS:
            ratios["original"] = f"{ORIGINAL_SECONDS[length, whole_words] / ours['seconds']:.1f}x"
        seconds, count = ours["seconds"], ours["instances"]
        print(
            f"{length:4} {'yes' if whole_words else 'no':>11} {seconds:8.2f} {megabytes / seconds:6.2f} "
            f"{count / seconds:11,.0f} {ours['bytes'] / count:11.0f} {ours['RssAnon']:7.0f} "
            f"{ours['VmRSS']:7.0f} {ratios['plain']:>7} {ratios['original']:>8}",
            flush=True,
        )
        results.append(ours)
    if FLAGS.forms:
        print(f"\n{'form, S 128 (512: packed)':42} {'seconds':>8} {'MB':>7} {'of the text':>11} {'padding':>8}")
        unmasked = {"masking": "dynamic", "dupe_factor": 1}
        cores = len(os.sched_getaffinity(0))
        for name, further in (
            ("static", {}),
            ("static, gzip", {"compression": "gzip"}),
            ("dynamic", unmasked),
            ("dynamic, gzip", unmasked | {"compression": "gzip"}),
            ("dynamic, S 512", unmasked | {"max_seq_length": 512}),
            ("dynamic, S 512, packed", unmasked | {"max_seq_length": 512, "pack_sequences": True}),
            (f"static, {2 * cores} shards, {cores} processes", {"num_shards": 2 * cores, "num_workers": cores}),
        ):
            ours = in_process(run_ours, FLAGS.text, FLAGS.vocab_file, warm_up, basic | further)
            print(
                f"{name:42} {ours['seconds']:8.2f} {ours['bytes'] / 1e6:7.1f} {ours['bytes'] / 1e6 / megabytes:10.2f}x "
                f"{ours['padding']:8.1%}",
                flush=True,
            )
            results.append({"form": name, **ours})
    print(json.dumps(results), file=sys.stderr)


if __name__ == "__main__":
    app.run(main)
