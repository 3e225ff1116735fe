"""What a TPU of several cores would be given: steps traced for TensorFlow's own TPUStrategy, without a TPU.

    python -m helpers.eight_cores 8 classifier tagger

prints name -> what a TPU could not run in the step of that model. The strategy is given a TPU that exists only as a
description, and virtual CPUs as its cores; its private names are those of TensorFlow 2.20. Nothing runs.
"""

import collections
import functools
import json
import sys
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import tpu_strategy
from tensorflow.python.tpu.tpu_system_metadata import TPUSystemMetadata

from helpers.every_model import ROWS, trained
from helpers.training_steps import trainer_of

_HOST = {"PyFunc", "EagerPyFunc", "PyFuncStateless", "NumpyFunction", "Print", "PrintV2"}


class DescribedTpu:
    """What the strategy asks a cluster resolver about."""

    task_type = task_id = None

    def __init__(self, cores: int):
        device = collections.namedtuple("Device", "name device_type")
        name = "/job:localhost/replica:0/task:0/device:TPU:{}"
        devices = [device(name.format(core), "TPU") for core in range(cores)]
        self.metadata = TPUSystemMetadata(
            cores, num_hosts=1, num_of_cores_per_host=cores, topology=None, devices=devices
        )

    def get_tpu_system_metadata(self) -> TPUSystemMetadata:
        return self.metadata


def strategy_of(cores: int) -> tf.distribute.Strategy:
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * cores)
    construct = tpu_strategy.TPUExtended.__init__

    def on_cpus(extended, *args, **kwargs):
        construct(extended, *args, **kwargs)
        names = [f"/job:localhost/replica:0/task:0/device:CPU:{core}" for core in range(cores)]
        extended._tpu_devices = np.array(names, object)[:, None]
        extended._device_input_worker_devices = collections.OrderedDict({extended._host_device: names})

    tpu_strategy.TPUExtended.__init__ = on_cpus
    return tf.distribute.TPUStrategy(DescribedTpu(cores))


def operations(graph) -> Iterator[tf.Operation]:
    """The operations of a graph that go to the TPU, and those of the functions that they call."""
    for operation in graph.get_operations():
        if "_tpu_replicate" not in operation.node_def.attr and graph.outer_graph is None:
            continue
        yield operation
        for value in operation.node_def.attr.values():
            if value.func.name:
                # As it was traced: one made of its definition has lost the shapes of variables.
                yield from operations(graph._get_function(value.func.name).graph)


def replica_step(strategy, case: str) -> tuple:
    """What `strategy.run` gets in a step of a model, the batch, and the state, which belongs to the graph."""
    if case == "values":  # what a TPU can't run
        return lambda share, _: tf.strings.as_string(tf.boolean_mask(share, share > 0)), np.ones(3), lambda: 0
    model, optimizer, features = trained(strategy, case)
    trainer = trainer_of(model, optimizer, strategy=strategy, batch_size=ROWS * strategy.num_replicas_in_sync)
    return trainer.replica_step, features, trainer.first_state


def problems(strategy, case: str) -> tuple[int, list[str]]:
    """The number of operations of a step on the TPU, and those that it has no place for."""
    function, features, state = replica_step(strategy, case)

    @functools.partial(tf.function, autograph=False)
    def step(share):
        return strategy.run(function, (share, state()))

    share = strategy.experimental_distribute_values_from_function(
        lambda _: tf.nest.map_structure(tf.constant, features)
    )
    found, count = set(), 0
    for operation in operations(step.get_concrete_function(share).graph):
        count += 1
        if operation.type in _HOST or "String" in operation.type:
            found.add(f"{operation.name} is {operation.type}")
        for output in operation.outputs:
            is_fixed = output.shape.is_fully_defined() or output.dtype in (tf.resource, tf.variant)
            # XLA leaves out checks of ids, and with them their messages.
            is_text = output.dtype == tf.string and {user.type for user in output.consumers()} != {"Assert"}
            if operation.type not in ("Placeholder", "TPUCompilationResult") and (is_text or not is_fixed):
                found.add(f"{operation.name}: {output.dtype.name} {output.shape}")
    return count, sorted(found)


if __name__ == "__main__":
    tpu = strategy_of(int(sys.argv[1]))
    print(json.dumps({case: problems(tpu, case) for case in sys.argv[2:]}))
