"""What a run writes into its folder beside checkpoints: the configuration, its flags, its results, its card."""

import contextlib
import dataclasses
import json
import os
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.families.config import KEYS_IN_CONFIG, BertConfig
from bert_tf.store import card, save
from bert_tf.store.bundle import latest_checkpoint
from bert_tf.store.card import CardFacts
from bert_tf.store.description import ModelFiles, config_files, find_config, read_head
from bert_tf.store.head_config import HEAD_CONFIG, NO_HEAD, HeadConfig, difference
from bert_tf.store.open import has_optimizer_state, open_weights
from bert_tf.store.tensor_files import Weights
from bert_tf.system import removed, storage
from bert_tf.system.messages import abbreviated_list
from bert_tf.system.storage import is_temporary_name, names_in, remove_folder, write_text_file
from bert_tf.system.text_files import exists, is_folder, read_json, read_json_if_there
from bert_tf.text.tokenizer_files import directory_of

LOG_FILE = "train_log.jsonl"


def write_eval_results(path: str, results: dict) -> None:
    """Writes sorted `key = value` lines, as the original does; floats in the shortest form that is exact in float32."""
    lines = [f"{key} = {x if isinstance(x, int) else np.float32(x)!s}\n" for key, x in sorted(results.items())]
    write_text_file(path, "".join(lines))
    for line in lines:
        of_batches = line.startswith("loss = ") and "eval_loss" in results
        logging.info("  %s%s", line.rstrip(), " (mean over batches, as in the original)" if of_batches else "")


def check_output_dir(
    output_dir: str, config: BertConfig, head: HeadConfig = NO_HEAD, part: str = "", trains: bool = True
) -> None:
    """Refuses a directory with the checkpoints of another model.

    head: not compared where it says nothing: the weights show what such a model is for. How it cuts windows is not
      compared, since that says how the model is used, not what it is.
    part: of several models that are trained together; its configuration is in a folder of this name.
    trains: whether the run is resumed; where its model is only used, its labels are matched by name, not compared.
    """
    path = find_config(posixpath.join(output_dir, part))
    if not (path and latest_checkpoint(output_dir)):
        return
    other = f"--output_dir={output_dir} holds a run of"
    old, new = {key: value for key, value in read_json(path).items() if key not in KEYS_IN_CONFIG}, config.to_dict()
    if head != NO_HEAD:
        old_head = read_head(output_dir)
        old_labels, new_labels = old_head.labels or (), head.labels or ()
        if trains and old_labels != new_labels:
            is_order = {*old_labels} == {*new_labels}
            different = "in another order" if is_order else difference(old_labels, new_labels)
            raise ValueError(f"{other} other labels ({different}): choose another directory.")
        use = dict.fromkeys(("window_stride", "max_windows", "labels", "pairs", "activation"))
        old |= dataclasses.replace(old_head, **use).to_dict()
        new |= dataclasses.replace(head, **use).to_dict()
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    if keys:
        different = abbreviated_list(
            [f"{key}: {old.get(key)!s:.40} there, {new.get(key)!s:.40} now" for key in keys], "; "
        )
        of_part = f" of the {part}" if part else ""
        raise ValueError(f"{other} another configuration{of_part} ({different}). Choose another.")


# A setting that only the runs of one script have.
_SCRIPTS = {
    "task_name": "run_classifier.py", "tag_scheme": "run_ner.py", "max_query_length": "run_squad.py",
    "first_label": "run_swag.py", "score_range": "run_similarity.py", "objective": "run_pretraining.py",
}  # fmt: skip


def check_script(output_dir: str, settings: Collection[str]) -> None:
    """Refuses a directory with a run of another script. settings: the names of this run's."""
    earlier = read_settings(output_dir)
    others = [script for name, script in _SCRIPTS.items() if name in earlier and name not in settings]
    if others:
        raise ValueError(f"--output_dir={output_dir} holds a run of {others[0]}: choose another directory.")


# What a fine-tuning run writes, into all its folders.
_WRITTEN = re.compile(
    r"checkpoint|(damaged\.)?model\.ckpt-\d+\.(index|data-\d+-of-\d+)|(bert_model|lora)\.safetensors|\w+_config\.json|"
    r"vocab\.(txt|json)|merges\.txt|spiece\.model|tokenizer\.json|(run|seeds|search|eval_results|question_answering|token_classification)\.json|"
    r"(train_log|evaluations|predictions\w*|skipped_questions)\.jsonl|predictions\w*\.csv|events\.out\.tfevents\..*|"
    r"(eval_results|test_results|classification_report)\w*\.txt|(eval|test)_report\.txt|test_results\w*\.tsv|"
    r"predictions\.conll|(nbest_)?predictions\.json|null_odds\.json|(loss|similarity|search|confusion_matrix\w*)\.png|"
    r"(train|eval\w*|predict\w*)\.tf_record|modules\.json|sentence_bert_config\.json|search\.md"
)


def check_earlier_run(output_dir: str, settings: Collection[str], *, trains: bool) -> str | None:
    """`check_script`; and refuses to train where files that a run writes are, and no run has begun.

    Returns the checkpoint there; see `checkpoints.check_newest`.
    """
    from bert_tf.training import checkpoints  # it imports TensorFlow

    check_script(output_dir, settings)
    newest = (checkpoints.check_newest if trains else latest_checkpoint)(output_dir)
    names = names_in(output_dir) if trains else []
    written = [name for name in names if _WRITTEN.fullmatch(name) and not is_folder(posixpath.join(output_dir, name))]
    if written and not newest and {SETTINGS, SEEDS, SEARCH}.isdisjoint(names):
        raise ValueError(
            f"--output_dir={output_dir} has files that a run would replace, but is not the directory of one (it has no "
            f"{SETTINGS}): {abbreviated_list(written)}. Choose another directory, or move these away."
        )
    return newest


def lock_and_record_output_dir(
    output_dir: str, config: BertConfig, head: HeadConfig = NO_HEAD, description: Mapping[str, bytes] = {}
) -> None:
    """Keeps what a run's models are with it, from its first step on; called once everything else has been checked.

    description: see `save.description_of`.
    """
    import tensorflow as tf

    files = config_files(config, head)
    save.write_beside(output_dir, {**description, **{name: text.encode() for name, text in files.items()}})
    # What a run that was killed before its first checkpoint has left.
    for name in {HEAD_CONFIG, *(kind.file_name for kind in BertConfig.classes.values())} - files.keys():
        if exists(posixpath.join(output_dir, name)):
            tf.io.gfile.remove(posixpath.join(output_dir, name))


# --- one run at a time ------------------------------------------------------------------------------------------------

_LOCK = "run.lock"
_RUNS = re.compile(r"seed-\d+|search-[\w.=+-]+")  # folders of runs; see `recipe.folder_of`
_FOLDERS = re.compile(rf"best_model|eval|1_Pooling|{_RUNS.pattern}")  # all that a run, or several, write files into
# What a killed run leaves half-written: folders of checkpoints, of the best model and of ELECTRA's two.
_WRITING = re.compile(r"(model\.ckpt-\d+|(best_model|generator|discriminator)\.\d+)\.writing")


@contextlib.contextmanager
def lock_output_dir(output_dir: str, keep_max: int) -> Iterator[None]:
    """Makes this process the only one that trains in output_dir, and removes what a killed run left half-written.

    Only the process that writes the files enters it: not further workers, and no run that only evaluates or predicts.

    keep_max: as in `checkpoints.save`.
    """
    with storage.locked(posixpath.join(output_dir, _LOCK), f"--output_dir={output_dir}"):
        remove_leftovers(output_dir, keep_max)
        yield


def _folders_of(output_dir: str) -> Iterator[str]:
    """output_dir, and all folders in it that runs write to; no links, which lead to what may not be the run's."""
    yield output_dir
    for name in filter(_FOLDERS.fullmatch, names_in(output_dir)):
        path = posixpath.join(output_dir, name)
        if is_folder(path) and not os.path.islink(path):
            yield from _folders_of(path)


def remove_leftovers(output_dir: str, keep_max: int) -> None:
    """Removes temporary files, half-written folders and checkpoints that a killed run was about to remove."""
    import tensorflow as tf

    from bert_tf.training import checkpoints

    for folder in _folders_of(output_dir):
        storage.remove_left_behind(folder)
        for name in filter(is_temporary_name, names_in(folder)):
            tf.io.gfile.remove(posixpath.join(folder, name))
        if folder == output_dir or _RUNS.fullmatch(posixpath.basename(folder)):
            for name in filter(_WRITING.fullmatch, names_in(folder)):
                remove_folder(posixpath.join(folder, name))
            checkpoints.remove_superseded(folder, keep_max)


# --- settings ---------------------------------------------------------------------------------------------------------

SETTINGS = "run.json"
SEEDS, SEARCH = "seeds.json", "search.json"
_VERSION = "version of "
TRAINING_DATA = "training_data"  # in run.json: number and checksum of the training examples
BEGINNING = "init_weights"  # in run.json: the weights that the run began from, for its card; see `card.beginning_of`
FINISHED = "finished_step"  # in run.json: the step at which a fine-tuning run ended; null until then
TEACHER_CHECKSUM = "teacher_checksum"  # in run.json: of the teacher's weights, which may have moved
# What a resumed run must have had from its start: the name in run.json -> the flags that messages show.
_FIXED = {TEACHER_CHECKSUM: ("teacher",), **dict.fromkeys(("lora_rank", "lora_alpha"), ("lora_rank", "lora_alpha"))}

# Changing these between two starts of a run does not change its model, or is refused (generator_config_file).
_WITHOUT_EFFECT = {
    "do_train", "do_eval", "do_predict", "output_dir", "num_seeds", "search", "eval_input_file",
    "test_file", "predict_file", "test_has_tags", "eval_batch_size", "predict_batch_size", "max_eval_steps",
    "eval_every_steps", "log_every_steps", "save_checkpoints_steps", "keep_checkpoint_max", "iterations_per_loop",
    "use_best_model", "write_tf_records", "verbose_logging", "feature_cache_dir", "n_best_size", "max_answer_length",
    "metric", "teacher", "generator_config_file",
    "distribution_strategy", "num_virtual_cpus", "use_tpu", "tpu_name", "tpu_zone", "gcp_project", "master",
    "num_tpu_cores", "stop_at_step", "recompute", "copy_columns", "encoding", "use_xla",
    BEGINNING, FINISHED,
}  # fmt: skip


def read_settings(output_dir: str) -> dict:
    """Flags and versions of the run in a directory; empty if there is none."""
    return read_json_if_there(posixpath.join(output_dir, SETTINGS)) or {}


def settings_of_model(path: str) -> dict:
    """`read_settings` of the run that left the weights at a path, in its directory or in best_model/ there."""
    folder = directory_of(path).rstrip("/")
    return read_settings(posixpath.dirname(folder) if posixpath.basename(folder) == "best_model" else folder)


def _with_versions(settings: dict) -> dict:
    import keras
    import tensorflow as tf

    versions = {f"{_VERSION}tensorflow": tf.__version__, f"{_VERSION}keras": keras.__version__}
    return json.loads(json.dumps({**storage.with_hub_names(settings), **versions}))


def _changes(output_dir: str, settings: dict) -> dict[str, tuple]:
    """Settings that lead to another model than the run in output_dir has: name -> (what it was, what it is now)."""
    old, new = read_settings(output_dir), json.loads(json.dumps(storage.with_hub_names(settings)))
    names = sorted({*old, *new} - _WITHOUT_EFFECT - removed.SETTINGS) if old else []
    # Settings that are not in use may not be noted, nor the training data before it is read.
    names = [name for name in names if name in old or (name != TRAINING_DATA and new[name])]
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def check_fixed(output_dir: str, settings: Mapping[str, object]) -> None:
    """Refuses to resume a run with another teacher, or with adapters of another rank or alpha, or without its own."""
    earlier = read_settings(output_dir) if latest_checkpoint(output_dir) else {}
    for name, flags in _FIXED.items():
        if earlier and earlier.get(name) != settings.get(name):
            was, now = (" ".join(f"--{flag}={one.get(flag)}" for flag in flags) for one in (earlier, settings))
            now += ", which has other weights" if was == now else ""
            raise ValueError(f"--output_dir={output_dir} holds a run with {was}; this one is with {now}.")


def warn_of_changes(output_dir: str, settings: dict) -> None:
    """Warns of settings that differ from those of the run in output_dir.

    A run resumes exactly only with the same data, batch size, seed and schedule. A change may be intended, so it is a
    warning and not an error.
    """
    if changes := _changes(output_dir, _with_versions(settings)):
        logging.warning(
            "Not as in the earlier run of this directory: %s. The remaining steps will use the new values.",
            "; ".join(f"{name} {before} -> {now}" for name, (before, now) in changes.items()),
        )


def is_finished(output_dir: str, settings: dict, num_train_steps: int) -> bool:
    """Whether output_dir holds the finished run of these settings, or one that has taken its last step."""
    from bert_tf.training.checkpoints import read_global_step  # it imports TensorFlow

    newest, earlier = latest_checkpoint(output_dir), read_settings(output_dir)
    if newest is None or FINISHED not in earlier:
        return False
    step, goes_on = earlier[FINISHED], has_optimizer_state(newest)
    saved = read_global_step(newest)
    if goes_on and (step is None or saved < step):  # a damaged last checkpoint was set aside
        return False
    step = saved if step is None else step  # it was killed after its last checkpoint
    changes = _changes(output_dir, settings)
    changes = {name: values for name, values in changes.items() if not name.startswith(_VERSION)}
    if goes_on and set(changes) == {"num_train_epochs"} and num_train_steps > step:
        return False
    if changes:
        shown = {name: "the training data" if name == TRAINING_DATA else f"--{name}" for name in changes}
        different = "; ".join(f"{shown[name]}: {old} there, {new} now" for name, (old, new) in changes.items())
        raise ValueError(
            f"--output_dir={output_dir} holds a finished run with other settings ({different}). Choose another, or "
            f"begin anew: rm -r {output_dir}"
        )
    return True


def mark_as_finished(output_dir: str, step: int) -> None:
    """Notes in run.json that the run ended at a step."""
    _write_settings(output_dir, {**read_settings(output_dir), FINISHED: step})


def record_settings(output_dir: str, settings: dict, resumed: bool) -> None:
    """Keeps flags and versions in output_dir/run.json; on a resumed run, warns of what has changed."""
    import tensorflow as tf

    if resumed:
        warn_of_changes(output_dir, settings)
    tf.io.gfile.makedirs(output_dir)
    _write_settings(output_dir, _with_versions(settings))


def _write_settings(output_dir: str, settings: dict) -> None:
    content = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    write_text_file(posixpath.join(output_dir, SETTINGS), content)


# --- the card ---------------------------------------------------------------------------------------------------------

# They are said elsewhere in the card, or say where something is and not what.
_SAID_ELSEWHERE = {"init_checkpoint", "vocab_file", "bert_config_file", "input_file_fingerprint", TRAINING_DATA}
# A reader looks for them, also where they are at their defaults.
_ALWAYS = (
    "learning_rate", "train_batch_size", "num_train_epochs", "num_train_steps", "max_seq_length", "seed", "teacher",
)  # fmt: skip


def card_facts(output_dir: str, recorded: Mapping[str, object], settings: Sequence, **others) -> CardFacts:
    """What the cards of a run's models say of it; of a new run, this reads all weights that it begins from.

    Its settings are what every reader looks for, and what is not at its default and leads to another model.

    recorded: as run.json has them. settings: of the run, whose classes know the defaults. others: see `CardFacts`.
    """
    if latest_checkpoint(output_dir):  # the weights that it began from may be elsewhere by now
        beginning = read_settings(output_dir).get(BEGINNING)
    else:
        start = settings[0].init_checkpoint
        beginning = card.beginning_of(start, open_weights(start) if start else None)
    defaults = {field.name: field.default for own in settings for field in dataclasses.fields(own)}
    shown = {name: recorded[name] for name in _ALWAYS if recorded.get(name) is not None}
    for name in sorted(recorded.keys() - _WITHOUT_EFFECT - _SAID_ELSEWHERE):
        value = recorded[name]
        if value is not None and value is not False and value != defaults.get(name):
            shown.setdefault(name, value)
    return CardFacts(beginning, settings=card.public(json.loads(json.dumps(shown))), **others)


def describe_end(output_dir: str, weights: Weights, files: ModelFiles, results: Mapping[str, float]) -> None:
    """Draws the log of a run in its folder, and writes the card of its model, but not over a README.md of the user's.

    files: of the model, with what else the card says. results: of the last step.
    """
    from bert_tf.training import plots  # it imports TensorFlow

    log = posixpath.join(output_dir, LOG_FILE)
    if exists(log):
        plots.plot_training_log(log, posixpath.join(output_dir, "loss.png"), title=output_dir)
    if not card.is_user_card(output_dir):
        files = dataclasses.replace(files, card=dataclasses.replace(files.card, results=results))
        write_text_file(posixpath.join(output_dir, card.CARD), save.card_of(weights, files, "tf1"))
