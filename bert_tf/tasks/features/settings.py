"""The settings of extract_features.py; checked without TensorFlow."""

import dataclasses
import itertools
import os
import posixpath

from bert_tf.models.directory import check_model
from bert_tf.system.checks import check_not_empty, check_output_file, is_remote
from bert_tf.system.messages import named_by
from bert_tf.system.text_encodings import UTF_8
from bert_tf.system.text_files import TextFile, compression_of, whole_lines
from bert_tf.training.settings import DeviceSettings

_FORMAT_BY_ENDING = {".npz": "npz", ".tfrecord": "tfrecord"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSettings(DeviceSettings):
    """Features of which text, by which model; the fields are the flags of these names.

    Attributes:
      do_lower_case, strip_accents: None: as the model's directory says.
      layers: None: the last four, as in the original, or of vectors of lines the last one.
    """

    input_file: str
    output_file: str
    init_checkpoint: str
    bert_config_file: str | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    allow_unknown_config_keys: bool = False
    layers: str | None = None
    pooling: str = "none"
    output_format: str = "json"
    max_seq_length: int = 128
    batch_size: int = 32
    dtype: str = "float32"
    static_padding: bool = False
    encoding: str = UTF_8

    @property
    def layers_asked_for(self) -> str:
        """The layers, also where they are not given."""
        return self.layers or ("-1" if self.pooling == "sentence" else "-1,-2,-3,-4")

    def check(self) -> None:
        """Refuses contradictions, missing files, and an output that can't be written.

        Raises:
          ValueError, FileNotFoundError: names the flag.
        """
        self.check_arithmetic(self.dtype)
        if self.output_file == self.input_file:
            raise ValueError(f"--output_file={self.output_file} is --input_file.")
        if self.strategy == "multi_worker_mirrored":
            raise ValueError(
                "--distribution_strategy=multi_worker_mirrored: this script writes one file on one machine; cut the "
                "input into several files and run it on each."
            )
        meant = _FORMAT_BY_ENDING.get(posixpath.splitext(self.output_file)[1], self.output_format)
        if meant != self.output_format:
            raise ValueError(
                f"--output_file={self.output_file} is not {self.output_format}: give --output_format={meant}."
            )
        check_model(
            self.init_checkpoint, "--init_checkpoint", self.bert_config_file, self.vocab_file,
            allow_unknown=self.allow_unknown_config_keys, with_tokenizer=True,
        )  # fmt: skip
        folder = os.path.dirname(self.output_file)
        if folder and not is_remote(folder) and not os.path.isdir(folder):
            raise ValueError(f"--output_file={self.output_file}: there is no directory {folder}.")
        check_output_file(self.output_file, "--output_file")
        if not is_remote(self.input_file):
            if not os.path.exists(self.input_file) or os.path.isdir(self.input_file):
                raise FileNotFoundError(f"--input_file: {self.input_file} is not a file.")
            check_not_empty([self.input_file] * os.path.isfile(self.input_file), "--input_file")
            with named_by("--input_file"):
                file = TextFile(self.input_file, compression_of(self.input_file)[0], self.encoding)
                for offset, block in itertools.islice(whole_lines(file, file.chunks()), 1):
                    file.decode(offset, block)
