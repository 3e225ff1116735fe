"""What a GPU is given, from graphs traced for GPUs that are not there: few programs, and no wait in the loop."""

import functools
import json
import sys
from collections.abc import Iterator

import pytest
import tensorflow as tf
from helpers import warm
from helpers.every_model import CASES, ROWS, trained
from helpers.paths import TESTS
from helpers.slow import slow
from helpers.training_steps import feed, mirrored, one_device, trainer_of

from bert_tf.training import step


def gpus(count: int) -> tf.distribute.Strategy:
    """A strategy of GPUs, whether there are any or not: steps can be traced for it."""
    names = [f"/gpu:{number}" for number in range(count)]
    return tf.distribute.OneDeviceStrategy(names[0]) if count == 1 else tf.distribute.MirroredStrategy(names)


OPTIONS = {
    "plain": {},
    "all": {"gradient_accumulation_steps": 2, "recompute": True, "scale": 1024.0, "skip_nonfinite_steps": True},
}

USUAL = {1: ("pretraining", "plain"), 2: ("classifier", "all")}  # by the number of replicas


@functools.cache
def loop_of(strategy_of, replicas: int, case: str, options: str) -> tuple:
    """The body and the condition of the loop of steps, and the graph's functions by their names."""
    strategy = strategy_of(replicas)
    model, optimizer, features = trained(strategy, case)
    trainer = trainer_of(model, optimizer, strategy=strategy, batch_size=ROWS, **OPTIONS[options])
    iterator = feed(strategy, tf.data.Dataset.from_tensors(features).repeat())
    graph = trainer.steps.get_concrete_function(iterator, tf.constant(1)).graph.as_graph_def()
    functions = {function.signature.name: function for function in graph.library.function}
    (loop,) = (node for node in graph.node if node.op == "While")
    return *(functions[loop.attr[name].func.name] for name in ("body", "cond")), functions


def called(node, functions: dict) -> list:
    return [functions[value.func.name] for value in node.attr.values() if value.func.name in functions]


def operations(function, functions: dict) -> Iterator:
    """The operations of a function and of those that it calls; a function that XLA compiles is one operation."""
    for node in function.node_def:
        inner = called(node, functions)
        if not inner or any(one.attr["_XlaMustCompile"].b for one in inner):
            yield node
        else:
            for one in inner:
                yield from operations(one, functions)


@pytest.mark.parametrize(("replicas", "case", "options"), [
    *((replicas, *case) for replicas, case in USUAL.items()),
    *slow(
        (1, "pretraining", "all"),
        (2, "electra", "plain"),
        *((1, case, "plain") for case in sorted(CASES) if case != "pretraining"),
    ),
])  # fmt: skip
def test_programs_of_a_step(replicas, case, options):
    """One on one GPU. Else three, and two sums between: of the counts that losses are divided by, of all gradients."""
    body, _, functions = loop_of(gpus, replicas, case, options)
    found = list(operations(body, functions))
    programs = [node for node in found if called(node, functions)]
    assert len(programs) == (1 if replicas == 1 else 3 * replicas)
    assert all("GPU" in node.device for node in programs)
    rest = {node.op for node in found if node not in programs} - {"Const", "Identity", "IdentityN", "NoOp"}
    assert sum(node.op == "CollectiveReduceV2" for node in found) == (0 if replicas == 1 else 2 * replicas)
    sums = {"CollectiveReduceV2", "ConcatV2", "SplitV"} if replicas > 1 else {*()}
    assert (rest - {"Pack", "Prod", "Reshape"} if replicas > 1 else rest) == {"AddV2", "IteratorGetNext"} | sums


def test_replicas_on_a_cpu_add_up_all_gradients_at_once():  # a table's, too, which is rows of tokens before
    body, _, functions = loop_of(mirrored, 2, "classifier", "plain")
    sums = [node.op for node in operations(body, functions) if "Collective" in node.op]
    assert sums == ["CollectiveReduceV2"] * 4


def producers(function, name: str) -> set[str]:
    """The operations and arguments that a function's result is computed from, not those that only come before it."""
    nodes = {node.name: node for node in function.node_def}
    found, waiting = set(), [function.ret[name]]
    while waiting:
        if (first := waiting.pop().split(":")[0]) not in found:
            found.add(first)
            waiting += [value for value in nodes[first].input if value[0] != "^"] if first in nodes else []
    return found


@pytest.mark.parametrize(
    ("strategy_of", "replicas"), [(gpus, 1), (gpus, 2), (lambda _: one_device(), 1)], ids=["gpu", "gpus", "cpu"]
)
def test_whether_the_loop_goes_on_depends_on_no_gradient(strategy_of, replicas):
    body, condition, _ = loop_of(strategy_of, replicas, *USUAL[replicas])
    (result,) = condition.ret  # a name
    numbers = {argument.name: number for number, argument in enumerate(condition.signature.input_arg)}
    read = {numbers[name] for name in producers(condition, result) if name in numbers}
    ops = {node.name: node.op for node in body.node_def}
    arguments, results = (
        [argument.name for argument in part] for part in (body.signature.input_arg, body.signature.output_arg)
    )
    assert read
    for number in read:
        found = producers(body, results[number])
        assert {ops[name] for name in found if name in ops} <= {"AddV2", "Const", "Identity", "NoOp"}
        assert {arguments.index(name) for name in found if name in arguments} <= read


@pytest.mark.slow  # in small: test_programs_of_a_step, and what the loop waits for above
@pytest.mark.parametrize("cases", [sorted(CASES)])
def test_a_call_of_compiled_steps_on_a_device_with_memory_of_its_own(cases):
    """It ends as ordinary steps do, and before its end the device sends the host nothing that a step computes."""
    command = [sys.executable, "-m", "helpers.second_device", "next", *cases]
    done = warm.run(command, cwd=str(TESTS), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (*_, read), *found = json.loads(done.stdout)
    assert read, "the check itself sees a norm that the host reads in each step"
    for case, (results, change, programs, sent) in zip(cases, found, strict=True):
        assert programs and not sent, case
        assert results < 1e-4 and change < 1e-4, case


@pytest.mark.parametrize("replicas", [1, 2])
def test_batches_wait_on_the_gpus(replicas):
    assert isinstance(
        feed(gpus(replicas), tf.data.Dataset.from_tensors(CASES["next"][1])), tf.distribute.DistributedIterator
    )
    body, _, functions = loop_of(gpus, replicas, *USUAL[replicas])
    nexts = [node for node in operations(body, functions) if node.op == "IteratorGetNext"]
    assert len(nexts) == replicas and not any("CPU" in node.device for node in nexts)


@pytest.mark.parametrize(("replicas", "case"), [(1, "pretraining"), *slow((2, "electra"))])
def test_a_batch_of_an_evaluation_is_one_program_on_each_gpu(monkeypatch, replicas, case):
    strategy = gpus(replicas)
    model, _, features = trained(strategy, case)
    batches, graphs = tf.data.Dataset.from_tensors(features), []

    def trace(function, batches):
        graphs.append(function.get_concrete_function(batches.element_spec).graph.as_graph_def())
        raise InterruptedError  # there are no GPUs to run it

    monkeypatch.setattr(step, "_traced_once", trace)
    with pytest.raises(InterruptedError):
        step.make_evaluate_function(model, model.objective, strategy, compiled=True)(batches)
    (graph,) = graphs
    functions = {function.signature.name: function for function in graph.library.function}
    programs = [node for node in graph.node if any("GPU" in node.device for _ in called(node, functions))]
    assert len(programs) == replicas and not any("MatMul" in node.op for node in graph.node)


def test_a_compiled_evaluation_has_the_same_numbers():
    strategy = one_device()
    model, _, features = trained(strategy, "pretraining")
    plain, compiled = (
        step.make_evaluate_function(model, model.objective, strategy, compiled)(tf.data.Dataset.from_tensors(features))
        for compiled in (False, True)
    )
    assert plain.keys() == compiled.keys() and compiled == pytest.approx(plain, rel=1e-5, abs=1e-6)
