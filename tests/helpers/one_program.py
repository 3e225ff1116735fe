"""A stand-in for a TPU: what a script gives to `strategy.run` is compiled by XLA as a whole, on the CPU.

`helpers.script_cases` runs scripts with it: with --distribution_strategy=tpu they get this strategy, and all that comes
with that flag. XLA refuses what it can't compile (strings, other operations of the host, shapes that depend on values).
"""

import re

import tensorflow as tf

from bert_tf.training import distribution

_functions: list["_Compiled"] = []
# In the text of a program: shapes known only when it runs, and work that the host does.
_DYNAMIC = ("set-dimension-size(", "get-dimension-size(", "<=", "dynamic-reshape")
_HOST = ("custom-call", "infeed", "outfeed", "send(", "recv(")


class _Compiled:
    """A function of `strategy.run`, compiled; it counts its traces and keeps the shapes of each."""

    def __init__(self, function):
        self.name, self.traces = function.__qualname__, []

        def traced(*tensors):
            self.traces.append([tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors])
            return function(*tf.nest.pack_sequence_as(self.structure, tensors))

        self.compiled = tf.function(traced, jit_compile=True, autograph=False)
        _functions.append(self)

    def __call__(self, *arguments):
        self.structure = arguments
        return self.compiled(*tf.nest.flatten(arguments))

    def report(self) -> dict:
        """Its name, the number of its traces, and what a TPU could not run, or only slowly, in their programs."""
        traces = list(self.traces)
        texts = [self.compiled.experimental_get_compiler_ir(*specs)(stage="hlo") for specs in traces]
        # The size of what top_k finds is a constant, but written as if it were not.
        texts = [re.sub(r".*set-dimension-size\(.*TopKV2.*", "", text) for text in texts]
        marks = {mark for text in texts for mark in (*_DYNAMIC, *_HOST) if mark in text}
        marks |= {str(spec) for specs in traces for spec in specs if not spec.shape.is_fully_defined()}
        features = [spec for specs in traces for spec in specs if spec.shape.rank]  # and scalars, the loop's state
        # GPUs have no use for others.
        marks |= {str(spec) for spec in features if spec.dtype not in (tf.int32, tf.float32)}
        modules = [text.count("HloModule ") for text in texts]
        return {"name": self.name, "traces": len(traces), "modules": modules, "found": sorted(marks)}


class Strategy(tf.distribute.OneDeviceStrategy):
    """One replica on the CPU, whose functions XLA compiles as a whole."""

    def __init__(self):
        super().__init__("CPU:0")
        self._compiled = {}

    def run(self, fn, args=(), kwargs=None, options=None):
        if fn not in self._compiled:
            self._compiled[fn] = _Compiled(fn)
        return super().run(self._compiled[fn], args, kwargs, options)


def prepare() -> None:
    tf.distribute.TPUStrategy = Strategy  # what the library looks for
    distribution._tpu_strategy = lambda name, zone, project: Strategy()


def report() -> list[dict]:
    functions, _functions[:] = [*_functions], []
    return [function.report() for function in functions]
