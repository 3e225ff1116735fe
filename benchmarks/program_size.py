"""How large the program of a training step is that XLA compiles for a GPU or a TPU, and how long that takes here.

    python benchmarks/program_size.py                                    # fine-tuning of MiniLM's size, batch 32
    python benchmarks/program_size.py --work=pretraining --layers=12 --hidden=768 --length=128 --batch=256
    python benchmarks/program_size.py --layers=24 --hidden=1024 --length=512 --nocompile

Prints the lines of HLO before XLA's own passes, the transposes in it, the bytes that the forward pass keeps for the
backward pass, and the seconds to trace and to compile. No GPU is needed: the program before optimization is the same.
"""

import re
import sys
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

from bert_tf.families.config import BertConfig
from bert_tf.models.task_models import BertForPreTraining, BertForSequenceClassification
from bert_tf.training.optimization import create_optimizer
from bert_tf.training.settings import TrainingSettings
from bert_tf.training.step import Trainer

WORK = flags.DEFINE_enum("work", "classification", ["classification", "pretraining"], "what the model learns")
LAYERS = flags.DEFINE_integer("layers", 6, "layers of the encoder")
HIDDEN = flags.DEFINE_integer("hidden", 384, "its width; heads have 64, or 32 if it is below 512")
LENGTH = flags.DEFINE_integer("length", 128, "tokens of a row")
BATCH = flags.DEFINE_integer("batch", 32, "rows of a batch")
VOCAB = flags.DEFINE_integer("vocab", 30522, "word pieces")
DTYPE = flags.DEFINE_enum("dtype", "bfloat16", ["float32", "bfloat16"], "of the computation")
COMPILE = flags.DEFINE_bool("compile", True, "also compile the step for this processor, and run it once")
DUMP = flags.DEFINE_string("dump", None, "file for the text of the program")
PREDICTIONS = 20
# Kinds of operations: those that give another form of a tensor, or a part of it; and those that need no memory later.
_MOVES = ("tuple", "reshape", "copy", "get-tuple-element", "transpose", "convert", "slice", "broadcast", "bitcast")
_NOT_COMPUTED = ("parameter", "constant", "concatenate", "iota")


def batch_of(rows: int, length: int) -> dict:
    ids = np.random.default_rng(1).integers(5, VOCAB.value, (rows, length)).astype("int32")
    batch = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    if WORK.value == "classification":
        return {**batch, "label_ids": ids[:, 0] % 2}
    predictions = {
        "masked_lm_positions": np.broadcast_to(np.arange(1, PREDICTIONS + 1, dtype="int32"), (rows, PREDICTIONS)),
        "masked_lm_ids": ids[:, :PREDICTIONS],
        "masked_lm_weights": np.ones((rows, PREDICTIONS), "float32"),
    }
    return {**batch, **predictions, "next_sentence_labels": ids[:, :1] % 2}


def trainer_of(strategy) -> Trainer:
    hidden = HIDDEN.value
    config = BertConfig(VOCAB.value, hidden, LAYERS.value, hidden // (32 if hidden < 512 else 64), 4 * hidden)
    policy = "mixed_bfloat16" if DTYPE.value == "bfloat16" else None
    with strategy.scope():
        if WORK.value == "classification":
            model = BertForSequenceClassification(config, 2, dtype=policy)
        else:
            model = BertForPreTraining(config, dtype=policy)
        model.build()
        optimizer = create_optimizer("adamw", 1e-4, 1000, 100)
        optimizer.build(model.trainable_variables)
    settings = TrainingSettings(train_batch_size=BATCH.value, use_xla=True, dtype=DTYPE.value)
    return Trainer(model, optimizer, model.objective, strategy, settings)


def transposes(text: str) -> int:
    """The transposes of tensors with four axes: heads that are moved before or behind an attention."""
    return len(re.findall(r"= \w+\[\d+,\d+,\d+,\d+\]\S* transpose\(", text))


def kept_bytes(text: str) -> int:
    """The bytes of what the backward pass reads of the forward pass, in the program before optimization.

    What comes from variables, constants and the batch by moves alone is not counted, nor what is as small as a row.
    """
    bodies = {body.split(" ", 1)[0]: body for body in re.split(r"\n(?=%|ENTRY)", text)}
    operations = {}
    for line in text[text.index("\nENTRY ") :].splitlines():
        if match := re.match(r"  (?:ROOT )?%(\S+) = (.*?) ?([a-z][\w-]*)\((.*)", line):
            name, shape, kind, rest = match.groups()
            operands, *attributes = re.split(r"\), (?=[a-z_]+=)", rest, maxsplit=1)
            rest = " ".join(attributes)
            body = re.search(r"body=(%[^,]+)", rest)
            backward = "gradient_tape" in (bodies[body[1]] if body else rest)
            operations[name] = (shape, kind, re.findall(r"%([^,)\s]+)", operands), backward)

    def source(name: str) -> str:
        """What a tensor is a part or another form of."""
        _, kind, operands, _ = operations[name]
        return source(operands[0]) if kind in _MOVES and operands else name

    read = {}
    for _, _, operands, backward in operations.values():
        tuples = [operand for name in operands if operations[name][1] == "tuple" for operand in operations[name][2]]
        for name in (*operands, *tuples) if backward else ():
            shape, (_, kind, _, is_backward) = operations[name][0], operations[source(name)]
            if not (is_backward or shape[0] == "(" or kind in _NOT_COMPUTED):
                read[name] = bytes_of(shape)
    return sum(size for size in read.values() if size > 8 * LENGTH.value * BATCH.value)


def bytes_of(shape: str) -> int:
    match = re.match(r"([a-z]+)(\d*)\[([\d,]*)\]", shape)
    size = 1 if not match or match[1] == "pred" else int(match[2] or 8) // 8
    for axis in match[3].split(",") if match and match[3] else ():
        size *= int(axis)
    return size


def main(_):
    tf.keras.utils.set_random_seed(1)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    trainer = trainer_of(strategy)
    batch = {name: tf.constant(value) for name, value in batch_of(BATCH.value, LENGTH.value).items()}
    start = time.time()
    trainer.replica_step.get_concrete_function(batch, trainer.first_state())
    traced = time.time() - start
    text = trainer.replica_step.experimental_get_compiler_ir(batch, trainer.first_state())(stage="hlo")
    print(f"lines of HLO: {text.count(chr(10)):,}; transposes of heads: {transposes(text)}; traced in {traced:.1f} s")
    print(f"kept for the backward pass: {kept_bytes(text) / 2**30:.2f} GiB")
    if DUMP.value:
        with open(DUMP.value, "w", encoding="utf-8") as file:
            file.write(text)
    if COMPILE.value:
        seconds = []
        for _ in range(2):
            start = time.time()
            state = trainer.replica_step(batch, trainer.first_state())
            loss, norm = float(state.sums["loss"]), float(state.gradient_norm)
            seconds.append(time.time() - start)
            if len(seconds) == 1:
                print(f"loss {loss:.6f}, norm {norm:.6f}")
        print(f"compiled in {seconds[0] - seconds[1]:.1f} s, besides a step of {seconds[1]:.1f} s")


if __name__ == "__main__":
    sys.argv[0] = "program_size.py"
    app.run(main)
