"""From released weights to a model of a domain: texts, new words, records, pre-training, evaluation, fine-tuning.

from bert_tf.tasks.domain.recipe import adapt
    from bert_tf.tasks.domain.settings import DomainSettings

    settings = DomainSettings(init_checkpoint="uncased_L-4_H-256_A-4", input_file="texts/*.txt", output_dir="domain")
    found = adapt(settings)

The work is done by the project's scripts, each in a process of its own, with a log and its results in output_dir; see
`script_runs`. The same call goes on after a crash.
"""

import dataclasses
import json
import math
import posixpath
from collections.abc import Iterable

import tensorflow as tf

from bert_tf.models.families import AlbertConfig
from bert_tf.pretraining.shard import summary_path
from bert_tf.system import run_lock, storage
from bert_tf.system.declare import with_models
from bert_tf.system.script_runs import Run, check_flags, do_runs, results_in, scores_in
from bert_tf.system.storage import remove_folder, write_text_file
from bert_tf.system.text_files import UTF_8, read_json
from bert_tf.tasks.domain import report
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.tasks.domain.start import LOCK, SETTINGS, Start, earlier_job, open_start
from bert_tf.tasks.domain.texts import WORDS, files_of, make_texts, make_words, text_path
from bert_tf.text.tokenizer_choice import find_vocabulary
from bert_tf.training import run_directory

_MASKED_SHARE, _WARMUP_SHARE = 0.15, 0.1
_EVAL_BATCH_SIZE = 32
_OF_PRETRAINING = (
    "max_seq_length", "num_train_steps", "train_batch_size", "learning_rate", "dtype", "pretraining_flag",
)  # fmt: skip


def adapt(settings: DomainSettings) -> dict:
    """Does all that is left to do; returns the content of domain.json, see `report.create_content`.

    Raises:
      ValueError, OSError: a setting, a file or the weights don't fit, or output_dir belongs to something else; names
        the flag. ChildProcessError: a script failed; the message ends with its last lines.
    """
    settings = with_models(settings, settings.output_dir, DomainSettings.check)
    settings.check()
    _check_further_flags(settings)
    job, folder = _Job(settings, open_start(settings)), settings.output_dir
    is_new = not tf.io.gfile.exists(job.path(SETTINGS))
    with run_lock.held(job.path(LOCK), f"--output_dir={folder}"):
        job.claim()
        try:
            texts = make_texts(settings)
            vocabulary = make_words(settings, job.start.tokenizer, job.start.config.title)
        except Exception:
            if is_new:  # the corrected command is another job
                job.remove_preparations()
            raise
        do_runs([job.conversion(bool(vocabulary.words))], folder)
        rows = do_runs(map(job.records, texts), folder)["records-train"]["results"]["rows"]
        results = do_runs(job.trainings(texts, rows), folder)
        content = report.create_content(settings, job.start.notes, job.model, texts, vocabulary, rows, results)
        report.write(folder, content)
    return content


def _check_further_flags(settings: DomainSettings) -> None:
    """Refuses flags that the scripts don't know, before anything is made for them.

    Raises:
      ValueError: names the flag of run_domain.py.
    """
    scripts = {
        "pretraining_flag": ("run_pretraining.py", {"input_file": "records", "output_dir": "run"}),
        "fine_tuning_flag": ("run_classifier.py", {"output_dir": "run"}),
    }
    for name, (script, flags) in scripts.items():
        if further := tuple(getattr(settings, name)):
            try:
                check_flags(Run(name, script, flags, extra=further))
            except ValueError as error:
                raise ValueError(f"--{name}: {error}") from None


# --- the job ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Job:
    """What is done with the weights in output_dir: its files, and the runs of the scripts."""

    settings: DomainSettings
    start: Start

    def path(self, *names: str) -> str:
        """A path in output_dir."""
        return posixpath.join(self.settings.output_dir, *names)

    @property
    def pretrained(self) -> str:
        """The folder of the pre-training."""
        return self.path("pretrained")

    @property
    def model(self) -> str:
        """The directory to use at the end."""
        return posixpath.join(self.pretrained, "discriminator") if self.start.detects else self.pretrained

    def claim(self) -> None:
        """Notes in settings.json whose output_dir this is.

        Raises:
          ValueError: it belongs to something else, or to a job with other texts; or the pre-training in it has begun
            with other flags. Names the flags.
        """
        settings, path = self.settings, self.path(SETTINGS)
        now = {
            "texts": {
                "init_checkpoint": storage.name_of(settings.init_checkpoint),
                "new_words": settings.new_words,
                **files_of(settings),
            },
            "pretraining": {name: getattr(settings, name) for name in _OF_PRETRAINING},
        }
        now = json.loads(json.dumps(now))
        then = earlier_job(settings) or now
        compared = ("texts", "pretraining") if run_directory.read_settings(self.pretrained) else ("texts",)
        pairs = ((name, now[part], then[part]) for part in compared for name in sorted({*now[part], *then[part]}))
        if changed := [f"--{name}" for name, new, old in pairs if new.get(name) != old.get(name)]:
            raise ValueError(
                f"--output_dir={settings.output_dir} holds a job with another {' and '.join(changed)}: choose another "
                "directory, or give what it was made with."
            )
        write_text_file(path, json.dumps(now, indent=2) + "\n")

    def remove_preparations(self) -> None:
        """Removes what is there before the first script runs."""
        remove_folder(self.path("text"))
        for name in (WORDS, "words.json", SETTINGS):
            if tf.io.gfile.exists(self.path(name)):
                tf.io.gfile.remove(self.path(name))

    # --- runs

    def conversion(self, has_words: bool) -> Run:
        """The released weights, with rows for the new words, as a directory of this project's form."""
        flags = {
            "from": self.settings.init_checkpoint, "to": self.path("start"), "format": "bert_tf",
            "add_tokens": self.path(WORDS) if has_words else None, "report_file": self.path("start.txt"),
            "overwrite": True,  # one that was killed at its end
        }  # fmt: skip
        return Run("start", "convert_checkpoint.py", flags)

    def records(self, name: str) -> Run:
        """Records of a text, unmasked: the training draws new masks in each pass, evaluation always the same."""
        start, output_file = self.start, self._records_file(name)
        tf.io.gfile.makedirs(posixpath.dirname(output_file))
        if start.detects:
            kind = {"rows": "electra"}
        elif not start.family.has_word_pieces and not start.config.has_pooler:
            kind = {"rows": "full_sentences"}
        elif not start.predicts_order:
            kind = {"masking": "dynamic", "nsp": False}
        else:
            is_albert = start.config.model_type == AlbertConfig.model_type
            kind = {"masking": "dynamic", "next_sentence": "order" if is_albert else "random"}
        flags = {
            "input_file": text_path(self.settings, name), "output_file": output_file,
            "vocab_file": find_vocabulary(self.path("start"), start.family.tokenizer_class),
            "max_seq_length": self.settings.max_seq_length, **kind,
        }  # fmt: skip

        def rows() -> dict:
            return {"rows": read_json(summary_path(output_file))["rows"]}

        return Run(f"records-{name}", "create_pretraining_data.py", flags, rows)

    def trainings(self, texts: Iterable[str], rows: int) -> list[Run]:
        """All but the preparations; what needs no training first, so that a mistake in the task's data shows early.

        Args:
          rows: the number of records of the training text.
        """
        held_out = [name for name in texts if name != "train"]
        before = [self._evaluation(name, "before", self.path("start")) for name in held_out if self.start.has_head]
        after = [self._evaluation(name, "after", self.pretrained) for name in held_out]
        if self.settings.train_file:
            before.append(self._fine_tuning("released", self.settings.init_checkpoint))
            after.append(self._fine_tuning("domain", self.model))
        return [*before, self._pretraining(rows), *after]

    def _records_file(self, name: str) -> str:
        return self.path("records", f"{name}.tfrecord")

    def _model_flags(self, text: str, model: str, output_dir: str) -> dict:
        """The flags of run_pretraining.py that training and evaluation share. text: the one to evaluate on."""
        settings, start = self.settings, self.start
        own_number = start.detects or start.config.mask_rule == "roberta"
        return {
            "input_file": self._records_file("train"), "max_seq_length": settings.max_seq_length,
            "max_predictions_per_seq": None if own_number else math.ceil(_MASKED_SHARE * settings.max_seq_length),
            "objective": "electra" if start.detects else None,
            "nsp": False if start.config.has_pooler and not start.predicts_order else None,
            "eval_batch_size": _EVAL_BATCH_SIZE, "dtype": settings.dtype,
            "eval_input_file": self._records_file(text), "init_checkpoint": model, "output_dir": output_dir,
        }  # fmt: skip

    def _pretraining(self, rows: int) -> Run:
        settings = self.settings
        steps = settings.num_train_steps or math.ceil(rows / settings.train_batch_size)
        flags = {
            **self._model_flags("heldout", self.path("start"), self.pretrained),
            "do_train": True, "num_train_steps": steps, "num_warmup_steps": math.ceil(_WARMUP_SHARE * steps),
            "train_batch_size": settings.train_batch_size, "learning_rate": settings.learning_rate,
            "optimizer": "adamw",  # LAMB, with which ALBERT was pre-trained, is for batches of thousands
            "log_every_steps": max(1, min(100, steps // 20)), "keep_checkpoint_max": 1,
        }  # fmt: skip
        further = tuple(settings.pretraining_flag)
        return Run("pretraining", "run_pretraining.py", flags, lambda: {"steps": steps}, further)

    def _evaluation(self, name: str, when: str, model: str) -> Run:
        """A held-out text, by the model "before" or "after" the training."""
        output_dir, further = self.path("evaluation", f"{name}-{when}"), tuple(self.settings.pretraining_flag)
        flags = {**self._model_flags(name, model, output_dir), "do_eval": True}
        return Run(f"evaluation-{name}-{when}", "run_pretraining.py", flags, lambda: results_in(output_dir), further)

    def _fine_tuning(self, name: str, model: str) -> Run:
        """The user's task, from the model of this name."""
        settings, output_dir = self.settings, self.path("fine_tuning", name)
        flags = {
            "task_name": "custom", "train_file": settings.train_file, "dev_file": settings.dev_file,
            "text_a": settings.text_a, "label": settings.label, "init_checkpoint": model, "output_dir": output_dir,
            "do_train": True, "do_eval": True, "max_seq_length": settings.max_seq_length, "dtype": settings.dtype,
            "num_seeds": settings.seeds, "eval_batch_size": _EVAL_BATCH_SIZE,
            "encoding": None if settings.encoding == UTF_8 else settings.encoding,
        }  # fmt: skip
        further = tuple(settings.fine_tuning_flag)
        return Run(f"fine_tuning-{name}", "run_classifier.py", flags, lambda: scores_in(output_dir), further)
