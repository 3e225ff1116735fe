"""The records of a pre-training run: those that its flags name."""

import dataclasses
import posixpath

from bert_tf.data import records
from bert_tf.pretraining.settings import PretrainingSettings
from bert_tf.system.text_files import list_files, warn_of_missing_shards


@dataclasses.dataclass(frozen=True)
class OpenedRecords:
    """Pre-training records.

    Attributes:
      flag: the flag that named them, without dashes. index, features: see `records`.
      pairs: unmasked pairs per row; None for masked records.
    """

    flag: str
    index: records.RecordIndex
    features: dict
    pairs: int | None


def open_all_records(settings: PretrainingSettings, chief: bool) -> dict[str, OpenedRecords]:
    """The records that are needed, by the names of their flags; the index of each is cached in output_dir."""

    def open_records(flag: str, patterns: str | None) -> OpenedRecords:
        files = list_files(patterns, f"--{flag}")
        warn_of_missing_shards(files, f"--{flag}")
        index = records.index_records(
            files,
            None,
            skip_corrupt_records=settings.skip_corrupt_records,
            cache_file=posixpath.join(settings.output_dir, f"{flag}.index.npz") if chief else None,
        )
        features = records.features_of(index, settings.max_seq_length, settings.max_predictions_per_seq)
        return OpenedRecords(flag, index, *features)

    data = {}
    if settings.do_train or not settings.eval_input_file:
        data["input_file"] = open_records("input_file", settings.input_file)
    if settings.eval_input_file:
        data["eval_input_file"] = open_records("eval_input_file", settings.eval_input_file)
    return data
