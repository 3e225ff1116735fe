"""What a training run knows for the card of its model: the weights it began from, its data and its settings."""

import dataclasses
import json
import posixpath
from collections.abc import Mapping

from bert_tf.models import card, open_weights
from bert_tf.models.card import Beginning, CardFacts
from bert_tf.system.atomic import write_text_file
from bert_tf.training import checkpoints, run_directory
from bert_tf.training.run_directory import BEGINNING

# They are said elsewhere in the card, or say where something is and not what.
_SAID_ELSEWHERE = {"init_checkpoint", "vocab_file", "bert_config_file", "input_file_fingerprint"}
# A reader looks for them, also where they are at their defaults.
_ALWAYS = (
    "learning_rate", "train_batch_size", "num_train_epochs", "num_train_steps", "max_seq_length", "seed", "teacher",
)  # fmt: skip


def beginning_of_run(output_dir: str, init_checkpoint: str | None) -> Beginning | None:
    """The weights that the run in output_dir began from, or, if it is new, begins from; None: it is not known.

    A resumed run takes them from its run.json: they may be elsewhere by now.

    Args:
      init_checkpoint: weights or a directory, for a new run; None: it begins from random weights.
    """
    if checkpoints.latest_checkpoint(output_dir):
        return card.beginning_from(run_directory.read_settings(output_dir).get(BEGINNING))
    if not init_checkpoint:
        return Beginning(None)
    return card.beginning_of(init_checkpoint, open_weights.open_weights(init_checkpoint))


def recorded_beginning(facts: CardFacts) -> dict[str, object]:
    """What run.json notes of the weights that a run began from."""
    return {BEGINNING: facts.beginning and dataclasses.asdict(facts.beginning)}


def settings_shown(recorded: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    """The settings for a card: what every reader looks for, and what is not at its default and leads to another model.

    Args:
      recorded: as run.json has them. defaults: of some of them.
    """
    shown = {name: recorded[name] for name in _ALWAYS if recorded.get(name) is not None}
    for name in sorted(run_directory.with_effect(recorded) - _SAID_ELSEWHERE):
        value = recorded[name]
        if value is not None and value is not False and value != defaults.get(name):
            shown.setdefault(name, value)
    return json.loads(json.dumps(shown))


def write_card(output_dir: str, text: str) -> None:
    """Writes a card into a run's directory, unless a README.md of the user's is there."""
    if not card.is_others(output_dir):
        write_text_file(posixpath.join(output_dir, card.CARD), text)
