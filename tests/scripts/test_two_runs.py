"""Two runs in one folder: the second is refused while the first lives, and removes what a killed one left."""

import json

import pytest
from helpers.pretraining_runs import command, run, write_inputs


def contents(folder) -> set[str]:
    files = (path for path in folder.rglob("*") if path.is_file() and "tfevents" not in path.name)
    return {str(path.relative_to(folder)) for path in files}


@pytest.mark.slow
def test_what_a_killed_run_left_is_removed_by_the_next_start(tmp_path_factory, tmp_path):
    data = write_inputs(tmp_path_factory.mktemp("data"))
    steps = {"num_train_steps": 4, "save_checkpoints_steps": 1, "keep_checkpoint_max": 2, "log_every_steps": 1}
    assert run(command(data, tmp_path, **steps, stop_at_step=3)).returncode == 0
    whole = contents(tmp_path)
    for suffix in ("index", "data-00000-of-00001"):  # killed before it was removed, or halfway
        (tmp_path / f"model.ckpt-1.{suffix}").write_bytes((tmp_path / f"model.ckpt-2.{suffix}").read_bytes())
    (tmp_path / "model.ckpt-0.data-00000-of-00001").write_text("without an index")
    for name in (".run.json.0123456789ab.tmp", ".run.lock.0123456789ab.tmp", "notes.tmp", "model.ckpt-1 of mine.index"):
        (tmp_path / name).write_text("")
    for name in ("model.ckpt-4.writing", "best_model.123.writing"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
    for name in ("1_Pooling", "best_model/1_Pooling", "mine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / ".config.json.0123456789ab.tmp").touch()
    log = (tmp_path / "train_log.jsonl").read_text()
    (tmp_path / "train_log.jsonl").write_text(log + '{"kind": "train", "step": 4, "lo')
    result = run(command(data, tmp_path, **steps))
    assert result.returncode == 0 and "its last line was torn" in result.stderr, result.stderr[-3000:]
    renamed = {name.replace("-3.", "-4.").replace("-2.", "-3.") for name in whole}
    kept = {"notes.tmp", "model.ckpt-1 of mine.index", "mine/.config.json.0123456789ab.tmp"}
    assert contents(tmp_path) == renamed | kept
    text = (tmp_path / "train_log.jsonl").read_text()
    assert text.startswith(log) and [json.loads(line)["step"] for line in text.splitlines()] == [1, 2, 3, 4]
    assert not list(tmp_path.glob("*.writing"))
