"""Conversion of weights from one format to another: checked before, by names and shapes, and read back after it."""

import dataclasses
import hashlib
import math
import posixpath
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_tf.families import as_config, family_of_variables, is_encoder_variable
from bert_tf.families.family import base_name, expected_shapes, is_model_variable, word_table
from bert_tf.store import card, huggingface, save
from bert_tf.store.description import CardFacts, check_other_vocabulary, read_settings
from bert_tf.store.head_config import NO_HEAD
from bert_tf.store.open import FORMATS, OpenedModel, open_model, open_weights
from bert_tf.store.tensor_files import Weights, blocks
from bert_tf.system.checks import check_output_files
from bert_tf.system.messages import abbreviated_list, naming_flag, progress_bar
from bert_tf.system.text_files import read_text_lines
from bert_tf.text import tokenizer_files
from bert_tf.text.characters import read_added_tokens
from bert_tf.text.tokenizer_files import Casing
from bert_tf.text.wordpiece import FullTokenizer

OUTPUT_BIAS = "cls/predictions/output_bias"


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
        """The report as lines to print."""
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
    writing: further arguments of `save.write_model`. changes: sentences for the card. notes: for the report.
    """

    part: str | None
    weights: Weights
    files: OpenedModel
    writing: Mapping[str, object]
    changes: list[str]
    notes: list[str]

    def carry_out(self) -> Report:
        weights, files, format, compared = self.weights, self.files, self.writing["format"], []
        if format == "huggingface":
            weights, compared = huggingface.fitted(weights, files.config, files.head)
        # The source's card if it is ours, unless it is that of the whole of which this is a part.
        text = None if self.part else card.read_generated_card(files.directory)
        if text is None:
            facts = CardFacts(card.beginning_of(files.path, files.weights))  # which reads all weights
            text = card.card_of(weights, dataclasses.replace(files, card=facts), format)
        text = card.converted(text, format, self.changes)
        with_optimizer = self.writing["with_optimizer"]

        def check(path: str) -> None:
            compared.append(_compare_tensors(weights, path, with_optimizer))

        written = save.write_model(weights=weights, files=files, **self.writing, card_text=text, check=check)
        notes = [*self.notes, *compared]
        usual = type(files.config).hidden_act  # what the family's original has
        knows = FORMATS[format].knows_exact_gelu or usual == "gelu_erf"
        if files.config.activation == "gelu_erf" and not knows:
            what = f"hidden_act is \"gelu_erf\", the exact gelu, which the {format} format's own programs don't know."
            advice = "With --hidden_act=gelu they run it with the tanh form; outputs then differ by about 1e-3."
            notes.append(f"{what} {advice}")
        wanted = expected_shapes(files.config)
        if files.family.parts:  # the other part's head is not missing
            wanted = filter(is_encoder_variable, wanted)
        return Report(weights, format, written, [name for name in wanted if name not in files.weights], notes)


def convert(source: str, target: str, format: str, **options) -> Report:
    """Converts weights and the files next to them; see `prepare`."""
    return prepare(source, target, format, **options).carry_out()


def prepare(
    source: str,
    target: str,
    format: str,
    *,
    with_optimizer: bool = False,
    add_tokens: str | None = None,
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
    bert_config_file: str | None = None,
    vocab_file: str | None = None,
    hidden_act: str | None = None,
    part: str | None = None,
    overwrite: bool = False,
    report_file: str | None = None,
) -> Conversion:
    """Checks a conversion of weights and the files next to them; TensorFlow may be needed, see `is_light`.

    The arguments are the flags of convert_checkpoint.py, and:

    add_tokens: file of words, one a line, to add to a vocabulary of word pieces (see `add_words`).
    """
    with naming_flag("--bert_config_file" if bert_config_file else "--from"):
        files = open_model(source, part=part, config_file=bert_config_file)
        weights, config = files.weights, files.needed_config()
        if part and not files.family.parts:
            raise ValueError(f"{weights.path} is a {config.title}, which has no {part}.")
    if report_file:
        read = filter(None, (weights.path, files.config_file, files.vocab_file, vocab_file))
        check_output_files([report_file], read, "--report_file")
    with naming_flag("--vocab_file" if vocab_file else "--from"):
        save.check_vocabulary(dataclasses.replace(files, vocab_file=vocab_file or files.vocab_file))
    files, notes = _describe(files, vocab_file, do_lower_case, strip_accents)
    notes += _notes_on_source(files, with_optimizer)
    changes, vocabulary = {"hidden_act": hidden_act} if hidden_act else {}, None
    if add_tokens:
        tokenizer, tokens = files.make_tokenizer(is_checked=True), tokenizer_files.vocabulary_lines(files.vocab_file)
        tokens += [tokenizer.inv_vocab.get(index, "") for index in range(len(tokens), tokenizer.vocab_size)]
        weights, vocabulary, lines = add_words(weights, tokens, read_text_lines(add_tokens), tokenizer.tokenize)
        changes["vocab_size"] = weights.shapes[word_table(files.family.model_type)][0]
        notes += lines
    files.config = as_config({**files.config.to_dict(), **changes})
    writing = {"target": target, "format": format, "with_optimizer": with_optimizer, "overwrite": overwrite}
    save.check_writable(weights=weights, files=files, **writing)
    sentences = [f"Tokens were added ({posixpath.basename(add_tokens)}); train them."] if add_tokens else []
    if changes:
        values = ", ".join(f"{name} = {value}" for name, value in changes.items())
        sentences.append(f"The configuration was changed: {values}.")
    writing["vocabulary"] = vocabulary
    return Conversion(part, weights, files, writing, sentences, notes)


def _describe(files: OpenedModel, vocab_file: str | None, do_lower_case: bool | None, strip_accents: bool | None):
    """The files next to the weights, with vocabulary and casing; and notes."""
    check_other_vocabulary(vocab_file, files)
    beside = tokenizer_files.read_casing(vocab_file) if vocab_file else Casing()
    casing = tokenizer_files.resolve_casing(do_lower_case, strip_accents, files.casing, beside)
    vocab_file, notes = vocab_file or files.vocab_file, []
    files = dataclasses.replace(files, vocab_file=vocab_file, casing=casing)
    if not vocab_file:
        name = files.family.tokenizer_class.vocab_name
        notes = [f"No {name} next to the source: put it next to the target, or give --vocab_file."]
    if not issubclass(files.tokenizer_kind(), FullTokenizer):
        if vocab_file:
            files.make_tokenizer(is_checked=True).check_casing(vocab_file, do_lower_case, strip_accents)
            notes = [f"Tokenizer: {vocab_file}."]
        return files, notes
    if vocab_file:
        vocab = tokenizer_files.load_vocab(vocab_file)
        if casing.do_lower_case is None:
            lowers = tokenizer_files.lowers_by_pieces(vocab_file, vocab)
            files.casing = casing = Casing(lowers, strip_accents, f"the pieces of {vocab_file}")
        added = read_added_tokens(vocab_file, vocab)
        count = max([len(tokenizer_files.vocabulary_lines(vocab_file)), *(token.id + 1 for token in added)])
        if count < files.config.vocab_size:
            reason = "the last rows of the table are unused, or it is the vocabulary of another model"
            notes.append(f"{vocab_file} has {count} tokens for vocab_size {files.config.vocab_size}: {reason}.")
    casing_note = f"Casing: do_lower_case={casing.do_lower_case}, from {casing.source}."
    unknown = "Nothing says whether the model is cased: no tokenizer_config.json is written."
    return files, [*notes, unknown if casing.do_lower_case is None else casing_note]


def _notes_on_source(files: OpenedModel, with_optimizer: bool) -> list[str]:
    """Notes on what the weights are, and on how vectors are made, which is read into `files`."""
    notes = []
    if files.weights.hints.get("half_precision"):
        notes.append("The source is in half precision; its values are written as float32, without loss.")
    if not with_optimizer and "global_step" in files.weights:
        notes.append("Adam moments and global_step of the source are left out; --with_optimizer carries them.")
    if files.head == NO_HEAD:
        try:
            sentences = read_settings(files.directory)
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
        value, of = weights.read(name), base_name(name)
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
