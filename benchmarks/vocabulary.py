"""Compares two WordPiece learners on the same word counts: time, memory, and pieces per word on held-out text.

    python benchmarks/vocabulary.py --train='corpus/train-*.txt' --heldout=corpus/heldout.txt

tensorflow-text's learner is plain Python and takes about a minute and a half on 20 MB of English. Each learner runs in
a separate process; memory is that process's peak beyond the word counts it starts with (Linux only).
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from bert_tf.system import text_files
from bert_tf.text import learn_vocabulary
from bert_tf.text import wordpiece as text_wordpiece
from bert_tf.text.learn_vocabulary import count_words

NOVELS = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "novels"
FLAGS = flags.FLAGS
flags.DEFINE_string("train", str(NOVELS / "train-*.txt"), "Text files to learn from, a list of globs.")
flags.DEFINE_string("heldout", str(NOVELS / "heldout.txt"), "Text files to evaluate on, a list of globs.")
flags.DEFINE_integer("vocab_size", 30522 - 103, "Tokens to learn, without special tokens.")
flags.DEFINE_bool("do_lower_case", True, "Lower-case the text.")


def learn_by_tokenizers(counts: dict, vocab_size: int) -> list[str]:
    return learn_vocabulary.learn_pieces(counts, set().union(*counts), vocab_size, min_frequency=2, show_progress=False)


def learn_by_tensorflow_text(counts: dict, vocab_size: int) -> list[str]:
    # Only this file: its package would load TensorFlow and distort the memory measurement.
    package = importlib.util.find_spec("tensorflow_text").submodule_search_locations[0]
    path = pathlib.Path(package) / "tools" / "wordpiece_vocab" / "wordpiece_tokenizer_learner_lib.py"
    spec = importlib.util.spec_from_file_location("wordpiece_tokenizer_learner_lib", path)
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    return library.learn(counts, vocab_size, reserved_tokens=[], lower_thresh=2, max_unique_chars=10**6)


LEARNERS = {"tokenizers": learn_by_tokenizers, "tensorflow-text": learn_by_tensorflow_text}


def peak_megabytes() -> float:
    # Not getrusage: its maximum is inherited from the parent process, which has loaded TensorFlow.
    status = pathlib.Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024


def run_learner(name: str, counts_file: str, vocab_size: str, result_file: str) -> None:
    """One learner in a separate process."""
    counts = json.loads(pathlib.Path(counts_file).read_text(encoding="utf-8"))
    before = peak_megabytes()
    start = time.perf_counter()
    pieces = LEARNERS[name](counts, int(vocab_size))
    seconds = time.perf_counter() - start
    result = {"pieces": pieces, "seconds": seconds, "megabytes": peak_megabytes() - before}
    pathlib.Path(result_file).write_text(json.dumps(result), encoding="utf-8")


def main(_):
    tokenizer = text_wordpiece.BasicTokenizer(FLAGS.do_lower_case)
    start = time.perf_counter()
    train = count_words(text_files.list_files(FLAGS.train, "--train"), tokenizer.tokenize).counts
    print(f"{train.total()} words, {len(train)} different, counted in {time.perf_counter() - start:.1f} s")
    heldout = count_words(text_files.list_files(FLAGS.heldout, "--heldout"), tokenizer.tokenize).counts
    print(f"held out: {heldout.total()} words; {FLAGS.vocab_size} tokens to learn\n")

    print("| learner | tokens | seconds | MB added | pieces per word | [UNK] per million words |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        counts_file, result_file = (f"{folder}/{name}.json" for name in ("counts", "result"))
        pathlib.Path(counts_file).write_text(json.dumps(train), encoding="utf-8")
        for name in LEARNERS:
            command = [sys.executable, __file__, "--learner", name, counts_file, str(FLAGS.vocab_size), result_file]
            subprocess.run(command, check=True)
            result = json.loads(pathlib.Path(result_file).read_text(encoding="utf-8"))
            wordpiece = text_wordpiece.WordpieceTokenizer({piece: i for i, piece in enumerate(result["pieces"])})
            pieces = unknown = 0
            for word, count in heldout.items():
                cut = wordpiece.cut(word)
                pieces += len(cut) * count
                unknown += (cut == ["[UNK]"]) * count
            print(
                f"| {name} | {len(result['pieces'])} | {result['seconds']:.1f} | {result['megabytes']:.0f} | "
                f"{pieces / heldout.total():.4f} | {1e6 * unknown / heldout.total():.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--learner"]:
        run_learner(*sys.argv[2:])
    else:
        app.run(main)
