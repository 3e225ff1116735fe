"""The settings of extract_features.py; checked without TensorFlow."""

import dataclasses
import os
import posixpath

from bert_tf.store.open import OpenedModel, open_for_script
from bert_tf.system.checks import check_file, check_output_file, check_output_files
from bert_tf.system.declare import ORIGINAL, REQUIRED, check_values, inherited_setting, setting, value_of
from bert_tf.system.messages import naming_flag
from bert_tf.system.storage import is_remote, names_in
from bert_tf.system.text_files import directory_of, encoding_setting, warn_of_tables
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training.settings import DeviceSettings, ModelSettings
from bert_tf.training.starting_model import check_length, make_tokenizer

_FORMAT_BY_ENDING = {".json": "json", ".jsonl": "json", ".npz": "npz", ".tfrecord": "tfrecord"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSettings(DeviceSettings, ModelSettings):
    """Features of which text, by which model.

    layers: None: the last four, as in the original, or of vectors of lines the last one.
    """

    input_file: str = setting(
        REQUIRED, "Texts, one per line, or two with ' ||| ' between them; may be .gz.", heading=ORIGINAL
    )
    output_file: str = setting(REQUIRED, "File for the features; an existing file is replaced.")
    init_checkpoint: str = inherited_setting(
        ModelSettings,
        "init_checkpoint",
        default=REQUIRED,
        help="The weights: a checkpoint (prefix or directory), a Hugging Face directory, a Model Garden checkpoint, or "
        "a SavedModel of TensorFlow Hub.",
        heading=ORIGINAL,
    )
    max_seq_length: int = inherited_setting(
        ModelSettings,
        "max_seq_length",
        help="Maximum tokens per line, with [CLS] and [SEP]; longer lines are cut. Up to the model's limit.",
    )
    layers: str | None = setting(
        "-1,-2,-3,-4",
        "Encoder layers to write, separated by commas: -1 is the last one, 0 the first. If unset, -1,-2,-3,-4; with "
        "--pooling=sentence -1.",
        unset=True,
    )
    batch_size: int = setting(32, "Lines computed together, over all devices.", least=1)
    use_one_hot_embeddings: bool = setting(
        False, "The original's way to look up embeddings on a TPU. Accepted without effect: the values are the same."
    )
    output_format: str = setting(
        "json",
        "json: the original's, values rounded to 6 decimals. The others store float32. npz: arrays values [tokens, "
        "layers, hidden size], tokens, and offsets: line i has the rows offsets[i] to offsets[i + 1]. tfrecord: a "
        "tf.train.Example for each line.",
        heading="Texts and features",
        choices=("json", "npz", "tfrecord"),
    )
    encoding: str = encoding_setting("--input_file")
    pooling: str = setting(
        "none",
        "How to combine the pieces of a word (words are separated by spaces): the first piece's values, or mean or "
        "maximum over the pieces. none: a row for each piece, as in the original. sentence: one row for a line, made "
        "as the model's directory says (sentence-transformers' files), else the mean over its pieces, [CLS] and [SEP] "
        "among them.",
        choices=("none", "first", "mean", "max", "sentence"),
    )
    dtype: str = inherited_setting(
        DeviceSettings,
        "dtype",
        heading="Computation",
        help="Arithmetic of the matrix products. bfloat16 is faster if the processor supports it, with about 2 "
        "decimals.",
    )
    static_padding: bool = setting(
        False,
        "Pad every line to --max_seq_length, as the original does, instead of batching lines of similar length. "
        "Slower; always on for a TPU.",
    )

    def check(self) -> None:
        check_values(self)
        if self.strategy == "multi_worker_mirrored":
            raise ValueError(
                "--distribution_strategy=multi_worker_mirrored: this script writes one file on one machine; cut the "
                "input into several files and run it on each."
            )
        self.check_devices()
        read = [self.input_file, *filter(None, (self.vocab_file, self.bert_config_file))]
        folder = directory_of(self.init_checkpoint)
        read += [] if is_remote(folder) else [posixpath.join(folder, name) for name in names_in(folder)]
        check_output_files([self.output_file], read, "--output_file")
        meant = _FORMAT_BY_ENDING.get(posixpath.splitext(self.output_file)[1], self.output_format)
        if meant != self.output_format:
            raise ValueError(f"--output_file={self.output_file} is of --output_format={meant}: give that.")
        folder = os.path.dirname(self.output_file)
        if folder and not is_remote(folder) and not os.path.isdir(folder):
            raise ValueError(f"--output_file={self.output_file}: there is no directory {folder}.")
        check_output_file(self.output_file, "--output_file")
        check_file(self.input_file, "--input_file")
        if not is_remote(self.input_file):
            warn_of_tables([self.input_file])


def open_extracted_model(settings: FeatureSettings) -> tuple[OpenedModel, Tokenizer, tuple[int, ...]]:
    opened = open_for_script(settings.init_checkpoint, settings, is_checked=True)
    check_length(opened, settings)
    tokenizer = make_tokenizer(opened, settings)
    of_lines = settings.layers is None and settings.pooling == "sentence"
    layers = parse_layers("-1" if of_lines else value_of(settings, "layers"), opened.config.num_hidden_layers)
    return opened, tokenizer, layers


def parse_layers(text: str, num_hidden_layers: int) -> tuple[int, ...]:
    with naming_flag(f"--layers={text}"):
        layers = tuple(map(int, text.split(",")))
    for layer in layers:
        if not -num_hidden_layers <= layer < num_hidden_layers:
            raise ValueError(f"--layers={text}: there is no layer {layer}, the model has {num_hidden_layers}.")
    return layers
