"""Where the time of a pre-training step goes: seconds of each kind of TensorFlow operation, of ours or of the peer.

    python benchmarks/profile_step.py --dtype=bfloat16
    python benchmarks/profile_step.py --dtype=bfloat16 --hidden_size=256 --side=tf-models-official

The flags of train_step.py say which step; one is traced by TensorFlow's profiler on the CPU. By default operations run
one at a time: beside a large product, which takes all cores, a small one would seem to be as slow. With
--inter_op_threads=2 "seconds" divides the time of the clock between those that run, so that all rows add up to the
step; "busy" is the sum of their own times. "all matrix products" sums up all operations that are one; "nothing" is the
time when none ran: the executor, and waiting. A fused chain of kernels.py is one operation, "fused chain".
The second table has the operations by their places in the model, with layers and copies merged.
"""

import collections
import pathlib
import re
import statistics
import tempfile
import time

import tensorflow as tf
from absl import app, flags, logging
from train_step import FLAGS, Comparison

flags.DEFINE_enum("side", "bert_tf", ["bert_tf", "tf-models-official"], "Whose step.")
flags.DEFINE_integer("inter_op_threads", 1, "Operations that run at the same time; 0: TensorFlow's choice.")
flags.DEFINE_integer("places", 40, "Rows of the second table.")

PRODUCTS = re.compile("MatMul|Einsum")
_OPERATION = re.compile(r"^(.+):(_?[A-Z]\w*)$")  # the profiler's name of one that ran: its name and its kind


def read_trace(folder: str) -> list[tuple[int, int, str, str]]:
    """(begin, end, place, kind) of every operation that ran, in picoseconds of one clock, without those inside."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    (plane,) = (plane for plane in space.planes if plane.name == "/host:CPU")
    names = {number: metadata.name for number, metadata in plane.event_metadata.items()}
    matches = {number: _OPERATION.match(name) for number, name in names.items() if "::" not in name}
    matches = {number: match for number, match in matches.items() if match}

    def stats(event) -> dict[str, str]:
        """The strings that describe an event."""
        values = ((stat, stat.str_value or plane.stat_metadata[stat.ref_value].name) for stat in event.stats)
        return {plane.stat_metadata[stat.metadata_id].name: value for stat, value in values}

    operations = []
    for line in plane.lines:
        call, call_begin, end = None, 0, 0  # the latest call of a function; the end of the latest operation
        for event in sorted(line.events, key=lambda event: (event.offset_ps, -event.duration_ps)):
            begin, name = 1000 * line.timestamp_ns + event.offset_ps, names[event.metadata_id]
            if begin < end:  # inside an operation of the same thread
                continue
            if name == "ExecutorState::ProcessAsync::Start":
                call, call_begin, call_end = stats(event), begin, begin + event.duration_ps
            elif name == "ExecutorState::ProcessAsync::Done" and call and "module" in call:
                # Those of the backward pass have no place; one program is used in all layers.
                scope = call["name"].rpartition("PartitionedCall")[0] + call["module"]
                operations.append((call_begin, begin, scope, "fused chain"))
                call, end = None, begin
            elif call and begin < call_end and (module := stats(event).get("hlo_module")):
                call.setdefault("module", re.sub(r"^a_inference_+|_*\.\d+$", "", module).replace("_", "-"))
            elif match := matches.get(event.metadata_id):
                end = begin + event.duration_ps
                operations.append((begin, end, *match.groups()))
    return operations


def divide(operations: list[tuple[int, int, str, str]]) -> tuple[list[float], float]:
    """Seconds of the clock for each operation, shared equally while several run; and of the time when none did."""
    changes = sorted(
        [(begin, 1, number) for number, (begin, *_) in enumerate(operations)]
        + [(end, 0, number) for number, (_, end, *_) in enumerate(operations)]
    )
    seconds, nothing, running, previous = [0.0] * len(operations), 0.0, set(), changes[0][0]
    for moment, starts, number in changes:
        passed, previous = (moment - previous) * 1e-12, moment
        for index in running:
            seconds[index] += passed / len(running)
        nothing += 0 if running else passed
        (running.add if starts else running.discard)(number)
    return seconds, nothing


def merged(scope: str) -> str:
    """A place without numbers of layers and copies, and without the loops around the step."""
    scope = scope.replace("gradient_tape", "gradient")
    scope = re.sub(r"(^|/)(while|body|_\d+|pretraining(_\d+)?)(?=/)", r"\1", scope)
    scope = re.sub(r"layer_\d+", "layer", scope)
    return re.sub(r"(_\d+)+(?=[/ ]|$)", "", re.sub("/+", "/", scope)).strip("/")


def table(title: str, rows: dict[str, list[float]], total: float, most: int | None = None) -> None:
    """Prints seconds, share, busy seconds and count by name, sorted."""
    print(f"\n{title:100} {'seconds':>8} {'share':>6} {'busy':>8} {'count':>6}")
    for name, (seconds, busy, count) in sorted(rows.items(), key=lambda row: -row[1][0])[:most]:
        print(f"{name[-100:]:100} {seconds:8.4f} {seconds / total:6.1%} {busy:8.4f} {count:6.0f}")


def main(_):
    logging.set_verbosity(logging.WARNING)
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.inter_op_threads)
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(folder)
        step = comparison.our_step() if FLAGS.side == "bert_tf" else comparison.peer_step()
        seconds = []
        for _ in range(2 + FLAGS.rounds):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        tf.profiler.experimental.start(folder)
        start = time.perf_counter()
        step()
        traced = time.perf_counter() - start
        tf.profiler.experimental.stop()
        operations = read_trace(folder)
    print(f"{FLAGS.side}: {FLAGS.model}, {FLAGS.num_hidden_layers} layers, H {FLAGS.hidden_size}, S "
          f"{FLAGS.max_seq_length}, batch {FLAGS.batch_size}, {FLAGS.dtype}: {statistics.median(seconds[2:]):.3f} s a "
          f"step, {traced:.3f} s with the profiler")  # fmt: skip
    shares, nothing = divide(operations)
    kinds, places = (collections.defaultdict(lambda: [0.0, 0.0, 0]) for _ in range(2))
    for (begin, end, scope, kind), share in zip(operations, shares, strict=True):
        group = ["all matrix products"] if PRODUCTS.search(kind) else ["all others"]
        for rows, name in ((kinds, kind), (kinds, group[0]), (places, f"{merged(scope)} {kind}")):
            rows[name] = [a + b for a, b in zip(rows[name], (share, (end - begin) * 1e-12, 1), strict=True)]
    kinds["nothing"] = [nothing, nothing, 0]
    total = sum(shares) + nothing
    table("kind", kinds, total)
    table("place", places, total, FLAGS.places)


if __name__ == "__main__":
    app.run(main)
