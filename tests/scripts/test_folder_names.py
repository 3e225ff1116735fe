"""Runs in folders whose names are patterns to TensorFlow: the same command goes on, as in any other folder."""

import pytest
from helpers.pretraining_runs import assert_bit_identical, flags_of, write_inputs
from helpers.script_cases import run_cases, weights_of
from helpers.slow import exhaustive

pytestmark = pytest.mark.slow  # in small: system/test_local_files.py

NAMES = exhaustive(
    "[!a]", "a*b", "a?b", "a\\b", "\\*", "{a,b}", " a b ", "a\nb", "a\"'b", "$HOME", "ü日本", "a,b#c%20", "[", "**"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", ["lr=[1e-4]\\?*", "{a,b} ü日本", *NAMES])
def test_a_run_resumes_in_a_folder_of_any_name(name, data, tmp_path):
    (tmp_path / "lr=1").mkdir()
    flags = {"save_checkpoints_steps": 2, "num_train_steps": 4, "log_every_steps": 2}
    cases = {
        "whole": flags_of(data, tmp_path / "whole", **flags),
        "first": flags_of(data, tmp_path / name, **flags, stop_at_step=2),
        "second": flags_of(data, tmp_path / name, **flags, do_eval=True, max_eval_steps=1),
        "from it": flags_of(data, tmp_path / f"{name} 2", **flags, init_checkpoint=tmp_path / name),
    }
    outcomes, logs = run_cases("run_pretraining", cases)
    assert set(outcomes.values()) == {"done"}, outcomes
    assert f"Resuming at step 2 from {tmp_path / name}/model.ckpt-2." in logs["second"]
    assert_bit_identical(weights_of(tmp_path / "whole"), weights_of(tmp_path / name))
