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
from absl import logging

from bert_tf.conversion.surgery import OUTPUT_BIAS
from bert_tf.models import directory as model_directory
from bert_tf.models import open_weights, pretrained
from bert_tf.models.directory import ModelFiles, tokenizer_of
from bert_tf.models.families import AlbertConfig, Family, family_of
from bert_tf.models.variable_names import REPLACED_TOKEN_HEAD
from bert_tf.pretraining.shard import summary_path
from bert_tf.system import run_lock
from bert_tf.system.atomic import remove_folder, write_text_file
from bert_tf.system.local_files import names_in
from bert_tf.system.script_runs import Run, check_flags, do_runs, results_in, scores_in
from bert_tf.system.text_encodings import UTF_8
from bert_tf.system.text_files import read_json, read_json_if_there
from bert_tf.tasks.domain import report
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.tasks.domain.texts import files_of, make_texts, make_words, text_path, words_path
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_choice import find_vocabulary
from bert_tf.text.tokenizer_files import casing_of_vocabulary, resolve_casing
from bert_tf.training import run_directory

_NEXT_SENTENCE_BIAS = "cls/seq_relationship/output_bias"
_MASKED_SHARE, _WARMUP_SHARE = 0.15, 0.1
_EVAL_BATCH_SIZE = 32
_LOCK = "run.lock"


def adapt(settings: DomainSettings) -> dict:
    """Does all that is left to do; returns the content of domain.json, see `report.create_content`.

    Raises:
      ValueError, OSError: a setting, a file or the weights don't fit, or output_dir belongs to something else; names
        the flag. ChildProcessError: a script failed; the message ends with its last lines.
    """
    settings.check()
    _check_further_flags(settings)
    start = _open_start(settings.init_checkpoint)
    if settings.max_seq_length > start.files.config.max_length:
        raise ValueError(
            f"--max_seq_length={settings.max_seq_length} is more than the {start.files.config.max_length} tokens of "
            f"--init_checkpoint={settings.init_checkpoint}."
        )
    folder = settings.output_dir
    is_new = not tf.io.gfile.exists(_settings_path(settings))
    with run_lock.held(posixpath.join(folder, _LOCK), f"--output_dir={folder}", [folder.rstrip("/") + "/"]):
        _claim(settings)
        try:
            texts = make_texts(settings)
            vocabulary = make_words(settings, start.tokenizer, start.files.config.title)
        except Exception:
            if is_new:  # the corrected command is another job
                _remove_preparations(settings)
            raise
        do_runs([_conversion(settings, bool(vocabulary.words))], folder)
        vocab_file = find_vocabulary(posixpath.join(folder, "start"), start.family.tokenizer_class)
        rows = do_runs(_record_runs(settings, start, vocab_file, texts), folder)["records-train"]["results"]["rows"]
        model = posixpath.join(_pretrained(settings), "discriminator") if start.detects else _pretrained(settings)
        results = do_runs(_training_runs(settings, start, model, texts, rows), folder)
        content = report.create_content(settings, start.notes, model, texts, vocabulary, rows, results)
        report.write(folder, content)
    return content


def _check_further_flags(settings: DomainSettings) -> None:
    """Refuses flags that the scripts don't know, before anything is made for them.

    Raises:
      ValueError: names the flag of run_domain.py.
    """
    scripts = {
        "pretraining_flag": Run("pretraining", "run_pretraining.py", {"input_file": "records", "output_dir": "run"}),
        "fine_tuning_flag": Run("fine_tuning", "run_classifier.py", {"output_dir": "run"}),
    }
    for name, run in scripts.items():
        if further := tuple(getattr(settings, name)):
            try:
                check_flags(dataclasses.replace(run, extra=further))
            except ValueError as error:
                raise ValueError(f"--{name}: {error}") from None


# --- the weights ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Start:
    """The released weights.

    Attributes:
      has_head: whether they have the head that is trained, without which there is nothing to evaluate before.
      predicts_order: whether they have learned which segment follows another. notes: what a reader of losses must know.
    """

    files: ModelFiles
    family: Family
    tokenizer: Tokenizer
    has_head: bool
    predicts_order: bool
    notes: tuple[str, ...]

    @property
    def detects(self) -> bool:
        return self.files.config.detects_replaced_tokens


def _open_start(path: str) -> Start:
    """Reads what is beside the weights, and which heads they have.

    Raises:
      FileNotFoundError, ValueError: there are no weights, configuration or vocabulary, or it is a generator.
    """
    weights, files = pretrained.read_model(path)
    config = model_directory.needed_config(files)
    family = family_of(config)
    if family.parts:
        weights = open_weights.choose_part(weights, "discriminator")
    if not files.vocab_file:
        raise ValueError(
            f"--init_checkpoint={path} has no {family.tokenizer_class.vocab_name} beside it: put it there."
        )
    casing = resolve_casing(None, None, files.casing)
    if casing.source == "the default" and family.has_word_pieces:  # as convert_checkpoint.py does it
        casing = casing_of_vocabulary(files.vocab_file)
    files = dataclasses.replace(files, casing=casing)
    order = config.has_pooler and _NEXT_SENTENCE_BIAS in weights.shapes
    head, title = OUTPUT_BIAS, "masked-LM head"
    if config.detects_replaced_tokens:
        head, title = REPLACED_TOKEN_HEAD, "head for replaced tokens"
    has_head = head in weights.shapes
    notes = []
    if not has_head:
        notes.append(
            f"The weights have no {title}, so that it starts from random weights: there is nothing to evaluate before "
            "the training, and the losses after include what the head has learned."
        )
    elif config.detects_replaced_tokens:
        notes.append(
            "The generator, which is trained beside the discriminator, starts from random weights: its loss before is "
            "that of guessing."
        )
    if config.has_pooler and not order:
        notes.append("The weights have no head for the order of sentences, so that is not trained.")
    for note in notes:
        logging.info("%s", note)
    return Start(files, family, tokenizer_of(files), has_head, order, tuple(notes))


# --- output_dir -------------------------------------------------------------------------------------------------------


def _claim(settings: DomainSettings) -> None:
    """Notes in settings.json whose output_dir this is.

    Raises:
      ValueError: it belongs to something else, or to a job with other texts; or the pre-training in it has begun with
        other flags. Names the flags.
    """
    path = _settings_path(settings)
    now = {
        "texts": {"init_checkpoint": settings.init_checkpoint, "new_words": settings.new_words, **files_of(settings)},
        "pretraining": {
            name: getattr(settings, name)
            for name in ("max_seq_length", "num_train_steps", "train_batch_size", "learning_rate", "dtype",
                         "pretraining_flag")
        },
    }  # fmt: skip
    now = json.loads(json.dumps(now))
    then = read_json_if_there(path)
    if then is None or not all(isinstance(then.get(part), dict) for part in now):
        if others := [name for name in names_in(settings.output_dir) if name != _LOCK]:
            raise ValueError(
                f"--output_dir={settings.output_dir} has files that are not of run_domain.py ({others[0]}): choose "
                "another directory."
            )
    else:
        parts = ["texts"]
        if run_directory.read_settings(_pretrained(settings)):
            parts.append("pretraining")
        changed = [
            f"--{name}"
            for part in parts
            for name in sorted({*now[part], *then[part]})
            if now[part].get(name) != then[part].get(name)
        ]
        if changed:
            raise ValueError(
                f"--output_dir={settings.output_dir} holds a job with another {' and '.join(changed)}: choose another "
                "directory, or give what it was made with."
            )
    write_text_file(path, json.dumps(now, indent=2) + "\n")


def _settings_path(settings: DomainSettings) -> str:
    return posixpath.join(settings.output_dir, "settings.json")


def _remove_preparations(settings: DomainSettings) -> None:
    """Removes what is there before the first script runs."""
    remove_folder(posixpath.join(settings.output_dir, "text"))
    for name in ("words.txt", "words.json", "settings.json"):
        if tf.io.gfile.exists(path := posixpath.join(settings.output_dir, name)):
            tf.io.gfile.remove(path)


def _pretrained(settings: DomainSettings) -> str:
    return posixpath.join(settings.output_dir, "pretrained")


# --- runs -------------------------------------------------------------------------------------------------------------


def _training_runs(settings: DomainSettings, start: Start, model: str, texts: Iterable[str], rows: int) -> list[Run]:
    """All but the preparations. What needs no training comes first, so that a mistake in the task's data shows early.

    Args:
      model: the directory to use at the end. rows: the number of records of the training text.
    """
    held_out = [name for name in texts if name != "train"]
    before = [_evaluation(settings, start, name, "before") for name in held_out if start.has_head]
    after = [_evaluation(settings, start, name, "after") for name in held_out]
    if settings.train_file:
        before.append(_fine_tuning(settings, "released", settings.init_checkpoint))
        after.append(_fine_tuning(settings, "domain", model))
    return [*before, _pretraining(settings, start, rows), *after]


def _conversion(settings: DomainSettings, has_words: bool) -> Run:
    """The released weights, with rows for the new words, as a directory of this project's form."""
    flags = {
        "from": settings.init_checkpoint,
        "to": posixpath.join(settings.output_dir, "start"),
        "format": "bert_tf",
        "add_tokens": words_path(settings.output_dir) if has_words else None,
        "report_file": posixpath.join(settings.output_dir, "start.txt"),
        "overwrite": True,  # one that was killed at its end
    }
    return Run("start", "convert_checkpoint.py", flags)


def _records_path(settings: DomainSettings, name: str) -> str:
    return posixpath.join(settings.output_dir, "records", f"{name}.tfrecord")


def _record_runs(settings: DomainSettings, start: Start, vocab_file: str, names: Iterable[str]) -> list[Run]:
    """Records of each text, unmasked: the training draws new masks in each pass, evaluation always the same."""
    tf.io.gfile.makedirs(posixpath.join(settings.output_dir, "records"))
    if start.detects:
        kind = {"rows": "electra"}
    elif not start.family.has_word_pieces and not start.files.config.has_pooler:
        kind = {"rows": "full_sentences"}
    elif not start.predicts_order:
        kind = {"masking": "dynamic", "nsp": False}
    else:
        is_albert = start.files.config.model_type == AlbertConfig.model_type
        kind = {"masking": "dynamic", "next_sentence": "order" if is_albert else "random"}
    return [_record_run(settings, name, vocab_file, kind) for name in names]


def _record_run(settings: DomainSettings, name: str, vocab_file: str, kind: dict) -> Run:
    output_file = _records_path(settings, name)
    flags = {
        "input_file": text_path(settings.output_dir, name), "output_file": output_file, "vocab_file": vocab_file,
        "max_seq_length": settings.max_seq_length, **kind,
    }  # fmt: skip

    return Run(
        f"records-{name}",
        "create_pretraining_data.py",
        flags,
        lambda: {"rows": read_json(summary_path(output_file))["rows"]},
    )


def _model_flags(settings: DomainSettings, start: Start) -> dict:
    """The flags of run_pretraining.py that training and evaluation share."""
    own_number = start.detects or start.files.config.mask_rule == "roberta"
    return {
        "input_file": _records_path(settings, "train"),
        "max_seq_length": settings.max_seq_length,
        "max_predictions_per_seq": None if own_number else math.ceil(_MASKED_SHARE * settings.max_seq_length),
        "objective": "electra" if start.detects else None,
        "nsp": False if start.files.config.has_pooler and not start.predicts_order else None,
        "eval_batch_size": _EVAL_BATCH_SIZE,
        "dtype": settings.dtype,
    }


def _pretraining(settings: DomainSettings, start: Start, rows: int) -> Run:
    """The training from start/ on. rows: the number of records."""
    steps = settings.num_train_steps or math.ceil(rows / settings.train_batch_size)
    flags = {
        **_model_flags(settings, start), "eval_input_file": _records_path(settings, "heldout"),
        "init_checkpoint": posixpath.join(settings.output_dir, "start"), "output_dir": _pretrained(settings),
        "do_train": True, "num_train_steps": steps, "num_warmup_steps": math.ceil(_WARMUP_SHARE * steps),
        "train_batch_size": settings.train_batch_size, "learning_rate": settings.learning_rate,
        "optimizer": "adamw",  # LAMB, with which ALBERT was pre-trained, is for batches of thousands
        "log_every_steps": max(1, min(100, steps // 20)), "keep_checkpoint_max": 1,
    }  # fmt: skip
    return Run("pretraining", "run_pretraining.py", flags, lambda: {"steps": steps}, tuple(settings.pretraining_flag))


def _evaluation(settings: DomainSettings, start: Start, name: str, when: str) -> Run:
    """A held-out text, by the model "before" or "after" the training."""
    output_dir = posixpath.join(settings.output_dir, "evaluation", f"{name}-{when}")
    model = {"before": posixpath.join(settings.output_dir, "start"), "after": _pretrained(settings)}[when]
    flags = {
        **_model_flags(settings, start), "eval_input_file": _records_path(settings, name), "init_checkpoint": model,
        "output_dir": output_dir, "do_eval": True,
    }  # fmt: skip
    further = tuple(settings.pretraining_flag)
    return Run(f"evaluation-{name}-{when}", "run_pretraining.py", flags, lambda: results_in(output_dir), further)


def _fine_tuning(settings: DomainSettings, name: str, model: str) -> Run:
    """The user's task, from the model of this name."""
    output_dir = posixpath.join(settings.output_dir, "fine_tuning", name)
    flags = {
        "task_name": "custom", "train_file": settings.train_file, "dev_file": settings.dev_file,
        "text_a": settings.text_a, "label": settings.label, "init_checkpoint": model, "output_dir": output_dir,
        "do_train": True, "do_eval": True, "max_seq_length": settings.max_seq_length, "dtype": settings.dtype,
        "num_seeds": settings.seeds, "eval_batch_size": _EVAL_BATCH_SIZE,
    }  # fmt: skip
    flags |= {} if settings.encoding == UTF_8 else {"encoding": settings.encoding}
    further = tuple(settings.fine_tuning_flag)
    return Run(f"fine_tuning-{name}", "run_classifier.py", flags, lambda: scores_in(output_dir), further)
