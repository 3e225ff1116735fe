"""The records of a pre-training run: those that its flags name."""

import dataclasses
import posixpath

import numpy as np

from bert_tf.data import records
from bert_tf.models.config import BertConfig
from bert_tf.pretraining.settings import PretrainingSettings
from bert_tf.system.atomic import load_arrays, save_arrays
from bert_tf.system.text_files import list_files, warn_of_missing_shards


@dataclasses.dataclass(frozen=True)
class OpenedRecords:
    """Pre-training records.

    Attributes:
      flag: the flag that named them, without dashes. index, features: see `records`.
      pairs: unmasked pairs per row; None for masked records.
      cache_folder: for what is found in them, by the chief of several workers; elsewhere None.
    """

    flag: str
    index: records.RecordIndex
    features: dict
    pairs: int | None
    cache_folder: str | None = None


def token_counts(opened: OpenedRecords, vocab_size: int) -> np.ndarray:
    """How often each token is in unmasked records: int64 [vocab_size]; padding counts, too. Kept for the next start."""
    cache_file = opened.cache_folder and posixpath.join(opened.cache_folder, f"{opened.flag}.tokens.npz")
    stored = load_arrays(cache_file, ("counts", "fingerprint")) if cache_file else None
    if stored and str(stored["fingerprint"]) == opened.index.fingerprint and len(stored["counts"]) == vocab_size:
        return stored["counts"]
    counts = np.zeros(vocab_size, np.int64)
    batches = records.evaluation_batches(opened.index, opened.features, batch_size=256, repeat=False, max_steps=None)
    with records.explained_errors(opened.index, opened.features):
        for batch in batches:
            counts += np.bincount(np.reshape(batch["input_ids"], -1), minlength=vocab_size)[:vocab_size]
    if cache_file:
        save_arrays(cache_file, {"counts": counts, "fingerprint": np.array(opened.index.fingerprint)})
    return counts


def open_all_records(
    settings: PretrainingSettings, config: BertConfig, config_name: str, chief: bool
) -> dict[str, OpenedRecords]:
    """The records that are needed, by the names of their flags; the index of each is cached in output_dir.

    Args:
      config: of the model, which limits their ids. config_name: the configuration in messages.
    """
    cache_folder = settings.output_dir if chief else None

    def open_records(flag: str, patterns: str | None) -> OpenedRecords:
        files = list_files(patterns, f"--{flag}")
        warn_of_missing_shards(files, f"--{flag}")
        index = records.index_records(
            files,
            None,
            skip_corrupt_records=settings.skip_corrupt_records,
            verify=settings.verify_records,
            cache_file=cache_folder and posixpath.join(cache_folder, f"{flag}.index.npz"),
        )
        no_masked = f"--{flag} holds masked records, but ELECTRA masks its texts during training"
        features = records.features_of(
            index, settings.max_seq_length, settings.max_predictions_per_seq, vocab_size=config.vocab_size,
            segments=max(2, config.type_vocab_size), model_name=config_name,
            no_masked=no_masked if settings.objective == "electra" else "",
        )  # fmt: skip
        return OpenedRecords(flag, index, *features, cache_folder)

    data = {}
    # Smoothed masks depend on the tokens of the training data, in evaluation, too.
    if settings.do_train or settings.mask_smoothing or not settings.eval_input_file:
        data["input_file"] = open_records("input_file", settings.input_file)
    if settings.eval_input_file:
        data["eval_input_file"] = open_records("eval_input_file", settings.eval_input_file)
    return data
