"""The comparison of families: which runs it makes, and its table."""

import types

from experiments import families


def values_of(folder, **changes):
    given = {
        "train_text": "train.txt", "heldout_text": "heldout.txt", "glue_dir": "glue", "output_dir": str(folder),
        "vocab_size": 500, "max_seq_length": 32, "train_batch_size": 8, "learning_rate": 1e-3,
        "fine_tuning_learning_rate": 1e-3, "pretraining_flag": ["--dtype=bfloat16"],
    }  # fmt: skip
    return types.SimpleNamespace(**{**given, **changes})


def test_runs_share_vocabularies_and_start_from_what_was_trained(tmp_path):
    values = values_of(tmp_path)
    names = [run.name for run in families.data_runs(values, list(families.FAMILIES))]
    assert names[:3] == ["vocabulary-wordpiece", "vocabulary-sentencepiece", "vocabulary-byte_bpe"]
    assert len(names) == 3 + 2 * len(families.FAMILIES) == len(set(names))
    trained = families.pretraining_run(values, "electra", 2, 500)
    assert trained.flags["num_train_steps"] == 500 and trained.flags["objective"] == "electra"
    assert "--dtype=bfloat16" in trained.command()
    for run in families.fine_tuning_runs(values, "electra", 2):
        assert run.flags["init_checkpoint"] == f"{trained.flags['output_dir']}/discriminator"
    (scratch, *_) = families.fine_tuning_runs(values, "bert", 2, from_scratch=True)
    assert "init_checkpoint" not in scratch.flags and scratch.name == "SST-2-bert-from_scratch-seed_2"


def test_table():
    row = {"steps": 1200, "masked_lm_loss": {"mean": 4.25, "standard_error": 0.125}}
    tasks = {task: {"mean": 0.5, "standard_error": 0.01} for task in families.TASKS}
    content = {"minutes": 10, "num_seeds": 3, "rows": {"BERT": {**row, **tasks}, "none": {"steps": 0, **tasks}}}
    lines = families.create_table(content).splitlines()
    assert lines[2] == "| BERT | 1,200 | 4.250 ± 0.125 | 50.0 ± 1.0 | 50.0 ± 1.0 | 50.0 ± 1.0 |"
    assert lines[3].startswith("| none |  |  | 50.0")
    assert "10 minutes of pre-training each" in lines[-1]
