"""Compiled steps on a second kind of device, beside ordinary steps on the CPU, and what the host reads of them.

    python -m helpers.second_device classifier tagger

prints for each how far they differ, the number of programs, and what the device sends to the host within the loop; the
first is read by the host in each step.
The device is TensorFlow's XLA_CPU: the processor by another name, but graphs are placed, cut and joined by transfers as
for any device with memory of its own.
"""

import functools
import json
import os
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from helpers.every_model import ROWS, trained
from helpers.training_steps import feed, one_device, trainer_of

_DEVICE = "/device:XLA_CPU:0"
_STEPS = 3
_PROGRAMS = {"PartitionedCall", "StatefulPartitionedCall", "_XlaRun"}


def steps_of(trainer, read: bool):
    """The steps of a call. TensorFlow places on a GPU, unasked, what it leaves on the host here, so this asks."""
    first, step = trainer.first_state, trainer.replica_step

    def replica_step(share, state):
        state = step(share, state)
        with tf.device("/cpu:0"):
            return state._replace(gradient_norm=2.0 * state.gradient_norm)

    @functools.partial(tf.function, autograph=False)
    def steps(iterator, count):
        with tf.device(_DEVICE):
            return trainer._steps(iterator, count)

    trainer.first_state = lambda: tf.nest.map_structure(tf.identity, first())
    trainer.replica_step = replica_step if read else step
    return steps


def trained_on(strategy, case: str, start: list | None = None, read=False) -> tuple:
    """The weights before and after a call, its results, and the graphs of the devices."""
    model, optimizer, features = trained(strategy, case)
    weights = [*model.weights, *(model.teacher.weights if hasattr(model, "teacher") else ())]
    for variable, value in zip(weights, start or (), strict=start is not None):
        variable.assign(value)
    trainer = trainer_of(model, optimizer, strategy=strategy, batch_size=ROWS, use_xla=start is not None)
    steps = steps_of(trainer, read) if start else trainer.steps
    before = [variable.numpy() for variable in weights]
    context.enable_run_metadata()
    results = steps(feed(strategy, tf.data.Dataset.from_tensors(features).repeat()), tf.constant(_STEPS))
    graphs = [graph for part in context.export_run_metadata().function_graphs for graph in part.partition_graphs]
    context.disable_run_metadata()
    return before, [variable.numpy() for variable in weights], {name: float(v) for name, v in results.items()}, graphs


def sent(graphs) -> tuple[int, list[str]]:
    """The number of programs, and what is sent elsewhere of all that is computed from them before the loop ends."""
    programs, names = 0, set()
    for graph in graphs:
        computed, size = {node.name for node in graph.node if node.op in _PROGRAMS}, -1
        programs += len(computed)
        while len(computed) > size:
            size = len(computed)
            for node in graph.node:
                if node.op != "Exit" and any(name[0] != "^" and name.split(":")[0] in computed for name in node.input):
                    computed.add(node.name)
        names |= {node.name for node in graph.node if node.op in ("_Send", "_HostSend") and node.name in computed}
    return programs, sorted(names)


def compared(case: str, read: bool) -> tuple[float, float, int, list[str]]:
    before, after, expected, _ = trained_on(one_device(), case)
    _, compiled, results, graphs = trained_on(tf.distribute.OneDeviceStrategy(_DEVICE), case, before, read)
    largest = max(abs(results[name] - value) / max(abs(value), 1.0) for name, value in expected.items())
    change, other = (
        np.concatenate([(new - old).ravel() for old, new in zip(before, weights, strict=True)])
        for weights in (after, compiled)
    )
    return largest, float(np.linalg.norm(other - change) / np.linalg.norm(change)), *sent(graphs)


if __name__ == "__main__":
    # Read at first use.
    os.environ["TF_XLA_FLAGS"] = f"{os.environ.get('TF_XLA_FLAGS', '')} --tf_xla_enable_xla_devices"
    print(json.dumps([compared(case, read=number == 0) for number, case in enumerate(sys.argv[1:])]))
