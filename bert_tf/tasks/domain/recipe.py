"""From released weights to a model of a domain: texts, new words, records, pre-training, evaluation, fine-tuning."""

import functools
import json
import math
import posixpath
import time
from collections.abc import Callable, Mapping

import keras
import tensorflow as tf
from absl import logging

from bert_tf.conversion.convert import convert
from bert_tf.models.files.directory import read_model_files
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.system import storage
from bert_tf.system.declare import with_models
from bert_tf.system.storage import names_in, write_text_file
from bert_tf.system.text_files import read_json_if_there
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.domain import report
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.tasks.domain.start import Start, open_start
from bert_tf.tasks.domain.texts import WORDS, files_of, make_texts, make_words, text_path
from bert_tf.tasks.script import fine_tune
from bert_tf.training import run_directory
from bert_tf.training.pretraining_run import pretrain
from bert_tf.training.pretraining_settings import PretrainingSettings


def adapt(settings: DomainSettings) -> dict:
    """Does all steps that are left, and writes the report.

    Returns:
      The content of domain.json: `init_checkpoint`, `model` (the directory to use), `notes` on the losses; `texts`,
      see `make_texts`; `new_words` and `pieces_per_word`, see `make_words`; `training` with `records`, `steps`,
      `train_batch_size`, `learning_rate`, `seconds` (of its last start); `losses`: text -> `before`, unless the weights
      lacked the head, and `after` -> results; `fine_tuning`: start -> metric -> a value for each seed, empty without a
      task.
    """
    settings = with_models(settings, DomainSettings.check, settings.output_dir)
    job, output_dir = _Job(settings, open_start(settings)), settings.output_dir
    with storage.locked(job.path("run.lock"), f"--output_dir={output_dir}"):
        others = {*names_in(output_dir)} - {"run.lock"}
        if others and "results" not in others:
            raise ValueError(
                f"--output_dir={output_dir} has files that are not of run_domain.py ({min(others)}): choose another "
                "directory."
            )
        content = job.do_all()
        write_text_file(job.path("domain.json"), json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        write_text_file(job.path("domain.md"), report.create_page(content))
    return content


class _Job:
    """The steps of a run on the weights in output_dir."""

    def __init__(self, settings: DomainSettings, start: Start):
        self.settings, self.start = settings, start
        self.path = functools.partial(posixpath.join, settings.output_dir)
        self.start_folder, self.pretrained = self.path("start"), self.path("pretrained")

    def do_all(self) -> dict:
        """Does all steps, those that need no training first, so that mistakes show early; returns what `adapt` does."""
        settings, name = self.settings, storage.name_of(self.settings.init_checkpoint)
        model = self.path("pretrained", *["discriminator"] * self.start.config.detects_replaced_tokens)
        vocabulary_settings = {"init_checkpoint": name, "new_words": settings.new_words} | files_of(settings)
        texts = self.do("texts", vocabulary_settings, self.make_texts)
        rows = self.do(
            "records", {"max_seq_length": settings.max_seq_length}, lambda: self.make_records(texts["texts"])
        )
        held_out = [text for text in rows if text != "train"]
        scores, losses = {}, {text: {} for text in held_out}
        for text in held_out if self.start.has_head else ():
            losses[text]["before"] = self.evaluate(text, "before", self.start_folder)
        if settings.train_file:
            scores["released"] = self.fine_tune("released", settings.init_checkpoint)
        training = self.train(rows["train"])
        for text in held_out:
            losses[text]["after"] = self.evaluate(text, "after", self.pretrained)
        if settings.train_file:
            scores["domain"] = self.fine_tune("domain", model)
        content = {"init_checkpoint": name, "model": model, "notes": list(self.start.notes), **texts}
        return content | {"training": training, "losses": losses, "fine_tuning": scores}

    def make_texts(self) -> dict:
        """The texts, the new words, and the released weights with rows for these."""
        settings, start = self.settings, self.start
        counts = make_texts(settings)
        words = make_words(settings, start.tokenizer, start.config.title)
        added = self.path(WORDS) if words["new_words"] else None
        conversion = convert(settings.init_checkpoint, self.start_folder, "bert_tf", add_tokens=added, overwrite=True)
        write_text_file(self.path("start.txt"), conversion.text() + "\n")
        return {"texts": counts, **words}

    def make_records(self, texts: Mapping[str, Mapping]) -> dict[str, int]:
        """The records of all texts; returns how many each has."""
        tf.io.gfile.makedirs(self.path("records"))
        return {
            name: create_pretraining_data(
                text_path(self.settings, name),
                self.path("records", f"{name}.tfrecord"),
                read_model_files(self.start_folder).vocab_file,
                max_seq_length=self.settings.max_seq_length,
                **self.start.record_settings,
            )["rows"]
            for name in texts
        }

    def _pretraining(self, text: str, model: str, output_dir: str, **further) -> PretrainingSettings:
        """Settings of a run from a model, with a held-out text to evaluate on."""
        return self.settings.pretraining(
            input_file=self.path("records", "train.tfrecord"),
            eval_input_file=self.path("records", f"{text}.tfrecord"),
            init_checkpoint=model,
            output_dir=output_dir,
            **self.start.training_settings,
            **further,
        )

    def evaluate(self, text: str, when: str, model: str) -> dict[str, float]:
        """Results on a held-out text, of the model "before" or "after" the training."""
        run = self._pretraining(text, model, self.path("evaluation", f"{text}-{when}"), do_eval=True)
        return self.do(
            f"evaluation-{text}-{when}",
            vars(run),
            lambda: {metric: float(value) for metric, value in sorted(pretrain(run).items())},
        )

    def train(self, rows: int) -> dict:
        """The pre-training. rows: the number of records of the training text."""
        settings = self.settings
        steps = settings.num_train_steps or math.ceil(rows / settings.train_batch_size)
        run = self._pretraining("heldout", self.start_folder, self.pretrained, **settings.training(steps))

        def trained() -> dict:
            started = time.monotonic()
            pretrain(run)
            return {"seconds": round(time.monotonic() - started, 1)}

        kept = {"train_batch_size": settings.train_batch_size, "learning_rate": settings.learning_rate}
        return {"records": rows, "steps": steps, **kept, **self.do("pretraining", vars(run), trained)}

    def fine_tune(self, name: str, model: str) -> dict[str, list[float]]:
        """The user's task, from the model of this name; of each metric a value for each seed."""
        task, run = self.settings.fine_tuning(model, self.path("fine_tuning", name))

        def scores() -> dict[str, list[float]]:
            best = fine_tune(ClassificationTask(task), run)
            seeds = read_json_if_there(posixpath.join(run.output_dir, run_directory.SEEDS))
            results = seeds["seeds"].values() if seeds else [best]
            return {metric: [float(values[metric]) for values in results] for metric in sorted(best)}

        return self.do(f"fine_tuning-{name}", vars(task) | vars(run), scores)

    def do(self, name: str, settings: Mapping[str, object], step: Callable[[], dict]) -> dict:
        """The results of a step, which is done unless results/NAME.json has them, beside its `settings`.

        A step that was begun with other settings is refused.
        """
        path, settings = self.path("results", f"{name}.json"), json.loads(json.dumps(settings))
        kept = read_json_if_there(path) or {"settings": settings}
        then = kept["settings"]
        if changed := [f"--{key}" for key in settings if settings[key] != then.get(key, settings[key])]:
            raise ValueError(
                f"--output_dir={self.settings.output_dir} holds a job with another {' and '.join(changed)} ({path}): "
                "choose another directory, or give what it was made with."
            )
        if "results" not in kept:
            logging.info("Step %s", name)
            tf.io.gfile.makedirs(posixpath.dirname(path))
            write_text_file(path, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
            try:
                kept["results"] = step()
            except (ValueError, OSError):  # the corrected command has other settings
                write_text_file(path, "{}\n")
                raise
            keras.backend.clear_session()
            write_text_file(path, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
        return kept["results"]
