"""The fine-tuning run as a notebook calls it, and the tasks it knows."""

import importlib
import json

import pytest
from helpers.paths import ROOT
from helpers.tiny import write_encoder

import bert_tf
from bert_tf.tasks import script
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.table import TASKS
from bert_tf.training.settings import FineTuningSettings


class CountingTask(ClassificationTask):
    """Records each computation of a set."""

    computed = ()

    def outputs_of(self, predict, examples, **arguments):
        self.computed += (examples.name,)
        return super().outputs_of(predict, examples, **arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script")
    write_encoder(folder, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", *(f"w{n}" for n in range(93))])
    for name, count in (("train", 16), ("dev", 6)):
        rows = "".join(f"{('bad', 'good')[number % 2]} w{number},{number % 2}\n" for number in range(count))
        (folder / f"{name}.csv").write_text("text,label\n" + rows)
    return folder


def test_a_notebook_trains_and_a_step_is_evaluated_once(folder):
    task = CountingTask(
        ClassificationSettings(
            task_name="custom", train_file=str(folder / "train.csv"), dev_file=str(folder / "dev.csv"), text_a="text",
            label="label",
        )
    )  # fmt: skip
    run = FineTuningSettings(
        output_dir=str(folder / "run"), init_checkpoint=str(folder / "encoder"), do_train=True, do_eval=True,
        max_seq_length=8, train_batch_size=8, num_train_epochs=2,
    )  # fmt: skip
    results = script.fine_tune(task, run)
    assert task.computed == ("dev", "dev")  # after each epoch, and not again at the end
    lines = (folder / "run" / "eval_results.txt").read_text().splitlines()
    written = {name: float(value) for name, value in (line.split(" = ") for line in lines)}
    assert results == pytest.approx(written, rel=1e-6) and results["global_step"] == 4
    settings = json.loads((folder / "run" / "run.json").read_text())
    assert settings["learning_rate"] == 5e-5 and settings["text_a"] == "text" and settings["finished_step"] == 4
    with pytest.raises(ValueError, match=r"finished run with other settings \(--num_train_epochs: 2 there, 1 now\)"):
        script.fine_tune(task, FineTuningSettings(**{**run.__dict__, "num_train_epochs": 1}))
    # New data under the same name is not what the model was trained on.
    with (folder / "train.csv").open("a") as file:
        file.write("good news,1\n")
    with pytest.raises(ValueError, match=r"finished run with other settings \(the training data: 16 examples, checksum "
                       r"\w+ there, 17 examples, checksum \w+ now\)\. .* --overwrite_output_dir"):  # fmt: skip
        script.fine_tune(task, run)


def test_few_steps_are_warned_of(caplog):
    with caplog.at_level("WARNING"):
        script.warn_of_few_steps(50)
        assert not caplog.messages
        script.warn_of_few_steps(49)
    assert "Only 49 training steps" in caplog.text


def test_the_table_of_tasks_names_what_there_is():
    for name, entry in TASKS.items():
        assert entry.name == name and (ROOT / entry.script).exists()
        assert entry.architecture is None or hasattr(bert_tf, entry.architecture)
        assert (entry.architecture is None) == (entry.output_layer is None)
        assert entry.answers is None or (entry.answers.startswith(entry.answerer) and "{path}" in entry.answers)
    for package, kind in (
        ("classification", "Classification"),
        ("squad", "Squad"),
        ("ner", "Ner"),
        ("choice", "Choice"),
        ("similarity", "Similarity"),
    ):
        module = importlib.import_module(f"bert_tf.tasks.{package}.task")
        assert getattr(module, f"{kind}Task").name in TASKS
