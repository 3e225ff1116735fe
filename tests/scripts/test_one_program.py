"""With --distribution_strategy=tpu, every step of every script is one XLA program with static shapes.

No TPU is here: helpers/one_program.py compiles for the CPU what the scripts give to `strategy.run`.
"""

import pytest
import tensorflow as tf
from helpers import one_program
from helpers.scenarios import FINE_TUNING, PRETRAINING, SCENARIOS
from helpers.script_cases import run_mains
from helpers.slow import exhaustive, slow

# Like others of their kind.
ALIKE = ("pretraining of ALBERT", "pretraining of RoBERTa", "swag", "classifier with LoRA")
CASES = [name for name in (*FINE_TUNING, *PRETRAINING) if name not in ALIKE]


@pytest.mark.parametrize("name", ["features", *slow(*CASES), *exhaustive(*ALIKE)])
def test_each_step_is_one_static_program(name, tmp_path):
    script, flags = SCENARIOS[name](tmp_path)
    flags["distribution_strategy"] = "tpu"
    if name in FINE_TUNING:
        flags |= {"num_train_epochs": 1}
    if name in PRETRAINING:
        flags |= {"num_train_steps": 4, "num_warmup_steps": 1, "iterations_per_loop": 2, "max_eval_steps": 2}
        flags |= {"gradient_accumulation_steps": 2}
    if name == "features":
        (tmp_path / "out").mkdir()
    else:
        flags |= {"deterministic": False, "eval_every_steps": 0, "save_checkpoints_steps": 1000}
    ended, log = run_mains({name: (script, flags)}, "helpers.one_program")
    outcome, reports = ended[name]
    assert outcome == "done" and reports, log[-3000:]
    for report in reports:
        assert not report["found"] and set(report["modules"]) == {1}, report
        assert report["traces"] <= 2, report  # with labels, and to predict
    training = [report for report in reports if report["name"] == "Trainer.replica_step"]
    assert [report["traces"] for report in training] == [1] * (name != "features")  # batches have one shape


def test_what_a_tpu_can_not_run_is_found():
    """The check itself: a step with shapes that depend on values, and one with work for the host."""
    strategy = one_program.Strategy()
    strategy.run(lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0)), (tf.constant([1.0, -1.0]),))
    strategy.run(lambda x: 2 * x, (tf.constant([1.0, -1.0]),))
    dynamic, static = one_program.report()
    assert dynamic["found"] and not static["found"]
    with pytest.raises(tf.errors.InvalidArgumentError):
        strategy.run(lambda x: tf.strings.length(tf.strings.as_string(x)), (tf.constant([1.0]),))
    one_program._functions.clear()
