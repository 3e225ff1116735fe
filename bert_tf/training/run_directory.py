"""What a run writes into its folder besides checkpoints: the configuration, its manifest, its results, its card."""

import contextlib
import dataclasses
import json
import os
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.families import FAMILIES
from bert_tf.families.config import KEYS_IN_CONFIG, BertConfig
from bert_tf.store import card, save
from bert_tf.store.bundle import CheckpointReader, checkpoints_among
from bert_tf.store.description import CardFacts, ModelFiles, config_files, find_config, read_head
from bert_tf.store.head_config import HEAD_CONFIG, NO_HEAD, HeadConfig, difference
from bert_tf.store.open import has_optimizer_state, open_weights
from bert_tf.store.tensor_files import Weights
from bert_tf.system import hub, storage
from bert_tf.system.declare import declared_in
from bert_tf.system.messages import abbreviated_list
from bert_tf.system.storage import is_temporary_name, names_in, remove_folder, write_text_file
from bert_tf.system.text_files import Folder, exists, is_folder, read_json
from bert_tf.training import plots

LOG_FILE = "train_log.jsonl"


def write_eval_results(path: str, results: dict) -> None:
    """Writes sorted `key = value` lines, as the original does; floats in the shortest form that is exact in float32."""
    lines = [f"{key} = {x if isinstance(x, int) else np.float32(x)!s}\n" for key, x in sorted(results.items())]
    write_text_file(path, "".join(lines))
    for line in lines:
        of_batches = line.startswith("loss = ") and "eval_loss" in results
        logging.info("  %s%s", line.rstrip(), " (mean over batches, as in the original)" if of_batches else "")


# A setting that only the runs of one script have.
_SCRIPTS = {
    "task_name": "run_classifier.py", "tag_scheme": "run_ner.py", "max_query_length": "run_squad.py",
    "first_label": "run_swag.py", "score_range": "run_similarity.py", "objective": "run_pretraining.py",
}  # fmt: skip


# The files that a run makes: results, which are copied from the best of several runs, and all others.
RESULTS = re.compile(
    r"(eval|test)_re\w+\.(txt|tsv|json)|predictions\w*\.(jsonl?|csv|conll)|nbest_predictions\.json|null_odds\.json|"
    r"classification_report\w*\.txt|confusion_matrix\w*\.(png|svg)|(question_answer|token_classificat)\w+\.json|loss\.png"
)
_OTHERS = re.compile(
    r"checkpoint|model\.ckpt-\d+\.(index|data-\d+-of-\d+)|(bert_model|lora)\.safetensors|(\w+_config|modules)\.json|"
    r"vocab\.(txt|json)|merges\.txt|spiece\.model|tokenizer\.json|damaged\..*|(run|seeds|search)\.json|search\.(md|png)|"
    r"(train_log|evaluations|skipped_questions)\.jsonl|events\.out\.tfevents\..*|similarity\.png|"
    r"(train|eval\w*|predict\w*)\.tf_record"
)


@dataclasses.dataclass(frozen=True)
class EarlierRun:
    """What the folder of a run has from earlier, read once.

    newest: its newest checkpoint, if any. settings: the content of run.json: flags and versions.
    """

    output_dir: str
    newest: str | None = None
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def check_model(self, config: BertConfig, head: HeadConfig = NO_HEAD, part: str = "", trains: bool = True) -> None:
        """Raises if the checkpoints are those of another model.

        head: compared if it says anything, but for windows, which say how a model is used.
        part: of several models that are trained together; its configuration is in a folder of this name.
        trains: whether the run is resumed; where its model is only used, its labels are matched by name, not compared.
        """
        folder = posixpath.join(self.output_dir, part)
        if not (self.newest and (path := find_config(Folder(folder, names_in(folder))))):
            return
        other = f"--output_dir={self.output_dir} holds a run of"
        old, new = {key: value for key, value in read_json(path).items() if key not in KEYS_IN_CONFIG}, config.to_dict()
        if head != NO_HEAD:
            old_head = read_head(self.output_dir)
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
            found = [f"{key}: {old.get(key)!s:.40} there, {new.get(key)!s:.40} now" for key in keys]
            other += f" another configuration{part and f' of the {part}'}"
            raise ValueError(f"{other} ({abbreviated_list(found, '; ')}). Choose another.")


def find_earlier_run(
    output_dir: str, own_settings: Collection[str], *, trains: bool, may_have_files: bool = True
) -> EarlierRun:
    """What is in a folder; raises if that is a run of another script. own_settings: names of this run's.

    trains: damaged checkpoints may be set aside. may_have_files: False: raises where files that a run would replace
      are, and no run.
    """
    from bert_tf.training import checkpoints  # it imports TensorFlow

    names = names_in(output_dir)
    settings = read_json(posixpath.join(output_dir, SETTINGS)) if SETTINGS in names else {}
    others = [script for name, script in _SCRIPTS.items() if name in settings and name not in own_settings]
    if others:
        raise ValueError(f"--output_dir={output_dir} holds a run of {others[0]}: choose another directory.")
    # The index is read before the rest.
    reader = checkpoints.use_newest(checkpoints_among(names, output_dir), CheckpointReader, may_be_older=trains)
    written = [name for name in names if RESULTS.fullmatch(name) or _OTHERS.fullmatch(name)]
    written = [name for name in written if not is_folder(posixpath.join(output_dir, name))]
    if written and not (may_have_files or reader) and {SETTINGS, SEEDS, SEARCH}.isdisjoint(names):
        raise ValueError(
            f"--output_dir={output_dir} has files that a run would replace, but is not the directory of one (it has no "
            f"{SETTINGS}): {abbreviated_list(written)}. Choose another directory, or move these away."
        )
    return EarlierRun(output_dir, reader and reader.prefix, settings)


def write_model_description(
    output_dir: str, config: BertConfig, head: HeadConfig = NO_HEAD, description: Mapping[str, bytes] = {}
) -> None:
    """Writes what a run's models are before its first step. description: see `save.description_files`."""
    files = config_files(config, head)
    save.write_beside(output_dir, {**description, **{name: text.encode() for name, text in files.items()}})
    # What a run that was killed before its first checkpoint has left.
    for name in {HEAD_CONFIG, *(family.config_class.file_name for family in FAMILIES)} - files.keys():
        if exists(posixpath.join(output_dir, name)):
            storage.gfile().remove(posixpath.join(output_dir, name))


# --- one run at a time ------------------------------------------------------------------------------------------------

_LOCK = "run.lock"
_RUNS = re.compile(r"seed-\d+|search-[\w.=+-]+")  # folders of runs; see `recipe.folder_of`
_FOLDERS = re.compile(rf"best_model|eval|1_Pooling|{_RUNS.pattern}")  # all that a run, or several, write files into
# What a killed run leaves half-written: folders of checkpoints, of the best model and of ELECTRA's two.
_WRITING = re.compile(r"(model\.ckpt-\d+|(best_model|generator|discriminator)\.\d+)\.writing")


@contextlib.contextmanager
def lock_output_dir(output_dir: str, keep_max: int) -> Iterator[None]:
    """Makes this process the only one that trains in output_dir, and removes what a killed run left: temporary files,
    half-written folders and checkpoints that it was about to remove.

    Only the process that writes the files enters it. keep_max: as in `checkpoints.save`.
    """
    from bert_tf.training import checkpoints

    folders = _folders_of(output_dir)  # which are listed once it is locked
    with storage.locked(posixpath.join(output_dir, _LOCK), f"--output_dir={output_dir}"):
        for folder in folders:
            storage.remove_left_behind(folder)
            names = names_in(folder)
            for name in filter(is_temporary_name, names):
                storage.gfile().remove(posixpath.join(folder, name))
            if folder == output_dir or _RUNS.fullmatch(posixpath.basename(folder)):
                for name in filter(_WRITING.fullmatch, names):
                    remove_folder(posixpath.join(folder, name))
                checkpoints.remove_superseded(folder, keep_max, names)
        yield


def _folders_of(output_dir: str) -> Iterator[str]:
    """output_dir, and all folders in it that runs write to; no links, which lead to what may not be the run's."""
    yield output_dir
    for name in filter(_FOLDERS.fullmatch, names_in(output_dir)):
        path = posixpath.join(output_dir, name)
        if is_folder(path) and not os.path.islink(path):
            yield from _folders_of(path)


# --- the manifest -----------------------------------------------------------------------------------------------------

SETTINGS = "run.json"
SEEDS, SEARCH = "seeds.json", "search.json"
TRAINING_DATA = "training_data"  # in run.json: number and checksum of the training examples
BEGINNING = "init_weights"  # in run.json: the weights that the run began from, for its card; see `card.beginning_of`
FINISHED = "finished_step"  # in run.json: the step at which a fine-tuning run ended; null until then
TEACHER_CHECKSUM = "teacher_checksum"  # in run.json: of the teacher's weights, which may have moved


class Manifest:
    """What run.json is to keep of a run, against what an earlier run left in its folder.

    noted: name -> value of the run's settings and of what tells its data and teacher from others. settings: the run's,
    whose classes declare what their change means.
    """

    def __init__(self, earlier: EarlierRun, noted: Mapping[str, object], settings: Sequence):
        self.output_dir, self.newest, self.earlier = earlier.output_dir, earlier.newest, earlier.settings
        self.noted = noted
        self.declared = {name: declared for own in settings for name, declared in declared_in(type(own)).items()}
        self.defaults = {field.name: field.default for own in settings for field in dataclasses.fields(own)}

    def check_fixed(self) -> None:
        """Raises if a resumed run has another teacher, or another value of a setting that may not change."""
        fixed = tuple(name for name, declared in self.declared.items() if declared.may_change_on_resume is False)
        earlier, noted = self.earlier if self.newest else {}, self.noted
        for name, flags in {TEACHER_CHECKSUM: ("teacher",), **dict.fromkeys(fixed, fixed)}.items():
            if earlier and earlier.get(name) != noted.get(name):
                was, now = (" ".join(f"--{flag}={one.get(flag)}" for flag in flags) for one in (earlier, noted))
                now += ", which has other weights" if was == now else ""
                raise ValueError(f"--output_dir={self.output_dir} holds a run with {was}; this one is with {now}.")

    def changes(self) -> dict[str, tuple]:
        """What leads to another model than the earlier run has: name -> (what it was, what it is now)."""
        old, new = self.earlier, json.loads(json.dumps(hub.with_hub_names(self.noted)))
        changes = {}
        for name in sorted({*self.declared, *new}) if old else ():
            may_change = name in self.declared and self.declared[name].may_change_on_resume
            # Settings that are not in use may not be noted, nor the training data before it is read.
            is_known = name in old or (name != TRAINING_DATA and new.get(name))
            if is_known and not may_change and old.get(name) != new.get(name):
                changes[name] = old.get(name), new.get(name)
        return changes

    def warn_of_changes(self) -> None:
        """A run resumes exactly only with the same data, batch size, seed and schedule; a change may be intended."""
        changes, versions = self.changes(), _versions()
        changes |= {name: (was, now) for name, now in versions.items() if (was := self.earlier.get(name, now)) != now}
        if changes:
            logging.warning(
                "Not as in the earlier run of this directory: %s. The remaining steps will use the new values.",
                "; ".join(f"{name} {before} -> {now}" for name, (before, now) in sorted(changes.items())),
            )

    def is_finished(self, num_train_steps: int) -> bool:
        """Whether the folder holds the finished run of these settings, or one that has taken its last step."""
        if self.newest is None or FINISHED not in self.earlier:
            return False
        weights, step = open_weights(self.newest), self.earlier[FINISHED]
        goes_on, saved = has_optimizer_state(weights), int(weights["global_step"]) if "global_step" in weights else 0
        if goes_on and (step is None or saved < step):  # a damaged last checkpoint was set aside
            return False
        step = saved if step is None else step  # it was killed after its last checkpoint
        changes = self.changes()
        if goes_on and set(changes) == {"num_train_epochs"} and num_train_steps > step:
            return False
        if changes:
            shown = {name: "the training data" if name == TRAINING_DATA else f"--{name}" for name in changes}
            different = "; ".join(f"{shown[name]}: {old} there, {new} now" for name, (old, new) in changes.items())
            raise ValueError(
                f"--output_dir={self.output_dir} holds a finished run with other settings ({different}). Choose "
                f"another, or begin anew: rm -r {self.output_dir}"
            )
        return True

    def record(self, resumed: bool, **notes) -> None:
        """Writes run.json; on a resumed run, warns of what has changed."""
        if resumed:
            self.warn_of_changes()
        storage.gfile().makedirs(self.output_dir)
        _write_settings(self.output_dir, {**hub.with_hub_names({**self.noted, **notes}), **_versions()})

    def card_facts(self, data: str, init_checkpoint: str | None, weights: Weights | None, **others) -> CardFacts:
        """What the cards of the run's models say of it.

        data: what tells the training data from any other, which no setting repeats. others: see `CardFacts`.
        weights: those at init_checkpoint, all of which are read if the run is new.
        """
        # The weights that an earlier run began from may be elsewhere by now.
        beginning = self.earlier.get(BEGINNING) if self.newest else card.beginning_of(init_checkpoint, weights)
        always, further = {}, {}
        for name, value in sorted(self.noted.items()):
            declared = self.declared.get(name)
            is_said = declared.on_card is False if declared else str(value) in data
            if value is None or is_said:
                continue
            if declared and declared.on_card:
                always[name] = value
            elif not (declared and declared.may_change_on_resume) and value is not False:
                further |= {name: value} if value != self.defaults.get(name) else {}
        shown = card.public(json.loads(json.dumps({**always, **further})))
        return CardFacts(beginning, data=data, settings=shown, **others)


def _versions() -> dict[str, str]:
    import keras
    import tensorflow as tf

    return {f"version of {name}": module.__version__ for name, module in (("tensorflow", tf), ("keras", keras))}


def mark_as_finished(output_dir: str, step: int) -> None:
    _write_settings(output_dir, {**read_json(posixpath.join(output_dir, SETTINGS)), FINISHED: step})


def _write_settings(output_dir: str, settings: dict) -> None:
    content = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    write_text_file(posixpath.join(output_dir, SETTINGS), content)


# --- the card ---------------------------------------------------------------------------------------------------------


def describe_end(output_dir: str, weights: Weights, files: ModelFiles, results: Mapping[str, float]) -> None:
    """Draws the log of a run in its folder, and writes the card of its model, but not over a README.md of the user's.

    files: of the model, with what else the card says. results: of the last step.
    """
    log = posixpath.join(output_dir, LOG_FILE)
    if exists(log):
        plots.plot_training_log(log, posixpath.join(output_dir, "loss.png"), title=output_dir)
    if not card.is_user_card(output_dir):
        files = dataclasses.replace(files, card=dataclasses.replace(files.card, results=results))
        write_text_file(posixpath.join(output_dir, card.CARD), save.card_of(weights, files, "tf1"))
