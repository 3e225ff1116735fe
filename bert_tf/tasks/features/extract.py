"""The outputs of BERT's layers for each token of a text (paper, section 5.3; original: extract_features.py).

A file of lines is read twice: once to check it and to measure it, once to compute. Lines of similar length
are computed together, within a window of some thousand tokens; each window is written, in the order of the lines, while
the next one is computed and the one after that is tokenized. So memory is that of two windows, however long the file.

Shape legend: B batch, S sequence length, L layers asked for, H hidden size, T tokens or words of a window.
"""

import concurrent.futures
import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.token_rows import TokenRows
from bert_tf.models import initialize, kernels, open_weights, pretrained, random_weights
from bert_tf.models.sentence_settings import SentenceSettings, read_settings
from bert_tf.models.sentence_vectors import normalized
from bert_tf.models.task_models import BertModel
from bert_tf.models.variable_names import check_shapes
from bert_tf.system.cores import batches_at_once
from bert_tf.system.messages import named_by
from bert_tf.system.progress import progress_bar
from bert_tf.system.text_encodings import UTF_8
from bert_tf.system.text_files import TextFile, compression_of, whole_lines
from bert_tf.system.threads import mapped_in_order
from bert_tf.tasks.features.files import Features, Sizes, open_writer
from bert_tf.tasks.features.settings import FeatureSettings
from bert_tf.text.casing import directory_of
from bert_tf.text.tokenizer import Tokenizer, lengths_that_fit
from bert_tf.text.unknown_tokens import watch_unknown
from bert_tf.training import distribution, fine_tuning
from bert_tf.training.settings import DTYPE_POLICIES

WORD_POOLINGS = ("first", "mean", "max")
SENTENCE = "sentence"  # the pooling, and the name of a line's only entry

_PAIR_SEPARATOR = " ||| "
# What the tokenizer takes for spaces: Zs, Zl, Zp and three control characters. It deletes all other controls.
_SPACES = re.compile("[\t\n\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")

_WINDOW_BYTES = 256 << 20  # of values; padding is 23 % of the tokens of English sentences with it, in BERT-Base
# The fused kernels are compiled for each length, half a second or so: fewer batches than this are done sooner without.
_BATCHES_FOR_FUSED = 200


def parse_layers(text: str, num_hidden_layers: int) -> tuple[int, ...]:
    """The layers of --layers: numbers with commas between them, -1 the last one, 0 the first.

    Raises:
      ValueError: not numbers, or there is no such layer.
    """
    try:
        layers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--layers={text}: give numbers with commas between them, such as -1,-2.") from None
    for layer in layers:
        if not -num_hidden_layers <= layer < num_hidden_layers:
            raise ValueError(
                f"--layers={text}: there is no layer {layer}, the model has {num_hidden_layers}: "
                f"{-num_hidden_layers} to -1, or 0 to {num_hidden_layers - 1}."
            )
    return layers


# --- lines to tokens -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EncodedLine:
    """Tokens of a line: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].

    Attributes:
      ids: of the tokens. second_start: position of b; the number of tokens where there is none.
      words, sizes: names of [CLS], the words and [SEP], and of how many tokens each consists; None without a pooling of
        words.
    """

    ids: list[int]
    second_start: int
    words: list[str] | None
    sizes: list[int] | None
    truncated: bool


def read_lines(path: str, encoding: str = UTF_8) -> Iterator[str]:
    """The lines of a text file, which may be compressed (.gz, .bz2, .zst), as `text_files.read_text_lines`.

    Raises:
      ValueError: not in the encoding, or a damaged compressed file; names the file and the line.
    """
    file = TextFile(path, compression_of(path)[0], encoding)
    for offset, block in whole_lines(file, file.chunks()):
        lines = file.decode(offset, block).split("\n")
        if not lines[-1]:
            lines.pop()
        for line in lines:
            yield line.lstrip("\ufeff")


def encode_line(line: str, tokenizer: Tokenizer, max_seq_length: int, pooling: str = "none") -> EncodedLine:
    """The tokens of a line `text` or `first ||| second`, as the original makes them.

    With a pooling of words also these, which are separated by spaces. A word without any token (control characters
    only) becomes [UNK], so that every word has features.
    """
    texts = line.strip().rpartition(_PAIR_SEPARATOR)
    texts = (texts[0], texts[2]) if texts[1] else (texts[2],)
    words = [[word for word in _SPACES.split(text) if word] for text in texts] if pooling in WORD_POOLINGS else None
    if words is None:
        encoded = [tokenizer.encode(text) for text in texts]
        sizes = None
    else:
        unknown = (tokenizer.unk_id,)
        pieces = [[own or unknown for own in tokenizer.encode_words(part)] for part in words]
        sizes = [[len(own) for own in part] for part in pieces]
        encoded = [[index for own in part for index in own] for part in pieces]
    a, b = encoded[0], encoded[1] if len(encoded) > 1 else []
    room = max_seq_length - tokenizer.num_special_tokens(pair=bool(b))
    truncated = len(a) + len(b) > room
    kept = lengths_that_fit(len(a), len(b), room)
    ids, segments = tokenizer.build_inputs(a[: kept[0]], b[: kept[1]])
    second_start = segments.count(0)
    if words is None:
        return EncodedLine(ids, second_start, None, None, truncated)
    all_words = list(tokenizer.begin_tokens)
    all_sizes = [1] * len(all_words)
    parts = 2 if kept[1] else 1
    for number in range(parts):
        ends = np.minimum(np.cumsum(sizes[number], dtype=np.int64), kept[number])
        kept_sizes = [size for size in np.diff(ends, prepend=0).tolist() if size]
        special = tokenizer.end_tokens if number == parts - 1 else tokenizer.between_tokens
        all_words += [*words[number][: len(kept_sizes)], *special]
        all_sizes += [*kept_sizes, *[1] * len(special)]
    return EncodedLine(ids, second_start, all_words, all_sizes, truncated)


def _encoded_lines(
    path: str,
    tokenizer: Tokenizer,
    max_seq_length: int,
    pooling: str,
    sentences: SentenceSettings | None,
    encoding: str,
) -> Iterator[EncodedLine]:
    lower = sentences is not None and sentences.lower
    prompt = sentences.prompt() if sentences else ""
    for line in read_lines(path, encoding):
        line = prompt + line
        yield encode_line(line.lower() if lower else line, tokenizer, max_seq_length, pooling)


@dataclasses.dataclass(frozen=True)
class Window:
    """Consecutive lines that are computed together.

    Attributes:
      first_line: number of the first, from 0. rows: their tokens.
      words: of all lines, [CLS] and [SEP] among them. word_starts: int64 [T + 1], their first tokens in `rows.ids`.
      word_offsets: int64 [n + 1], the words of each line. All three are None without a pooling of words.
    """

    first_line: int
    rows: TokenRows
    words: list[str] | None
    word_starts: np.ndarray | None
    word_offsets: np.ndarray | None

    @classmethod
    def of_lines(cls, first_line: int, lines: Sequence[EncodedLine], tokenizer: Tokenizer) -> "Window":
        """The window of these lines, the first of which has this number."""
        ids, offsets = token_rows.flatten([line.ids for line in lines])
        watch_unknown(tokenizer, ids)
        starts = np.array([line.second_start for line in lines], np.int32)
        rows = TokenRows(ids, offsets, starts, {}, pad_id=tokenizer.pad_id)
        if lines[0].words is None:
            return cls(first_line, rows, None, None, None)
        sizes = [size for line in lines for size in line.sizes]
        return cls(
            first_line,
            rows,
            [word for line in lines for word in line.words],
            np.cumsum([0, *sizes], dtype=np.int64),
            np.cumsum([0, *(len(line.words) for line in lines)], dtype=np.int64),
        )


def windows_of(
    lines: Iterator[EncodedLine], batch_size: int, most_tokens: int, tokenizer: Tokenizer
) -> Iterator[Window]:
    """Lines cut into windows of whole batches with no more tokens than `most_tokens`, except for a single batch."""
    first, held, tokens = 0, [], 0
    for line in lines:
        held.append(line)
        tokens += len(line.ids)
        if len(held) % batch_size == 0 and tokens * (1 + batch_size / len(held)) > most_tokens:
            yield Window.of_lines(first, held, tokenizer)
            first, held, tokens = first + len(held), [], 0
    if held:
        yield Window.of_lines(first, held, tokenizer)


def count(lines: Iterator[EncodedLine], tokenizer: Tokenizer, pooling: str = "none") -> Sizes:
    """How much the features of these lines will be."""
    number = tokens = entries = truncated = 0
    longest = 0
    for line in lines:
        number += 1
        tokens += len(line.ids)
        truncated += line.truncated
        entries += len(line.ids if line.words is None else line.words)
        longest = max(longest, *map(len, line.words or ("",)))
    if pooling == SENTENCE:
        return Sizes(number, tokens, number, len(SENTENCE), truncated)
    return Sizes(number, tokens, entries, longest or max(map(len, tokenizer.vocab)), truncated)


# --- tokens to values ------------------------------------------------------------------------------------------------


def make_layers_function(
    model: BertModel,
    layers: Sequence[int],
    strategy: tf.distribute.Strategy | None = None,
    *,
    shape: tuple[int | None, int | None] = (None, None),
    fused: bool = False,
) -> Callable[[dict], np.ndarray]:
    """Builds a function from a batch (see `TokenRows.batch`) to the values of some layers, float32 [B, S, L, H].

    Args:
      layers: numbers of encoder layers, negative ones from the end.
      strategy: the batch is divided among its replicas, whose number must divide B.
      shape: B and S where they never change, which a TPU needs.
      fused: see `kernels.fused_inference`.
    """
    strategy = strategy or tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync
    spec = tf.TensorSpec(shape, tf.int32)

    def replica_values(batch):
        if replicas > 1:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            part = tf.shape(batch["input_ids"])[0] // replicas
            batch = {name: values[number * part : (number + 1) * part] for name, values in batch.items()}
        with kernels.fused_inference() if fused else contextlib.nullcontext():
            outputs = model(batch, training=False, return_all_layers=True)["encoder_layers"]
        return tf.stack([tf.cast(outputs[layer], tf.float32) for layer in layers], axis=2)

    @tf.function(input_signature=[dict.fromkeys(("input_ids", "input_mask", "segment_ids"), spec)], autograph=False)
    def all_values(batch):
        values = strategy.run(replica_values, args=(batch,))
        return strategy.gather(values, axis=0) if replicas > 1 else values

    return lambda batch: all_values(batch).numpy()


def compute_window(
    window: Window,
    compute: Callable[[dict], np.ndarray],
    size: tuple[int, int],
    *,
    batch_size: int,
    max_seq_length: int,
    static_padding: bool = False,
    few_lengths: bool = False,
    fill: bool = False,
    at_once: int = 1,
    on_progress: Callable[[int], object] = lambda lines: None,
) -> np.ndarray:
    """Values float32 [T, L, H] of the tokens of a window, in their order.

    Args:
      compute: from `make_layers_function`. size: L, H.
      static_padding: pad all batches to max_seq_length, and leave the lines in their order.
      few_lengths: pad other batches to one of `token_rows.padded_lengths`, instead of to their longest line.
      fill: make a last, smaller batch as large as the others by copies of its last line.
      at_once: how many batches are computed at the same time.
      on_progress: called with the number of lines after each batch.
    """
    rows, offsets = window.rows, window.rows.offsets
    allowed = token_rows.padded_lengths(max_seq_length) if few_lengths else range(1, max_seq_length + 1)
    allowed = [max_seq_length] if static_padding else allowed
    values = np.empty((int(offsets[-1]), *size), np.float32)
    if static_padding:
        batches = [np.arange(len(rows))[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    else:
        batches = token_rows.evaluation_rows(rows.lengths, batch_size)

    def output_of(chosen):
        longest = int(rows.lengths[chosen].max())
        length = token_rows.padded_length(longest, allowed)
        full = np.concatenate([chosen, np.repeat(chosen[-1:], batch_size - len(chosen))]) if fill else chosen
        return chosen, compute(rows.batch(full, length))

    for chosen, output in mapped_in_order(output_of, batches, at_once):
        for place, row in enumerate(chosen.tolist()):
            begin, end = offsets[row], offsets[row + 1]
            values[begin:end] = output[place, : end - begin]
        on_progress(len(chosen))
    return values


def pool(values: np.ndarray, starts: np.ndarray, pooling: str) -> np.ndarray:
    """One row of values for each word: its first token's, or mean or maximum over its tokens.

    Args:
      values: [tokens, L, H]. starts: [T + 1], the first token of each word, and the number of tokens.
      pooling: "first", "mean" or "max".

    Returns:
      [T, L, H]
    """
    if pooling == "first":
        return values[starts[:-1]]
    if pooling == "max":
        return np.maximum.reduceat(values, starts[:-1], axis=0)
    sums = np.add.reduceat(values, starts[:-1], axis=0)
    return sums / np.diff(starts)[:, None, None].astype(np.float32)


def pool_lines(
    values: np.ndarray, offsets: np.ndarray, sentences: SentenceSettings, tokenizer: Tokenizer
) -> np.ndarray:
    """One row of values for each line, as `sentences` say.

    Args:
      values: [tokens, L, H]. offsets: [n + 1], the first token of each line, and the number of tokens.

    Returns:
      [n, L, H]
    """
    skipped = sentences.skipped(sentences.prompt(), tokenizer)
    if skipped:
        kept = np.arange(len(values)) - np.repeat(offsets[:-1], np.diff(offsets)) >= skipped
        offsets = np.concatenate([[0], np.cumsum(np.add.reduceat(kept, offsets[:-1]))])
        values = values[kept]
    vectors = pool(values, offsets, "first" if sentences.pooling == "cls" else sentences.pooling)
    return np.asarray(normalized(vectors)) if sentences.normalize else vectors


def _features(
    window: Window, values: np.ndarray, tokenizer: Tokenizer, pooling: str, sentences: SentenceSettings | None
) -> Features:
    if pooling == SENTENCE:
        count = len(window.rows)
        vectors = pool_lines(values, window.rows.offsets, sentences, tokenizer)
        return Features(window.first_line, np.arange(count + 1), [SENTENCE] * count, None, vectors)
    if pooling == "none":
        ids = window.rows.ids
        names = tokenizer.convert_ids_to_tokens(ids.tolist())
        return Features(window.first_line, window.rows.offsets, names, ids, values)
    pooled = pool(values, window.word_starts, pooling)
    return Features(window.first_line, window.word_offsets, window.words, None, pooled)


# --- all together ----------------------------------------------------------------------------------------------------


def check_input(
    input_file: str,
    tokenizer: Tokenizer,
    max_seq_length: int,
    pooling: str = "none",
    sentences: SentenceSettings | None = None,
    encoding: str = UTF_8,
) -> Sizes:
    """Reads a file of lines to its end, and returns how much there is; see `extract_features`.

    Raises:
      FileNotFoundError, ValueError: no such file, an empty one, another encoding (names the line), or no
        room for any token.
    """
    token_rows.check_room(tokenizer, max_seq_length)
    if not tf.io.gfile.exists(input_file) or tf.io.gfile.isdir(input_file):
        raise FileNotFoundError(f"{input_file} is not a file.")
    lines = _encoded_lines(input_file, tokenizer, max_seq_length, pooling, sentences, encoding)
    sizes = count(lines, tokenizer, pooling)
    if not sizes.lines:
        raise ValueError(f"{input_file} is empty: it should hold one text per line.")
    logging.info("%s: %d lines, %d tokens.", input_file, sizes.lines, sizes.tokens)
    if sizes.truncated:
        logging.warning(
            "%d of %d lines are longer than --max_seq_length=%d; their last tokens have no features.",
            sizes.truncated, sizes.lines, max_seq_length,
        )  # fmt: skip
    return sizes


def extract_features(
    model: BertModel,
    tokenizer: Tokenizer,
    input_file: str,
    output_file: str,
    *,
    layers: Sequence[int] = (-1, -2, -3, -4),
    max_seq_length: int = 128,
    batch_size: int = 32,
    output_format: str = "json",
    pooling: str = "none",
    sentences: SentenceSettings | None = None,
    static_padding: bool = False,
    strategy: tf.distribute.Strategy | None = None,
    sizes: Sizes | None = None,
    window_bytes: int = _WINDOW_BYTES,
    encoding: str = UTF_8,
) -> Sizes:
    """Writes the values of some layers for every token, every word, or every line of a file.

    Args:
      input_file: one text or `first ||| second` a line. encoding: of the file, see `text_files.TextFile`.
      output_file: replaced when all is done. output_format: one of `files.FORMATS`.
      layers: numbers of encoder layers; see `parse_layers`.
      batch_size: lines computed together.
      pooling: "none", or how tokens become words: "first", "mean", "max"; or "sentence", one row for a line, with
        sentences: how that is made.
      static_padding: pad all lines to max_seq_length, as the original did.
      sizes: the result of `check_input`, if it has been called before.
      window_bytes: most values held at a time, in bytes (twice: computed and written), except for a single batch.

    Raises:
      FileNotFoundError, ValueError: see `check_input`, or the file changed meanwhile.
      tf.errors.OpError, OSError: output_file can't be written.
    """
    sizes = sizes or check_input(input_file, tokenizer, max_seq_length, pooling, sentences, encoding)
    layers, hidden_size = tuple(layers), model.config.hidden_size
    fused = kernels.fused_enabled() and sizes.lines >= batch_size * _BATCHES_FOR_FUSED
    replicas = strategy.num_replicas_in_sync if strategy else 1
    shape = (batch_size, max_seq_length) if static_padding else (None, None)
    compute = make_layers_function(model, layers, strategy, shape=shape, fused=fused)
    encoded = _encoded_lines(input_file, tokenizer, max_seq_length, pooling, sentences, encoding)
    windows = windows_of(encoded, batch_size, window_bytes // (4 * len(layers) * hidden_size), tokenizer)
    lines = entries = 0

    def write_window(window: Window, values: np.ndarray) -> None:
        nonlocal lines, entries
        features = _features(window, values, tokenizer, pooling, sentences)
        lines, entries = lines + len(features.offsets) - 1, entries + len(features.names)
        if lines > sizes.lines or entries > sizes.entries:
            raise ValueError(f"{input_file} changed while it was read.")
        write(features)

    with (
        progress_bar(total=sizes.lines, desc="extract", unit="line") as bar,
        open_writer(output_file, output_format, layers, hidden_size, sizes, pooling) as write,
        concurrent.futures.ThreadPoolExecutor(1) as reading,
        concurrent.futures.ThreadPoolExecutor(1) as writing,
    ):
        upcoming, written = reading.submit(next, windows, None), None
        while (window := upcoming.result()) is not None:
            upcoming = reading.submit(next, windows, None)
            values = compute_window(
                window,
                compute,
                (len(layers), hidden_size),
                batch_size=batch_size,
                max_seq_length=max_seq_length,
                static_padding=static_padding,
                few_lengths=fused,
                fill=fused or static_padding or replicas > 1,
                at_once=batches_at_once(replicas),
                on_progress=bar.update,
            )
            if written:
                written.result()
            written = writing.submit(write_window, window, values)
            del values  # so that only two windows are in memory: the one being written and the one being computed
        if written:
            written.result()
        if (lines, entries) != (sizes.lines, sizes.entries):
            raise ValueError(f"{input_file} changed while it was read.")
    return sizes


def run(settings: FeatureSettings) -> Sizes:
    """What extract_features.py does: checks model and text, then writes the features.

    Raises:
      FileNotFoundError, ValueError: a setting, a file or the model does not fit; names the flag.
      tf.errors.OpError, OSError: the output can't be written.
    """
    settings.check()
    with named_by("--init_checkpoint"):
        weights = open_weights.open_weights(settings.init_checkpoint)
    files = pretrained.describe(
        weights, bert_config_file=settings.bert_config_file, vocab_file=settings.vocab_file,
        do_lower_case=settings.do_lower_case, strip_accents=settings.strip_accents,
        allow_unknown=settings.allow_unknown_config_keys,
    )  # fmt: skip
    tokenizer = fine_tuning.make_tokenizer(files, settings)
    check_shapes(weights, files.config, files.config_file or "The configuration")
    layers = parse_layers(settings.layers_asked_for, files.config.num_hidden_layers)
    sentences = None
    if settings.pooling == SENTENCE:
        with named_by("--init_checkpoint"):
            sentences = read_settings(directory_of(settings.init_checkpoint))
        length = ", of length 1" if sentences.normalize else ""
        logging.info("Vectors: %s over the tokens of a line%s.", sentences.pooling, length)
    with named_by("--max_seq_length"):
        token_rows.check_room(tokenizer, settings.max_seq_length)
    with named_by("--input_file"):
        sizes = check_input(
            settings.input_file, tokenizer, settings.max_seq_length, settings.pooling, sentences, settings.encoding
        )
    strategy = distribution.set_up_devices(settings)
    distribution.check_batch_size(settings.batch_size, strategy, 1, "batch_size")
    with random_weights.drawn_late():
        with strategy.scope():
            model = BertModel(files.config, dtype=DTYPE_POLICIES[settings.dtype])
            model.build()
        result = initialize.initialize(initialize.model_variables(model), weights)
    model.reads_pooler = False
    initialize.check_complete(result, model)
    initialize.log_initialization(result, model)
    extract_features(
        model, tokenizer, settings.input_file, settings.output_file, layers=layers,
        max_seq_length=settings.max_seq_length, batch_size=settings.batch_size, output_format=settings.output_format,
        pooling=settings.pooling, sentences=sentences, strategy=strategy, sizes=sizes,
        static_padding=settings.static_padding or settings.strategy == "tpu", encoding=settings.encoding,
    )  # fmt: skip
    rows = {"none": "tokens", SENTENCE: "vectors"}.get(settings.pooling, "words")
    logging.info("Wrote %d %s of %d lines to %s.", sizes.entries, rows, sizes.lines, settings.output_file)
    return sizes
