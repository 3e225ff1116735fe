"""Speed, memory and disk usage of create_pretraining_data on one core, compared with the original's way.

    python benchmarks/create_data.py
    python benchmarks/create_data.py --text='novels/train-0*.txt' --noplain

For each of four settings (128 and 512 tokens, masking of single pieces and whole words) one process on one core
tokenizes the text, builds instances and writes records. A small run comes first, so start-up and compilation don't
count.

`original way`: the ratio to the same work done as the original does it, on the same core in the same run: Python's own
random numbers and lists of strings, the tokenizer pass by pass and one character at a time, a list and a set for each
position that may be masked, protocol buffers (benchmarks/plain_tokenization.py,
tests/helpers/plain_pretraining.py). A part of the original's work is left out: checks, and lists of segment ids during
the creation of instances. One record in 500 is compared to check that both give the same.
`reference machine`: the ratio to the time of the original's own code on another machine (one of two cores of a Xeon
with AMX), known for the default text; processors differ, so it says little.

"own MB" is the peak of the process's private memory, including libraries and the tokenizer's tables; "RSS MB" also
includes memory mapped from files: libraries, and scratch files, which the system may drop.

Then it measures unmasked, packed and compressed records, and all cores of the machine.

    python benchmarks/create_data.py --vocabularies=spiece.model,vocab.json

measures the vocabularies of other families instead, in seconds of processor time: unmasked records of whole sentences
(S 512) on one core, beside a plain loop over the lines with the same library, which only tokenizes.
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
from measured import add  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_string("text", "novels/train-00.txt,novels/train-01.txt", "Text files, a list of globs.")
flags.DEFINE_string("vocab_file", str(ROOT / "tests" / "golden" / "vocab.txt"), "Vocabulary, uncased.")
flags.DEFINE_integer("dupe_factor", 5, "As in create_pretraining_data.py.")
flags.DEFINE_bool("plain", True, "Do the work the original's way, too.")
flags.DEFINE_bool("forms", True, "Also unmasked, packed and compressed records, and all cores.")
flags.DEFINE_list("vocabularies", [], "Measure these vocabularies of other families instead: .model, vocab.json.")

# The original on the default text: (S, whole words) -> seconds without start-up.
ORIGINAL_SECONDS = {(128, False): 16.7, (128, True): 18.0, (512, False): 17.5}
SETTINGS = [(128, 20, False), (128, 20, True), (512, 77, False), (512, 77, True)]


def run_ours(text: str, vocab_file: str, warm_up: str, arguments: dict) -> dict:
    """One run in a separate process: seconds, and peak memory (without and with file pages)."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments["num_workers"]])
    from bert_tf.pretraining import shard
    from bert_tf.pretraining.create import create_pretraining_data

    shard.BYTES_INTERPRETED = 0  # so that the first run, of a small text, compiles
    logging.set_verbosity(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        create_pretraining_data(warm_up, f"{folder}/warm", vocab_file, **{**arguments, "num_shards": 1})
        threading.Thread(target=watch_memory, args=(peaks := {},), daemon=True).start()
        start, start_cpu = time.perf_counter(), time.process_time()
        summary = create_pretraining_data(text, f"{folder}/out", vocab_file, **arguments)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
        sample = sample_of(f"{folder}/out")
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "sample": sample,
        "instances": summary["instances"],
        "rows": summary["rows"],
        "padding": summary["padding_share"],
        "bytes": sum(summary["output_bytes"].values()),
        **peaks,
    }


def sample_of(path: str) -> list[bytes]:
    """Some of the records of a file."""
    import tensorflow as tf

    return list(tf.data.TFRecordDataset(path).shard(500, 0).as_numpy_iterator()) if os.path.exists(path) else []


def watch_memory(peaks: dict) -> None:
    """Records the peaks of RssAnon and VmRSS of this process, in MB."""
    while True:
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            name, value = line.split(":", 1)
            if name in ("RssAnon", "VmRSS"):
                peaks[name] = max(peaks.get(name, 0), int(value.split()[0]) / 1024)
        time.sleep(0.02)


def run_plain(text: str, vocab_file: str, arguments: dict) -> dict:
    """The same records, made as the original makes them."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    import tensorflow as tf
    from helpers import plain_pretraining
    from plain_tokenization import PlainTokenizer

    from bert_tf.pretraining.record_settings import InstanceSettings
    from bert_tf.system.text_files import list_files
    from bert_tf.text.tokenizer_files import load_vocab

    vocab = load_vocab(vocab_file)
    # Strings instead of ids.
    continuations = frozenset(token for token in vocab if token.startswith("##"))
    vocabulary = plain_pretraining.VocabularyIds("[CLS]", "[SEP]", "[MASK]", list(vocab), continuations)
    start = time.perf_counter()
    documents = plain_pretraining.read_documents(list_files(text), PlainTokenizer(vocab).tokenize)
    tokenized = time.perf_counter()
    names = ("max_seq_length", "max_predictions_per_seq", "dupe_factor", "do_whole_word_mask")
    settings = InstanceSettings(**{name: arguments[name] for name in names})
    instances = plain_pretraining.create_instances_from_documents(documents, settings, vocabulary, random.Random(12345))
    built = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        with tf.io.TFRecordWriter(f"{folder}/out") as writer:
            for instance in instances:
                writer.write(_protocol_buffer(instance, vocab, arguments).SerializeToString())
        end = time.perf_counter()
        sample = sample_of(f"{folder}/out")
    return {
        "seconds": end - start,
        "tokenizing": tokenized - start,
        "building": built - tokenized,
        "instances": len(instances),
        "sample": sample,
    }


def _protocol_buffer(instance, vocab, arguments):
    import tensorflow as tf

    length, width = arguments["max_seq_length"], arguments["max_predictions_per_seq"]

    def integers(values, size):
        values = list(values)
        while len(values) < size:
            values.append(0)
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    weights = [1.0] * len(instance.masked_lm_ids)
    while len(weights) < width:
        weights.append(0.0)
    features = {
        "input_ids": integers([vocab[token] for token in instance.token_ids], length),
        "input_mask": integers([1] * len(instance.token_ids), length),
        "segment_ids": integers([int(k >= instance.second_start) for k in range(len(instance.token_ids))], length),
        "masked_lm_positions": integers(instance.masked_lm_positions, width),
        "masked_lm_ids": integers([vocab[token] for token in instance.masked_lm_ids], width),
        "masked_lm_weights": tf.train.Feature(float_list=tf.train.FloatList(value=weights)),
        "next_sentence_labels": integers([int(instance.is_random_next)], 1),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def check_same(ours: list[bytes], theirs: list[bytes]) -> None:
    """AssertionError if records differ."""
    import tensorflow as tf

    assert len(ours) == len(theirs) > 0
    for ours_row, other in zip(ours, theirs, strict=True):
        assert tf.train.Example.FromString(ours_row) == tf.train.Example.FromString(other)


def run_loop(text: str, vocab_file: str) -> dict:
    """The tokens of a text, encoded line by line."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    from bert_tf.pretraining.model_vocabulary import data_tokenizer
    from bert_tf.system.text_files import list_files

    encode = data_tokenizer(vocab_file, do_lower_case=None).encode
    lines = [line for path in list_files(text) for line in pathlib.Path(path).read_text("utf-8").split("\n")]
    encode("A first line.")
    start = time.process_time()
    tokens = sum(len(encode(line.strip())) for line in lines)
    return {"cpu_seconds": time.process_time() - start, "tokens": tokens}


def measure_vocabularies(text: str, warm_up: str, megabytes: float) -> list[dict]:
    """Prints a table of the vocabularies of other families."""
    print(f"{'vocabulary':30} {'seconds':>8} {'MB/s':>6} {'loop':>8} {'tokens':>10} {'own MB':>7}")
    arguments = {"rows": "full_sentences", "max_seq_length": 512, "num_workers": 1, "show_progress": False}
    results = []
    for vocab_file in FLAGS.vocabularies:
        ours = in_process(run_ours, text, vocab_file, warm_up, arguments)
        loop = in_process(run_loop, text, vocab_file)
        seconds = ours["cpu_seconds"]
        print(
            f"{vocab_file[-30:]:30} {seconds:8.2f} {megabytes / seconds:6.2f} {loop['cpu_seconds']:8.2f} "
            f"{loop['tokens']:10,} {ours['RssAnon']:7.0f}",
            flush=True,
        )
        ours.pop("sample")
        results.append({"vocabulary": vocab_file, "loop_cpu_seconds": loop["cpu_seconds"], **ours})
    return results


def in_process(function, *arguments):
    """The result of a function in a new process, so that its memory is its own."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main(_):
    from bert_tf.system.text_files import list_files

    files = list_files(FLAGS.text, flag="--text")
    megabytes = sum(os.path.getsize(path) for path in files) / 1e6
    warm_up = str(ROOT / "tests" / "golden" / "pretraining" / "corpus_0.txt")
    if FLAGS.vocabularies:
        print(json.dumps(measure_vocabularies(FLAGS.text, warm_up, megabytes)), file=sys.stderr)
        return
    basic = {"dupe_factor": FLAGS.dupe_factor, "show_progress": False, "num_workers": 1}
    is_default = FLAGS["text"].using_default_value and FLAGS.dupe_factor == 5
    print(f"{megabytes:.2f} MB of text, dupe_factor {FLAGS.dupe_factor}, one core")
    print(
        f"{'S':>4} {'whole words':>11} {'seconds':>8} {'MB/s':>6} {'instances/s':>11} {'bytes/inst.':>11} "
        f"{'own MB':>7} {'RSS MB':>7} {'original way':>14} {'reference machine':>17}"
    )
    results = []
    for length, predictions, whole_words in SETTINGS:
        arguments = basic | {
            "max_seq_length": length,
            "max_predictions_per_seq": predictions,
            "do_whole_word_mask": whole_words,
        }
        ours = in_process(run_ours, FLAGS.text, FLAGS.vocab_file, warm_up, arguments)
        ratios, faster = {"plain": "", "original": ""}, []
        if FLAGS.plain:
            plain = in_process(run_plain, FLAGS.text, FLAGS.vocab_file, arguments)
            assert plain["instances"] == ours["instances"]
            check_same(ours["sample"], plain.pop("sample"))
            ours["original_way"] = plain
            faster = [plain["seconds"] / ours["seconds"]]
            ratios["plain"] = f"{faster[0]:.1f}x"
        del ours["sample"]
        if is_default and (length, whole_words) in ORIGINAL_SECONDS:
            ratios["original"] = f"{ORIGINAL_SECONDS[length, whole_words] / ours['seconds']:.1f}x"
        seconds, count = ours["seconds"], ours["instances"]
        print(
            f"{length:4} {'yes' if whole_words else 'no':>11} {seconds:8.2f} {megabytes / seconds:6.2f} "
            f"{count / seconds:11,.0f} {ours['bytes'] / count:11.0f} {ours['RssAnon']:7.0f} "
            f"{ours['VmRSS']:7.0f} {ratios['plain']:>14} {ratios['original']:>17}",
            flush=True,
        )
        figures = {"MB of text/s": megabytes / seconds, "resident, MB": f"{ours['VmRSS']:,.0f}"}
        title = f"S {length}, P {predictions}{', whole words' * whole_words}"
        add("training records", title, figures, ratios=faster)
        results.append(ours)
    if FLAGS.forms:
        print(f"\n{'form, S 128 (512: packed)':42} {'seconds':>8} {'MB':>7} {'of the text':>11} {'padding':>8}")
        unmasked = {"masking": "dynamic", "dupe_factor": 1}
        cores = len(os.sched_getaffinity(0))
        for name, further in (
            ("static", {}),
            ("dynamic", unmasked),
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
            times = ours["bytes"] / 1e6 / megabytes
            figures = {"seconds": ours["seconds"], "times the text": times, "padding": f"{100 * ours['padding']:.1f} %"}
            add("forms of records", name, figures)
            ours.pop("sample")
            results.append({"form": name, **ours})
    print(json.dumps(results), file=sys.stderr)


if __name__ == "__main__":
    app.run(main)
