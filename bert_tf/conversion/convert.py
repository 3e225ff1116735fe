"""Conversion of weights from one format to another: checked before, by names and shapes, and read back after it."""

import dataclasses
import hashlib
import math
import posixpath
from collections.abc import Callable, Sequence

import numpy as np

from bert_tf.families import as_config, family_of_variables, is_encoder_variable
from bert_tf.families.family import base_name, expected_shapes, is_model_variable, word_table
from bert_tf.store import card, huggingface, save
from bert_tf.store.description import CardFacts, read_sentence_settings, vocabulary_in
from bert_tf.store.head_config import NO_HEAD
from bert_tf.store.open import FORMATS, OpenedModel, open_model, open_weights
from bert_tf.store.tensor_files import Weights, blocks
from bert_tf.system.checks import check_output_dir, check_output_file, check_output_files
from bert_tf.system.declare import REQUIRED, setting
from bert_tf.system.messages import abbreviated_list, naming_flag, progress_bar
from bert_tf.system.text_files import read_text_lines
from bert_tf.text import tokenizer_files
from bert_tf.text.tokenizer_files import Casing
from bert_tf.text.wordpiece import FullTokenizer

OUTPUT_BIAS = "cls/predictions/output_bias"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionSettings:
    """What is converted, and how.

    add_tokens: file of words, one a line, to add to a vocabulary of word pieces (see `add_words`).
    """

    from_: str = setting(
        REQUIRED, "The weights: a directory, a checkpoint prefix or a weight file.", heading="Conversion", is_model=True
    )
    to: str = setting(
        REQUIRED, "Directory to write; for tf1 also a prefix such as out/bert_model.ckpt.", check=check_output_dir
    )
    format: str = setting(
        REQUIRED,
        "Format to write. "
        + " ".join(f"{name}: {format.help}" for name, format in FORMATS.items() if format.file_name),
        choices=[name for name, format in FORMATS.items() if format.file_name],
    )
    overwrite: bool = setting(False, "Replace existing files of the target.")
    with_optimizer: bool = setting(
        False, "Also convert Adam moments and global_step, to continue a run (tf1, bert_tf)."
    )
    part: str | None = setting(
        None,
        "Which model of an ELECTRA checkpoint that has both. If unset, the discriminator, or the only one there.",
        choices=("discriminator", "generator"),
    )
    report_file: str | None = setting(None, "Also write the report to this file.", check=check_output_file)
    bert_config_file: str | None = setting(
        None,
        "Configuration of the model, if there is none next to the weights or it is wrong.",
        heading="Files next to the weights",
    )
    hidden_act: str | None = setting(
        None,
        "Activation to write instead of the source's. gelu is the original's tanh form, gelu_erf Hugging Face's gelu.",
        choices=("gelu", "gelu_erf", "relu", "tanh", "linear"),
    )
    vocab_file: str | None = setting(
        None, "Vocabulary to write with the weights, if there is none next to them.", model_file=vocabulary_in
    )
    do_lower_case: bool | None = setting(
        None, "Whether the model is uncased; needed only if the directory does not say. If unset, as that says."
    )
    strip_accents: bool | None = setting(
        None, "Whether to strip accents. If unset, as the directory says, or else as do_lower_case."
    )
    add_tokens: str | None = None

    @property
    def writing(self) -> dict:
        return {"format": self.format, "with_optimizer": self.with_optimizer, "overwrite": self.overwrite}


@dataclasses.dataclass(frozen=True)
class Report:
    """missing: the variables of a pre-training model that the source doesn't have. notes: other steps, and checks."""

    weights: Weights
    format: str
    written: save.Written
    missing: list[str]
    notes: list[str]

    @property
    def rows(self) -> list[tuple[str, tuple[int, ...], str, str]]:
        """(original's name, shape, name in the source, name in the target or why it is not there)."""
        names = self.written.names | {name: f"- ({reason})" for name, reason in self.written.left_out.items()}
        origins = self.weights.origins
        return [(name, shape, origins.get(name, ""), names[name]) for name, shape in self.weights.shapes.items()]

    def text(self) -> str:
        rows = [(name, str(list(shape)), origin, goal) for name, shape, origin, goal in self.rows]
        table = [("variable", "shape", "in the source", "in the target"), *rows]
        widths = [max(len(row[column]) for row in table) for column in range(3)] + [0]
        parameters = sum(math.prod(self.weights.shapes[name]) for name, *_ in rows if is_model_variable(name))
        missing = [f"Not in the source, random wherever they are needed: {', '.join(self.missing)}"]
        lines = [
            f"From {self.weights.path} ({self.weights.format})",
            f"To   {self.written.path} ({self.format})",
            "",
            *("  ".join(map(str.ljust, row, widths)).rstrip() for row in table),
            "",
            f"{len(rows)} variables, {parameters:,} parameters of the model.",
            *(missing if self.missing else []),
            *(f"Left over in the source: {name} ({reason})" for name, reason in self.weights.unused.items()),
            *self.notes,
            f"Written: {', '.join(self.written.files)}",
        ]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A conversion that has been checked.

    files: of the source, with its weights, and what is to be written with them. weights: with the requested changes.
    vocabulary: with the added tokens, if any. changes: sentences for the card. notes: for the report.
    """

    settings: ConversionSettings
    weights: Weights
    files: OpenedModel
    vocabulary: list[str] | None
    changes: list[str]
    notes: list[str]

    def carry_out(self) -> Report:
        settings, weights, files, format, compared = self.settings, self.weights, self.files, self.settings.format, []
        if format == "huggingface":
            weights, compared = huggingface.with_class_variables(weights, files.config, files.head)
        # The source's card if it is ours, unless it is that of the whole of which this is a part.
        text = None if settings.part else card.read_generated_card(files.directory)
        if text is None:
            facts = CardFacts(card.beginning_of(files.path, files.weights))  # which reads all weights
            text = card.card_of(weights, dataclasses.replace(files, card=facts), format)
        text = card.converted(text, format, self.changes)
        made: dict = {"vocabulary": self.vocabulary, "card_text": text}
        made["check"] = lambda path: compared.append(_compare_tensors(weights, path, settings.with_optimizer))
        written = save.write_model(settings.to, weights, files, **settings.writing, **made)
        notes = [*self.notes, *compared]
        knows = format != "tf1" or type(files.config).hidden_act == "gelu_erf"  # which the family's original has
        if files.config.activation == "gelu_erf" and not knows:
            what = f"hidden_act is \"gelu_erf\", the exact gelu, which the {format} format's own programs don't know."
            advice = "With --hidden_act=gelu they run it with the tanh form; outputs then differ by about 1e-3."
            notes.append(f"{what} {advice}")
        wanted = expected_shapes(files.config)
        if files.family.parts:  # the other part's head is not missing
            wanted = filter(is_encoder_variable, wanted)
        return Report(weights, format, written, [name for name in wanted if name not in files.weights], notes)


def convert(source: str, target: str, format: str, **options) -> Report:
    """Converts weights and the files next to them; options: further `ConversionSettings`."""
    return prepare(ConversionSettings(from_=source, to=target, format=format, **options)).carry_out()


def prepare(settings: ConversionSettings) -> Conversion:
    """Checks a conversion of weights and the files next to them; TensorFlow may be needed, see `is_light`."""
    with naming_flag("--bert_config_file" if settings.bert_config_file else "--from"):
        files = open_model(settings.from_, part=settings.part, config_file=settings.bert_config_file)
        weights, config, vocab_file = files.weights, files.needed_config(), settings.vocab_file
        if settings.part and not files.family.parts:
            raise ValueError(f"{weights.path} is a {config.title}, which has no {settings.part}.")
    if settings.report_file:
        read = filter(None, (weights.path, files.config_file, files.vocab_file, vocab_file))
        check_output_files([settings.report_file], read, "--report_file")
    with naming_flag("--vocab_file" if vocab_file else "--from"):
        save.check_vocabulary(dataclasses.replace(files, vocab_file=vocab_file or files.vocab_file))
    notes = _take_vocabulary(files, vocab_file, settings.do_lower_case, settings.strip_accents)
    notes += _notes_on_source(files, settings.with_optimizer)
    changes, vocabulary, sentences = {"hidden_act": settings.hidden_act} if settings.hidden_act else {}, None, []
    if settings.add_tokens:
        tokenizer, tokens = files.make_tokenizer(is_checked=True), tokenizer_files.vocabulary_lines(files.vocab_file)
        tokens += [tokenizer.inv_vocab.get(index, "") for index in range(len(tokens), tokenizer.vocab_size)]
        words = read_text_lines(settings.add_tokens)
        weights, vocabulary, lines = add_words(weights, tokens, words, tokenizer.tokenize)
        changes["vocab_size"] = weights.shapes[word_table(files.family.model_type)][0]
        notes += lines
        sentences.append(f"Tokens were added ({posixpath.basename(settings.add_tokens)}); train them.")
    files.config = as_config({**files.config.to_dict(), **changes})
    save.check_writable(settings.to, weights, files, **settings.writing)
    if changes:
        values = ", ".join(f"{name} = {value}" for name, value in changes.items())
        sentences.append(f"The configuration was changed: {values}.")
    return Conversion(settings, weights, files, vocabulary, sentences, notes)


def _take_vocabulary(
    files: OpenedModel, vocab_file: str | None, do_lower_case: bool | None, strip_accents: bool | None
) -> list[str]:
    """Returns notes on what the files next to the weights are then."""
    files.take_vocabulary(vocab_file, do_lower_case, strip_accents)
    vocab_file, casing, notes = files.vocab_file, files.casing, []
    if not vocab_file:
        name = files.family.tokenizer_class.vocab_name
        notes = [f"No {name} next to the source: put it next to the target, or give --vocab_file."]
    if not issubclass(kind := files.tokenizer_kind(), FullTokenizer):
        if vocab_file:
            files.make_tokenizer(is_checked=True).check_casing(vocab_file, do_lower_case, strip_accents)
            notes = [f"Tokenizer: {vocab_file}."]
        return notes
    if vocab_file:
        tokenizer = kind.from_file(vocab_file, casing)
        if casing.do_lower_case is None:
            files.casing = casing = Casing(not tokenizer.cased, strip_accents, f"the pieces of {vocab_file}")
        if (count := tokenizer.vocab_size) < files.config.vocab_size:
            reason = "the last rows of the table are unused, or it is the vocabulary of another model"
            notes.append(f"{vocab_file} has {count} tokens for vocab_size {files.config.vocab_size}: {reason}.")
    casing_note = f"Casing: do_lower_case={casing.do_lower_case}, from {casing.source}."
    unknown = "Nothing says whether the model is cased: no tokenizer_config.json is written."
    return [*notes, unknown if casing.do_lower_case is None else casing_note]


def _notes_on_source(files: OpenedModel, with_optimizer: bool) -> list[str]:
    """Notes on what the weights are, and on how vectors are made, which is read into `files`."""
    notes = []
    if files.weights.hints.get("half_precision"):
        notes.append("The source is in half precision; its values are written as float32, without loss.")
    if not with_optimizer and "global_step" in files.weights:
        notes.append("Adam moments and global_step of the source are left out; --with_optimizer carries them.")
    if files.head == NO_HEAD:
        try:
            sentences = read_sentence_settings(files.directory)
        except ValueError as error:
            return [*notes, f"The target has no files of sentence-transformers: {error}"]
        if sentences.described:
            files.sentences = sentences
            notes.append(f"Vectors of texts: {sentences.pooling}{', of length 1' if sentences.normalize else ''}.")
    return notes


def _compare_tensors(weights: Weights, path: str, with_optimizer: bool) -> str:
    back = open_weights(path)
    names = [name for name in back if name in weights]
    needed = weights if with_optimizer else filter(is_model_variable, filter(is_encoder_variable, weights))
    lost, extra = [name for name in needed if name not in back], [name for name in back if name not in weights]
    if lost or extra:
        differ = (abbreviated_list(names) or "nothing" for names in (lost, extra))
        raise ValueError(f"Reading back {path} failed: lost {', new '.join(differ)}.")
    for name in progress_bar(names, desc="Comparing tensors", unit="tensor"):
        if _digest(back, name) != _digest(weights, name):
            raise ValueError(f"Reading back {path} failed: {name} differs from {weights.path}.")
    return f"Read back: {len(names)} tensors, each with the same bits as in the source."


def _digest(weights: Weights, name: str) -> tuple:
    value, digest = weights[name], hashlib.sha256()
    for block in blocks(value):
        digest.update(block.tobytes())
    return value.dtype, value.shape, digest.digest()


def add_words(
    weights: Weights, vocabulary: Sequence[str], words: Sequence[str], tokenize: Callable[[str], list[str]]
) -> tuple[Weights, list[str], list[str]]:
    """Appends words to a vocabulary of word pieces, and rows to the word table and the masked-LM bias.

    A row is the mean of those of the word's pieces, taken in float64 and rounded once; its Adam moments are 0. Words
    already in the vocabulary are left out. The tables grow when they are read; the returned lines say what was done.
    """
    table = word_table(family_of_variables(weights.shapes).model_type)
    ids = {token.strip(): number for number, token in enumerate(vocabulary)}
    pieces = {word: tokenize(word) for word in words if word not in ids}
    first, size = len(vocabulary), max(weights.shapes[table][0], len(vocabulary) + len(pieces))

    def read(name: str) -> np.ndarray:
        value, of = weights[name], base_name(name)
        if of not in (table, OUTPUT_BIAS):
            return value
        grown = np.zeros((size, *value.shape[1:]), value.dtype)
        grown[: len(value)] = value
        for row, cut in enumerate(pieces.values(), first):
            grown[row] = value[[ids[piece] for piece in cut]].mean(axis=0, dtype=np.float64) if of == name else 0.0
        return grown

    grows = (table, OUTPUT_BIAS)
    shapes = {name: (size, *of[1:]) if base_name(name) in grows else of for name, of in weights.shapes.items()}
    report = [f"{word!r}: row {row}, the mean of {' '.join(pieces[word])}." for row, word in enumerate(pieces, first)]
    return dataclasses.replace(weights, shapes=shapes, reader=read), [*vocabulary, *pieces], report
