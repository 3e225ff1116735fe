"""A run goes on with another number of replicas and micro-batches, and ends as if nothing had happened."""

import json

import numpy as np
import pytest
from helpers.pretraining_runs import command, flags_of, run, write_inputs
from helpers.script_cases import kill_at_checkpoint, weights_of
from helpers.tiny import ONE_LAYER

STEPS = 20


def replicas(count: int) -> dict:
    return {"distribution_strategy": "mirrored", "num_virtual_cpus": count}


@pytest.mark.slow  # In small: test_loop.py's replicas, and test_last_layer.py's parts of a batch.
@pytest.mark.parametrize("packed", [False, True])
def test_killed_on_two_replicas_gone_on_with_four_and_ended_on_one_in_four_parts(packed, tmp_path):
    data = write_inputs(tmp_path)
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    (data / "bert_config.json").write_text(json.dumps({**ONE_LAYER, **dropout}))
    common = {"num_train_steps": STEPS, "save_checkpoints_steps": 2, "keep_checkpoint_max": 0}
    if packed:
        common |= packed_records(data)
    left = kill_at_checkpoint("run_pretraining", flags_of(data, tmp_path / "elastic", **common, **replicas(2)), 6)
    assert "model.ckpt-6.index" in left and f"model.ckpt-{STEPS}.index" not in left
    for name, flags, line in (
        ("undisturbed", {}, "starting from random weights"),
        ("elastic", {**replicas(4), "stop_at_step": 14}, "Resuming at step"),
        ("elastic", {"gradient_accumulation_steps": 4}, "Resuming at step 14"),
    ):
        result = run(command(data, tmp_path / name, **common, **flags))
        assert result.returncode == 0 and line in result.stderr, result.stderr[-3000:]
    expected, found = weights_of(tmp_path / "undisturbed"), weights_of(tmp_path / "elastic")
    assert expected["global_step"] == found["global_step"] == STEPS
    for name in expected:
        if "key/bias" not in name:  # its true gradient is 0, and Adam makes steps of its rounding
            np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5, err_msg=name)


def packed_records(folder) -> dict:
    """Writes records of several documents a row; the flags that read them."""
    from helpers.paths import GOLDEN

    from bert_tf.pretraining.create import create_pretraining_data

    vocab = GOLDEN / "electra" / "vocab.txt"
    create_pretraining_data(
        str(GOLDEN / "pretraining" / "corpus_*.txt"), str(folder / "packed.tfrecord"), str(vocab), max_seq_length=16,
        max_predictions_per_seq=3, dupe_factor=1, show_progress=False, num_workers=1, masking="dynamic",
        short_seq_prob=0.5, pack_sequences=True,
    )  # fmt: skip
    sizes = {**json.loads((folder / "bert_config.json").read_text()), "vocab_size": len(vocab.read_text().splitlines())}
    (folder / "bert_config.json").write_text(json.dumps(sizes))
    return {"input_file": folder / "packed.tfrecord", "vocab_file": vocab}
