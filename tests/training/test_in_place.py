"""Adam's update in the variables' own memory, and what a GPU is given, from graphs traced without one."""

import functools
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.every_model import CASES, ROWS, trained
from helpers.training_steps import build, feed, make_batches, mirrored, one_device, trainer_of

from bert_tf.models import initialize
from bert_tf.system.numba_compile import compiled
from bert_tf.training import in_place
from bert_tf.training import step as train_step
from bert_tf.training.optimization import AdamWeightDecay

# In an update: of both threads' halves of the table, one of them three times; some in one update only; none at all.
TOKENS = [3, 0, 119, 3, 60, 3], [0, 1, 2, 3, 4, 5], [], [119, 118, 118, 119, 0, 0]


def updated(is_in_place: bool, counts: list[bool], **options) -> dict[str, np.ndarray]:
    """Variables and moments after updates, by the optimizer or in place. counts: for each whether it is applied."""
    model, _ = build(one_device())
    optimizer, variables, random = AdamWeightDecay(**options), model.trainable_variables, np.random.default_rng(1)
    optimizer.build(variables)
    gradients = [tf.constant(random.normal(size=variable.shape), "float32") for variable in variables]
    table = next(number for number, variable in enumerate(variables) if variable.path.endswith("word_embeddings"))
    updater = in_place.InPlaceAdam(optimizer, variables) if is_in_place else optimizer

    @tf.function(autograph=False)
    def update(tokens, counts, step):
        slices = tf.IndexedSlices(gradients[table][: tokens.shape[0]], tokens, gradients[table].shape)
        of_all = [*gradients[:table], slices, *gradients[table + 1 :]]
        updater.update_steps(of_all, variables, 0.1, tf.constant(0.5), counts, step)

    for step, (tokens, applies) in enumerate(zip(TOKENS, counts, strict=True), 1):
        if is_in_place and step != 2:  # in the second update the memory is still that of the first
            updater.addresses.clear()
            updater.own_memory()
        update(tf.constant(tokens, tf.int32), tf.constant(applies), tf.constant(step, "float32"))
    return {name: value.numpy() for name, value in initialize.training_variables(model, optimizer).items()}


@pytest.mark.parametrize("counts", [[True, True, True, True], [False, True, True, False]])
@pytest.mark.parametrize("options", [
    {},
    {"bias_correction": True, "weight_decay_rate": 0.1},
    {"bias_correction": True, "epsilon_after_correction": True, "epsilon": 1e-2, "layerwise_lr_decay": 0.8},
])  # fmt: skip
def test_the_update_is_the_optimizers(options, counts, monkeypatch):
    monkeypatch.setattr(in_place, "_SMALL", 100)
    expected, actual = (updated(is_in_place, counts, **options) for is_in_place in (False, True))
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=2e-6, atol=1e-8, err_msg=name)


def test_moments_that_are_too_small_become_zero():
    assert isinstance(in_place._move, type(compiled(in_place._move.py_func)))  # its cache may be damaged
    m, v = (np.float32([1e-38, -1e-38, 1e-37, np.nan]) for _ in range(2))
    numbers = np.float32([0.1, 1.0, 1.0, 1e-6, 0.9, 0.1, 0.9, 0.1])  # the third of m stays a normal number
    in_place._move(np.ones(4, np.float32), m, v, np.zeros(4, np.float32), numbers, np.zeros(2, np.float32))
    np.testing.assert_array_equal(m, np.float32([0, 0, np.float32(0.9) * np.float32(1e-37), np.nan]))
    np.testing.assert_array_equal(v[[0, 1]], 0)


def trainer_and_batches():
    trainer = trainer_of(*build(one_device()), batch_size=4)
    return trainer, feed(one_device(), tf.data.Dataset.from_tensor_slices(make_batches(4, 8)))


def test_what_is_held_of_a_variable_keeps_its_value():
    trainer, batches = trainer_and_batches()
    for _ in range(2):
        held = {name: tf.identity(variable.value) for name, variable in trainer.tensors.items()}
        values = {name: value.numpy() for name, value in held.items()}
        trainer.own_memory()
        trainer.steps(batches, tf.constant(2))
        for name, value in held.items():
            np.testing.assert_array_equal(value, values[name], err_msg=name)
    assert any((trainer.tensors[name].numpy() != value).any() for name, value in values.items())


@pytest.mark.parametrize("row", [-1, 120])
def test_a_row_outside_the_table_is_an_error(row):
    (table,) = variables = [keras.Variable(np.ones((120, 2), "float32"), name="table")]
    optimizer = AdamWeightDecay()
    optimizer.build(variables)
    updater = in_place.InPlaceAdam(optimizer, variables)
    updater.own_memory()
    slices = tf.IndexedSlices(tf.ones((2, 2)), tf.constant([3, row]), tf.constant([120, 2]))
    update = tf.function(lambda: updater.update_steps([slices], variables, 0.1, 0.5, tf.constant(True), 1.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not all in a table of 120"):
        update()
    np.testing.assert_array_equal(table, 1)


def test_an_optimizer_with_its_own_direction_is_left_alone():
    model, optimizer = build(one_device())
    own = type("Own", (AdamWeightDecay,), {})()
    own.build(model.trainable_variables)
    trainers = [trainer_of(model, one, batch_size=4) for one in (optimizer, own)]
    assert [trainer._in_place is None for trainer in trainers] == [False, True]


def test_memory_that_is_not_the_trainers_is_not_written_to():
    """Whatever was done to a table; and the refused call takes no batch."""
    trainer, batches = trainer_and_batches()
    trainer.steps(batches, tf.constant(1))
    table, optimizer = trainer.model.bert.embeddings.trainable_variables[0], trainer.optimizer
    held = [tf.fill(table.shape, 1.0)]
    changes = [
        lambda: table.assign(held[0]),
        # In what was the table's, were it free.
        lambda: held.append(tf.fill(table.shape, 2.0)) or table.assign(held[1]),
        lambda: optimizer.first_moments[0].value.assign_add(tf.zeros(table.shape)),
        lambda: optimizer.first_moments[0].assign(optimizer.second_moments[0].value),
        lambda: table.value.scatter_update(tf.IndexedSlices(tf.ones((1, table.shape[1])), [3])),
    ]
    for number, change in enumerate(changes, 1):
        change()
        with pytest.raises(tf.errors.UnknownError, match="A variable's memory is not its own"):
            trainer.steps(batches, tf.constant(1))
        if number > 1:
            trainer.own_memory()
            trainer.steps(batches, tf.constant(1))
    assert trainer.step == 5 and len(list(batches)) == 3
    assert [np.unique(value).tolist() for value in held] == [[1], [2]]


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


@pytest.mark.parametrize(("strategy_of", "replicas"), [(gpus, 1), (gpus, 2), (lambda _: one_device(), 1)])
def test_whether_the_loop_goes_on_depends_on_no_gradient(strategy_of, replicas):
    body, condition, _ = loop_of(strategy_of, replicas, *USUAL[replicas])
    (result,) = condition.ret  # a name
    numbers = {argument.name: number for number, argument in enumerate(condition.signature.input_arg)}
    read = {numbers[name] for name in producers(condition, result) if name in numbers}
    ops = {node.name: node.op for node in body.node_def}
    signature = body.signature
    arguments, results = ([one.name for one in part] for part in (signature.input_arg, signature.output_arg))
    assert read
    for number in read:
        found = producers(body, results[number])
        assert {ops[name] for name in found if name in ops} <= {"AddV2", "Const", "Identity", "NoOp"}
        assert {arguments.index(name) for name in found if name in arguments} <= read


@pytest.mark.parametrize("replicas", [1, 2])
def test_batches_wait_on_the_gpus(replicas):
    batches = feed(gpus(replicas), tf.data.Dataset.from_tensors(CASES["next"][1]))
    assert isinstance(batches, tf.distribute.DistributedIterator)
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

    monkeypatch.setattr(train_step, "_traced_once", trace)
    with pytest.raises(InterruptedError):
        train_step.make_evaluate_function(model, model.objective, strategy, compiled=True)(batches)
    (graph,) = graphs
    functions = {function.signature.name: function for function in graph.library.function}
    programs = [node for node in graph.node if any("GPU" in node.device for _ in called(node, functions))]
    assert len(programs) == replicas and not any("MatMul" in node.op for node in graph.node)


def test_a_compiled_evaluation_has_the_same_numbers():
    strategy = one_device()
    model, _, features = trained(strategy, "pretraining")
    batches = tf.data.Dataset.from_tensors(features)
    plain, compiled = (
        train_step.make_evaluate_function(model, model.objective, strategy, compiled)(batches)
        for compiled in (False, True)
    )
    assert plain.keys() == compiled.keys() and compiled == pytest.approx(plain, rel=1e-5, abs=1e-6)
