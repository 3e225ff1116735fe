"""What run_domain.py begins with: the released weights, text to hold out, output_dir; checked without TensorFlow."""

import dataclasses
import itertools
import posixpath
from collections.abc import Iterable, Iterator

from absl import logging

from bert_tf.conversion.surgery import OUTPUT_BIAS
from bert_tf.models import directory as model_directory
from bert_tf.models import open_weights
from bert_tf.models.config import BertConfig
from bert_tf.models.directory import tokenizer_of
from bert_tf.models.families import Family, family_of
from bert_tf.models.variable_names import REPLACED_TOKEN_HEAD
from bert_tf.pretraining.documents import Document, all_documents, marked_held_out
from bert_tf.system.checks import check_input_files
from bert_tf.system.messages import named_by, unheard
from bert_tf.system.storage import is_remote, names_in
from bert_tf.system.text_files import read_json_if_there, size_of
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.text.tokenizer import Tokenizer

LOCK, SETTINGS = "run.lock", "settings.json"  # in output_dir
_NEXT_SENTENCE_BIAS = "cls/seq_relationship/output_bias"
_HELD_OUT_EVERY = 20
_SMALL = 1 << 20  # bytes of a text that is read whole for a check


def check_beginning(settings: DomainSettings) -> None:
    """Refuses what a job can't begin with; what only TensorFlow can read is left to the job.

    Raises:
      FileNotFoundError, ValueError: names the flag.
    """
    with unheard():
        files = check_input_files(settings.input_file, "--input_file")
        if not settings.heldout_file and files and sum(map(size_of, files)) <= _SMALL:
            list(held_out(settings, itertools.islice(all_documents(files, False, settings.encoding), 2)))
        if not is_remote(settings.output_dir):
            earlier_job(settings)
        if open_weights.is_light(settings.init_checkpoint):
            open_start(settings)


def held_out(settings: DomainSettings, documents: Iterable[Document]) -> Iterator[tuple[Document, bool]]:
    """`marked_held_out` of the documents of --input_file.

    Raises:
      ValueError: there is only one; names the flag.
    """
    try:
        yield from marked_held_out(documents, _HELD_OUT_EVERY)
    except ValueError as error:
        if "can't be split" not in str(error):
            raise
        raise ValueError(f"--input_file={settings.input_file}: {error} Give --heldout_file.") from None


def earlier_job(settings: DomainSettings) -> dict | None:
    """What an earlier start of the job noted in output_dir; None if it is new.

    Raises:
      ValueError: output_dir belongs to something else; names the flag.
    """
    then = read_json_if_there(posixpath.join(settings.output_dir, SETTINGS))
    if then is not None and all(isinstance(then.get(part), dict) for part in ("texts", "pretraining")):
        return then
    if others := [name for name in names_in(settings.output_dir) if name != LOCK]:
        raise ValueError(
            f"--output_dir={settings.output_dir} has files that are not of run_domain.py ({others[0]}): choose another "
            "directory."
        )
    return None


@dataclasses.dataclass(frozen=True)
class Start:
    """The released weights.

    Attributes:
      has_head: whether they have the head that is trained, without which there is nothing to evaluate before.
      predicts_order: whether they have learned which segment follows another. notes: what a reader of losses must know.
    """

    config: BertConfig
    family: Family
    tokenizer: Tokenizer
    has_head: bool
    predicts_order: bool
    notes: tuple[str, ...]

    @property
    def detects(self) -> bool:
        return self.config.detects_replaced_tokens


def open_start(settings: DomainSettings) -> Start:
    """Reads what is beside the weights, and which heads they have.

    Raises:
      FileNotFoundError, ValueError: there are no weights, configuration or vocabulary, it is a generator, or it takes
        no rows of --max_seq_length.
    """
    path = settings.init_checkpoint
    with named_by("--init_checkpoint"):
        weights, files = model_directory.read_model(path)
        config = model_directory.needed_config(files)
        family = family_of(config)
        if family.parts:
            weights = open_weights.choose_part(weights, "discriminator")
    if not files.vocab_file:
        raise ValueError(
            f"--init_checkpoint={path} has no {family.tokenizer_class.vocab_name} beside it: put it there."
        )
    if settings.max_seq_length > config.max_length:
        raise ValueError(
            f"--max_seq_length={settings.max_seq_length} is more than the {config.max_length} tokens of "
            f"--init_checkpoint={path}."
        )
    order = config.has_pooler and _NEXT_SENTENCE_BIAS in weights.shapes
    head, title = OUTPUT_BIAS, "masked-LM head"
    if config.detects_replaced_tokens:
        head, title = REPLACED_TOKEN_HEAD, "head for replaced tokens"
    notes = []
    if head not in weights.shapes:
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
    tokenizer = tokenizer_of(files)
    return Start(config, family, tokenizer, head in weights.shapes, order, tuple(notes))
