"""From weights of one format to another, with a report and a proof.

The proof has two parts. What was written is read back and compared with the source, tensor by tensor and bit by bit.
And where the library of a format is installed (transformers, tf-models-official), its own model runs on the files and
its outputs are compared with those of this project's model.
"""

import dataclasses
import gc
import posixpath

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import checkpoints, huggingface, model_files, model_garden, pretrained, surgery, weight_files
from bert_tf.config import BertConfig
from bert_tf.heads import BertForPreTraining
from bert_tf.model_files import Casing
from bert_tf.progress import progress_bar
from bert_tf.weights import Weights, expected_shapes, is_model_variable, some

# Float32 rounding over 24 layers stays below this share of the largest output; another activation or a transposed
# matrix gives a hundred times more.
OUTPUT_TOLERANCE = 1e-4

_SEQUENCES, _SEQUENCE_LENGTH = 3, 24


@dataclasses.dataclass(frozen=True)
class Report:
    """What a conversion did.

    Attributes:
      source, target: the weights. source_format, target_format: of weights.FORMATS.
      rows: (original's name, shape, name in the source, name in the target or why it is not there).
      missing: variables of a pre-training model that the source doesn't have.
      unused: entry of the source -> why it was not used. notes: what else was done, checks included.
      files: names of all files written.
    """

    source: str
    source_format: str
    target: str
    target_format: str
    rows: list[tuple[str, tuple[int, ...], str, str]]
    missing: list[str]
    unused: dict[str, str]
    notes: list[str]
    files: list[str]

    def text(self) -> str:
        """The report as lines to print."""
        lines = [f"From {self.source} ({self.source_format})", f"To   {self.target} ({self.target_format})", ""]
        table = [("variable", "shape", "in the source", "in the target")]
        table += [(name, str(list(shape)), origin, goal) for name, shape, origin, goal in self.rows]
        widths = [max(len(row[column]) for row in table) for column in range(3)]
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*cells, row[3]]).rstrip())
        lines.append("")
        parameters = sum(int(np.prod(shape)) for name, shape, *_ in self.rows if is_model_variable(name))
        lines.append(f"{len(self.rows)} variables, {parameters:,} parameters of the model.")
        if self.missing:
            lines.append(f"Not in the source, random wherever they are needed: {', '.join(self.missing)}")
        for name, reason in self.unused.items():
            lines.append(f"Left over in the source: {name} ({reason})")
        lines += self.notes
        lines.append(f"Written: {', '.join(self.files)}")
        return "\n".join(lines)


def convert(
    source: str,
    target: str,
    format: str,
    *,
    with_optimizer: bool = False,
    add_tokens: str | None = None,
    use_unused_slots: bool = False,
    new_rows: str = "pieces",
    max_position_embeddings: int | None = None,
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
    bert_config_file: str | None = None,
    vocab_file: str | None = None,
    hidden_act: str | None = None,
    verify: bool = True,
    overwrite: bool = False,
) -> Report:
    """Converts weights and what lies beside them.

    Args:
      source: a path of any of the four formats (see `weight_files.find_weights`).
      target: a directory (see `pretrained.write_model`). format: one of weights.FORMATS.
      with_optimizer: carry Adam moments and step, too.
      add_tokens: file of tokens to add to the vocabulary (see `surgery.add_tokens`, also for `use_unused_slots` and
        `new_rows`). max_position_embeddings: extend the position table (see `surgery.extend_positions`).
      do_lower_case, strip_accents: must not contradict the source's directory; needed where it doesn't tell.
      bert_config_file, vocab_file: instead of those beside the weights.
      hidden_act: written to the configuration instead of the source's.
      verify: also compare outputs with the source library's model, where one is installed.
      overwrite: replace files that are there.

    Raises:
      FileNotFoundError, FileExistsError, ValueError, OSError: nothing of the target is there then.
    """
    weights, files = pretrained.read_model(source, bert_config_file)
    config = pretrained.needed_config(files)
    source_weights = weights
    if (use_unused_slots or new_rows != "pieces") and not add_tokens:
        raise ValueError("--use_unused_slots and --new_rows say how to add tokens: give --add_tokens, too.")
    beside = model_files.read_casing(model_files.directory_of(vocab_file)) if vocab_file else Casing()
    casing = model_files.resolve_casing(do_lower_case, strip_accents, files.casing, beside)
    files = dataclasses.replace(files, vocab_file=vocab_file or files.vocab_file)
    if casing.source == "the default":
        casing = model_files.casing_of_vocabulary(files.vocab_file) if files.vocab_file else Casing()
    notes, vocabulary = [], None
    if files.vocab_file:
        vocabulary = model_files.vocabulary_lines(files.vocab_file)
        if len(vocabulary) < config.vocab_size:
            notes.append(
                f"{files.vocab_file} has {len(vocabulary)} lines for vocab_size {config.vocab_size}: the last rows of "
                "the table are idle, or it is the vocabulary of another model."
            )
    else:
        notes.append("No vocab.txt beside the source: put it beside the target, or give --vocab_file.")
    if casing.do_lower_case is not None:
        notes.append(f"Casing: do_lower_case={casing.do_lower_case}, from {casing.source}.")
    elif format == "huggingface":
        notes.append("Nothing tells whether the model is cased: no tokenizer_config.json is written.")
    if weights.hints.get("half_precision"):
        notes.append("The source is of half precision; its values are written as float32, which is exact.")
    if not with_optimizer and "global_step" in weights:
        notes.append("Adam moments and global_step of the source are left out; --with_optimizer carries them.")
    changes = {}
    if hidden_act:
        changes["hidden_act"] = hidden_act
    if add_tokens:
        if vocabulary is None:
            raise ValueError(f"--add_tokens needs a vocabulary, and {files.directory} has no vocab.txt: --vocab_file.")
        weights, vocabulary, lines = _add_tokens(weights, vocabulary, add_tokens, casing, use_unused_slots, new_rows)
        changes["vocab_size"] = weights.shapes["bert/embeddings/word_embeddings"][0]
        notes += lines
    if max_position_embeddings:
        weights, lines = surgery.extend_positions(weights, max_position_embeddings)
        changes["max_position_embeddings"] = max_position_embeddings
        notes += lines
    config = BertConfig.from_dict({**config.to_dict(), **changes}, allow_unknown=True)
    if format in ("tf1", "model_garden") and config.activation == "gelu_erf":
        notes.append(
            f"hidden_act is \"gelu_erf\", the exact gelu, which the {format} format's own programs don't know: there "
            "they run with gelu (tanh) after --hidden_act=gelu, whose outputs differ by about 1e-3."
        )
    length = max_position_embeddings or files.max_seq_length
    files = dataclasses.replace(files, config=config, casing=casing, max_seq_length=length)

    def check(path: str) -> None:
        notes.append(_compare_tensors(weights, path, with_optimizer))
        if verify:
            notes.extend(_compare_outputs(source_weights, weights, path, config, bool(changes)))

    written = pretrained.write_model(
        target,
        weights,
        files,
        format=format,
        with_optimizer=with_optimizer,
        vocabulary=vocabulary,
        overwrite=overwrite,
        check=check,
    )
    return Report(
        source=weights.path,
        source_format=weights.format,
        target=written.path,
        target_format=format,
        rows=[
            (name, shape, weights.origins.get(name, ""), written.names.get(name) or f"- ({written.left_out[name]})")
            for name, shape in weights.shapes.items()
        ],
        missing=[name for name in expected_shapes(config) if name not in weights.shapes],
        unused=weights.unused,
        notes=notes,
        files=written.files,
    )


def _add_tokens(weights, vocabulary, file, casing: Casing, use_unused_slots, new_rows):
    return surgery.add_tokens(
        weights,
        vocabulary,
        surgery.read_new_tokens(file),
        do_lower_case=bool(casing.do_lower_case),
        strip_accents=casing.strip_accents,
        use_unused=use_unused_slots,
        initialization=new_rows,
    )


def _compare_tensors(weights: Weights, path: str, with_optimizer: bool) -> str:
    """Reads back what was written; every tensor must have the source's bits."""
    back = weight_files.open_weights(path)
    names = [name for name in back if name in weights]
    lost = [name for name in weights if is_model_variable(name) and name.startswith("bert/") and name not in back]
    extra = [name for name in back if name not in weights]
    if lost or extra or (with_optimizer and len(names) < len(weights)):
        raise ValueError(f"Reading back {path} failed: lost {some(lost) or 'nothing'}, new {some(extra) or 'nothing'}.")
    for name in progress_bar(names, desc="Comparing tensors", unit="tensor"):
        if not _same_bits(back[name], weights[name]):
            raise ValueError(f"Reading back {path} failed: {name} differs from {weights.path}.")
    return f"Read back: {len(names)} tensors, each with the same bits as in the source."


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    # As integers: a NaN is equal to itself then, and 0 is not -0.
    integers = np.dtype(f"i{one.dtype.itemsize}")
    return bool(np.array_equal(np.ascontiguousarray(one).view(integers), np.ascontiguousarray(other).view(integers)))


def _compare_outputs(
    source: Weights, target: Weights, target_path: str, config: BertConfig, was_changed: bool
) -> list[str]:
    """Runs the libraries of both formats, where installed, and this project's model on the same input."""
    inputs = example_inputs(config)
    references = {}
    sides = [(source.format, source.path)] if not was_changed else []
    sides.append((weight_files.open_weights(target_path).format, target_path))
    notes = []
    if was_changed and source.format in ("huggingface", "model_garden"):
        notes.append("Outputs of the source's library not compared: the model was changed on the way.")
    for format, path in sides:
        library = {"huggingface": "transformers", "model_garden": "tf-models-official"}.get(format)
        if library is None:
            continue
        if format == "model_garden" and "bert/pooler/dense/kernel" not in target:
            notes.append(f"Outputs of {library} not compared: its encoder needs a pooler, and there is none.")
            continue
        try:
            logging.info("Running the model of %s on %s.", library, path)
            references[f"{library} on {format}"] = _reference_outputs(format, path, config, inputs)
        except ImportError as error:
            notes.append(f"Outputs of {format} not compared: {library} is not installed ({error}).")
        gc.collect()
    if not references:
        return notes
    outputs = our_outputs(target, config, inputs)
    for label, reference in references.items():
        differences = []
        for name in outputs.keys() & reference.keys():
            difference = float(np.max(np.abs(outputs[name] - reference[name])))
            limit = OUTPUT_TOLERANCE * max(1.0, float(np.max(np.abs(reference[name]))))
            if not difference <= limit:
                raise ValueError(
                    f"Outputs differ: {name} of {label} and of this project by {difference:.2g} (at most {limit:.2g})."
                )
            differences.append(f"{name} {difference:.2g}")
        notes.append(f"Outputs equal {label}, largest differences: {', '.join(sorted(differences))}.")
    return notes


def _reference_outputs(format: str, path: str, config: BertConfig, inputs: dict) -> dict[str, np.ndarray]:
    if format == "huggingface":
        return huggingface.reference_outputs(model_files.directory_of(path), inputs)
    return model_garden.reference_outputs(path, config, inputs)


def example_inputs(config: BertConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """A fixed batch with padding and two segments, every position of which is to be predicted.

    Returns:
      input_ids, input_mask, segment_ids, masked_lm_positions, int32 [B, S].
    """
    generator = np.random.default_rng(seed)
    length = min(_SEQUENCE_LENGTH, config.max_position_embeddings)
    lengths = np.linspace(length, max(1, length // 3), _SEQUENCES).astype(int)[:, None]
    positions = np.arange(length)[None, :]
    mask = positions < lengths
    ids = generator.integers(0, config.vocab_size, mask.shape) * mask
    segments = (positions >= lengths // 2) * mask * (config.type_vocab_size > 1)
    arrays = {
        "input_ids": ids,
        "input_mask": mask,
        "segment_ids": segments,
        "masked_lm_positions": np.broadcast_to(positions, mask.shape),
    }
    return {name: np.ascontiguousarray(value, np.int32) for name, value in arrays.items()}


def our_outputs(weights: Weights, config: BertConfig, inputs: dict) -> dict[str, np.ndarray]:
    """Outputs of this project's model: those of the encoder and of the pre-training heads that the weights have."""
    keras.backend.clear_session()
    model = BertForPreTraining(config)
    model.build()
    checkpoints.initialize(checkpoints.model_variables(model), weights)
    outputs = model.bert(inputs)
    outputs |= model(inputs)
    names = ["sequence_output"]
    names += ["pooled_output"] * ("bert/pooler/dense/kernel" in weights)
    names += ["masked_lm_logits"] * ("cls/predictions/output_bias" in weights)
    names += ["next_sentence_logits"] * ("cls/seq_relationship/output_bias" in weights)
    return {name: keras.ops.convert_to_numpy(outputs[name]) for name in names}


def write_report(path: str, report: Report) -> None:
    """Writes the report as a text file."""
    from bert_tf.text_files import write_text_file

    directory = posixpath.dirname(path)
    if directory:
        tf.io.gfile.makedirs(directory)
    write_text_file(path, report.text() + "\n")
