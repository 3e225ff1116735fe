"""Load on an export: threads that ask at once, with strings of all kinds; each answer is compared with that alone.

    python benchmarks/serving_load.py --export=serving/mrpc/1 --threads=8 --seconds=60

The export is loaded as any program loads it, with TensorFlow and tensorflow_text only. Requests hold one to eight
rows: words, empty and blank strings, control characters, bytes that are not UTF-8, scripts of all kinds, long and very
long texts. It prints requests and rows per second, p50 and p99 of a request, and the growth of the process's memory
in the second half; it ends with an error if an answer differs from the row's answer alone.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import concurrent.futures
import pathlib
import random
import time

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers its ops
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("export", None, "A version of an export, for a task whose inputs are strings [B].")
flags.DEFINE_integer("threads", 8, "Threads that ask at once.", lower_bound=1)
flags.DEFINE_float("seconds", 60.0, "How long.")
flags.DEFINE_float("tolerance", 1e-4, "Largest difference of a number from the answer alone.")

TEXTS = [
    *(text.encode() for text in (
        "", " \t\n", "A plain sentence.", "서울은 한국의 수도다.", "日本語のテキスト", "العربية", "Ünïcödé ﬁ Ⅷ",
        "\U0001f469\u200d\U0001f467 \U0001f1f0\U0001f1f7",
        "\u200b\u202e\ufeff", "\x00\x01\x7f", "[CLS] [SEP] [MASK] [PAD]", "a\u0301" * 50, "x" * 5000,
        "many words " * 500,
    )),
    b"\xff\xfe\x80", b"cut \xec\x84", bytes(range(256)),
]  # fmt: skip


def resident() -> int:
    """The process's memory now, in MiB."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def main(_):
    signature = tf.saved_model.load(FLAGS.export).signatures["serving_default"]
    names = list(signature.structured_input_signature[1])

    def ask(rows: list[tuple[bytes, ...]]) -> dict[str, np.ndarray]:
        columns = zip(names, zip(*rows, strict=True), strict=True)
        return {name: value.numpy() for name, value in signature(**{n: tf.constant(c) for n, c in columns}).items()}

    generator = random.Random(0)
    rows = [tuple(generator.choice(TEXTS) for _ in names) for _ in TEXTS] if len(names) > 1 else [(t,) for t in TEXTS]
    alone = [ask([row]) for row in rows]
    deadline, memory = time.monotonic() + FLAGS.seconds, []

    def work(seed: int) -> list[tuple[int, float]]:
        chooser, done = random.Random(seed), []
        while (now := time.monotonic()) < deadline:
            chosen = chooser.choices(range(len(rows)), k=chooser.randint(1, 8))
            answers = ask([rows[number] for number in chosen])
            done.append((len(chosen), time.monotonic() - now))
            check(answers, [alone[number] for number in chosen])
            if seed == 0:
                memory.append(resident())
        return done

    with concurrent.futures.ThreadPoolExecutor(FLAGS.threads) as pool:
        done = [answer for part in pool.map(work, range(FLAGS.threads)) for answer in part]
    times, rate = np.array([taken for _, taken in done]) * 1e3, sum(size for size, _ in done) / FLAGS.seconds
    print(f"{FLAGS.threads} threads, {len(done):,} requests, all equal to the answers alone: "
          f"{len(done) / FLAGS.seconds:.1f} requests/s, {rate:.1f} rows/s, p50 "
          f"{np.percentile(times, 50):.1f} ms, p99 {np.percentile(times, 99):.1f} ms; {memory[-1]} MiB, "
          f"{memory[-1] - memory[len(memory) // 2]} more than at half time")  # fmt: skip


def check(answers: dict[str, np.ndarray], alone: list[dict[str, np.ndarray]]) -> None:
    """Raises AssertionError if a row's output is not its answer alone, where shapes do not depend on the batch."""
    for name, value in answers.items():
        for row, expected in zip(value, alone, strict=True):
            value_alone = expected[name][0]
            if np.shape(row) != np.shape(value_alone):
                continue
            if value.dtype.kind == "f":
                np.testing.assert_allclose(row, value_alone, atol=FLAGS.tolerance, err_msg=name)
            elif name not in ("label", "choice"):  # of almost equal scores either may be first
                np.testing.assert_array_equal(row, value_alone, err_msg=name)


if __name__ == "__main__":
    flags.mark_flag_as_required("export")
    app.run(main)
