"""run_classifier.py --model=bilstm|cnn: which model it is, and what goes with one that starts without BERT's files."""

from bert_tf.models.baselines import ARCHITECTURES, OUTPUT_LAYER, create_config, kind_of
from bert_tf.models.directory import ModelFiles, read_head
from bert_tf.models.head_config import HeadConfig
from bert_tf.system.declare import value_of
from bert_tf.system.messages import named_by
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.text import casing as text_casing
from bert_tf.text import vocab as text_vocab
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training import fine_tuning
from bert_tf.training.settings import FineTuningSettings


def stored_model(path: str) -> str:
    """The kind of model at a path: "bilstm" or "cnn" by what is beside the weights, or else "bert"."""
    return kind_of(read_head(text_casing.directory_of(path)).architecture) or "bert"


def chosen_model(settings: ClassificationSettings, run: FineTuningSettings, newest: str | None) -> str:
    """ "bert", "bilstm" or "cnn": --model, or if that isn't given the model that is resumed or used.

    Args:
      newest: checkpoint in --output_dir, if any.

    Raises:
      ValueError: --model contradicts the weights.
    """
    source = newest or run.init_checkpoint
    if not source:
        return value_of(settings, "model")
    stored = stored_model(source)
    if settings.model and settings.model != stored:
        message = f"--model={settings.model} contradicts {source}, which is a {stored}."
        if not newest and stored == "bert":
            message += f" A {settings.model} starts from random weights: give --vocab_file, and no --init_checkpoint."
        raise ValueError(message)
    return stored


def describe_model(
    settings: ClassificationSettings, run: FineTuningSettings, newest: str | None
) -> tuple[ModelFiles, Tokenizer]:
    """What goes with a baseline, and its tokenizer; see `fine_tuning.describe_model`.

    Args:
      settings: with `model` from `chosen_model`. newest: checkpoint in --output_dir, if any.

    Raises:
      FileNotFoundError, OSError, ValueError: no vocabulary, nothing to evaluate or predict with, a size that
        contradicts the model that is resumed or used.
    """
    source = newest or run.init_checkpoint
    if source or not run.do_train:
        files, tokenizer = fine_tuning.describe_model(run, newest, OUTPUT_LAYER)
        sizes = {"embedding_size": files.config.hidden_size, "hidden_size": files.config.intermediate_size}
        for name, size in sizes.items():
            given = getattr(settings, name)
            if given not in (None, size):
                raise ValueError(f"--{name}={given} contradicts {source}, which was trained with {size}.")
        return files, tokenizer
    if not run.vocab_file:
        raise ValueError(f"--model={settings.model} needs --vocab_file.")
    if run.bert_config_file:
        raise ValueError(
            f"--model={settings.model} has no --bert_config_file: its sizes are --embedding_size and --hidden_size."
        )
    with named_by("--vocab_file"):
        vocab = text_vocab.load_vocab(run.vocab_file)
        text_vocab.check_vocab(vocab, run.vocab_file)
    beside = text_casing.read_casing(text_casing.directory_of(run.vocab_file))
    casing = text_casing.resolve_casing(run.do_lower_case, run.strip_accents, beside)
    config = create_config(
        settings.model,
        max(vocab.values()) + 1,
        embedding_size=value_of(settings, "embedding_size"),
        hidden_size=value_of(settings, "hidden_size"),
        max_seq_length=max(run.max_seq_length, 512),
    )
    head = HeadConfig(ARCHITECTURES[settings.model])
    files = ModelFiles("", config, None, run.vocab_file, casing, head=head)
    tokenizer = fine_tuning.make_tokenizer(files, run)
    files.max_seq_length = run.max_seq_length
    return files, tokenizer
