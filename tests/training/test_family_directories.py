"""Directories of runs: of each family, and of one family after another."""

import dataclasses
import json

from bert_tf.models.config import BertConfig
from bert_tf.models.families import family_named
from bert_tf.training import run_directory
from bert_tf.training.fine_tuning import with_recipe
from bert_tf.training.settings import FineTuningSettings


def finished_run(folder):
    run = with_recipe(FineTuningSettings(output_dir=str(folder), do_train=True), BertConfig(9))
    settings = {**dataclasses.asdict(run), run_directory.FINISHED: 3}
    run_directory.record_settings(str(folder), settings, resumed=False)
    return run


def test_a_changed_setting_is_told(tmp_path, caplog):
    run = finished_run(tmp_path)
    run_directory.warn_of_changes(str(tmp_path), dataclasses.asdict(run))
    assert not caplog.records
    run_directory.warn_of_changes(str(tmp_path), dataclasses.asdict(dataclasses.replace(run, clip_norm=0.5)))
    assert "clip_norm 1.0 -> 0.5" in caplog.text


def test_a_configuration_that_another_family_left_goes(tmp_path):
    for name in ("electra", "bert"):
        config = family_named(name).config_class(vocab_size=10, hidden_size=8, num_attention_heads=2)
        run_directory.claim_output_dir(str(tmp_path), config)
    assert [path.name for path in tmp_path.iterdir()] == ["bert_config.json"]
    assert json.loads((tmp_path / "bert_config.json").read_text())["hidden_size"] == 8
