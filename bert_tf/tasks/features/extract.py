"""The outputs of BERT's layers for each token of a text (paper, section 5.3; original: extract_features.py).

All lines are tokenized first, and only their token ids are held. Then lines of similar length are computed together,
within a window of some thousand tokens; a window is written, in the order of the lines, while the next one is computed.
So the memory for values is that of two windows, however long the file.

Shape legend: B batch, S sequence length, L requested layers, H hidden size, T tokens, words or lines.
"""

import array
import concurrent.futures
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.token_rows import TokenRows
from bert_tf.models import initialize, kernels
from bert_tf.models.layers import deferred_initialization, finished
from bert_tf.models.task_models import BertModel
from bert_tf.store.description import SentenceSettings, read_sentence_settings
from bert_tf.system import storage
from bert_tf.system.declare import with_models
from bert_tf.system.messages import naming_flag, progress_bar
from bert_tf.system.text_files import UTF_8, gzip_of, read_text_lines
from bert_tf.system.workers import on_cpu
from bert_tf.tasks.features.files import Entries, open_writer
from bert_tf.tasks.features.settings import FeatureSettings, open_extracted_model
from bert_tf.text import watch_unknown
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.transformers_call import lengths_that_fit
from bert_tf.training import distribution
from bert_tf.training.step import BATCHES_OF_A_PROGRAM, make_predict_function

WORD_POOLINGS = ("first", "mean", "max")
SENTENCE = "sentence"  # the pooling, and the name of a line's only entry

_PAIR_SEPARATOR = " ||| "
# What the tokenizer takes for spaces: Zs, Zl, Zp and three control characters. It deletes all other controls.
_SPACES = re.compile("[\t\n\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")

_WINDOW_BYTES = 256 << 20  # of values; padding is 23 % of the tokens of English sentences with it, in BERT-Base


# --- lines to tokens -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EncodedLine:
    """Tokens of a line: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].

    second_start: position of b, or the number of tokens. words, sizes: names of [CLS], the words and [SEP], and their
    numbers of tokens; empty without a pooling of words.
    """

    ids: list[int]
    second_start: int
    words: list[str]
    sizes: list[int]
    truncated: bool


def read_lines(path: str, encoding: str = UTF_8) -> Iterator[str]:
    return (line.lstrip("\ufeff") for line in read_text_lines(path, encoding=encoding, is_gzip=gzip_of(path)[0]))


def encode_line(line: str, tokenizer: Tokenizer, max_seq_length: int, pooling: str = "none") -> EncodedLine:
    """The tokens of a line `text` or `first ||| second`, as the original makes them.

    With a pooling of words also these, which are separated by spaces. A word without any token (control characters
    only) becomes [UNK], so that every word has features.
    """
    first, separator, last = line.strip().rpartition(_PAIR_SEPARATOR)
    texts = (first, last) if separator else (last,)
    words, pieces = [], []  # of each text
    if pooling in WORD_POOLINGS:
        unknown = (tokenizer.unk_id,)
        words = [[word for word in _SPACES.split(text) if word] for text in texts]
        pieces = [[piece or unknown for piece in tokenizer.encode_words(part)] for part in words]
        encoded = [list(itertools.chain.from_iterable(part)) for part in pieces]
    else:
        encoded = [tokenizer.encode(text) for text in texts]
    a, b = encoded if separator else (encoded[0], [])
    room = max_seq_length - tokenizer.num_special_tokens(pair=bool(b))
    kept = lengths_that_fit(len(a), len(b), room)
    ids, segments = tokenizer.build_inputs(tokenizer.kept(a, kept[0]), tokenizer.kept(b, kept[1]))
    names = list(tokenizer.begin_tokens) if words else []
    sizes = [1] * len(names)
    parts, order = 2 if kept[1] else 1, 1 if tokenizer.truncation_side == "right" else -1
    for number, (part_words, part_pieces) in enumerate(zip(words[:parts], pieces[:parts], strict=True)):
        ends = np.minimum(np.cumsum([*map(len, part_pieces[::order])], dtype=np.int64), kept[number])
        kept_sizes = [size for size in np.diff(ends, prepend=0).tolist() if size][::order]
        special = tokenizer.end_tokens if number == parts - 1 else tokenizer.between_tokens
        names += [*tokenizer.kept(part_words, len(kept_sizes)), *special]
        sizes += [*kept_sizes, *[1] * len(special)]
    return EncodedLine(ids, segments.count(0), names, sizes, len(a) + len(b) > room)


@dataclasses.dataclass(frozen=True)
class EncodedText:
    """The tokens of all lines of a file, and what the features are of: tokens, words, or lines.

    truncated: how many lines were. starts: int64 [T + 1], the first token of the entries in `rows.ids`.
    """

    rows: TokenRows
    truncated: int
    entries: Entries
    starts: np.ndarray

    @classmethod
    def of_lines(cls, lines: Iterable[EncodedLine], tokenizer: Tokenizer, pooling: str = "none") -> "EncodedText":
        ids, lengths, seconds = array.array("i"), array.array("q", [0]), array.array("i")
        words, sizes, counts = [], array.array("q", [0]), array.array("q", [0])
        truncated = 0
        for line in lines:
            ids.extend(line.ids)
            lengths.append(len(line.ids))
            seconds.append(line.second_start)
            truncated += line.truncated
            words += line.words
            sizes.extend(line.sizes)
            counts.append(len(line.words))
        ids, offsets = np.array(ids, np.int32), np.cumsum(lengths)
        watch_unknown(tokenizer, ids)
        rows = TokenRows(ids, offsets, np.array(seconds, np.int32), {}, pad_id=tokenizer.pad_id)
        if pooling == SENTENCE:
            of_lines = Entries(np.arange(len(rows) + 1), lambda begin, end: [SENTENCE] * (end - begin), len(SENTENCE))
            return cls(rows, truncated, of_lines, offsets)
        if pooling in WORD_POOLINGS:
            longest = max(map(len, words), default=1)
            of_words = Entries(np.cumsum(counts), lambda begin, end: words[begin:end], longest)
            return cls(rows, truncated, of_words, np.cumsum(sizes))

        def pieces(begin: int, end: int) -> list[str]:
            return tokenizer.convert_ids_to_tokens(ids[begin:end].tolist())

        of_pieces = Entries(offsets, pieces, max(map(len, tokenizer.vocab)), ids)
        return cls(rows, truncated, of_pieces, np.arange(len(ids) + 1))


def read_input(settings: FeatureSettings, tokenizer: Tokenizer, sentences: SentenceSettings | None) -> EncodedText:
    """Reads and tokenizes the file of lines; see `extract_features`."""
    length = settings.max_seq_length
    token_rows.check_room(tokenizer, length)
    lower, prompt = (sentences.lower, sentences.prompt()) if sentences else (False, "")
    lines = (prompt + line for line in read_lines(settings.input_file, settings.encoding))
    encoded = (encode_line(line.lower() if lower else line, tokenizer, length, settings.pooling) for line in lines)
    text = EncodedText.of_lines(encoded, tokenizer, settings.pooling)
    logging.info("%s: %d lines, %d tokens.", settings.input_file, len(text.rows), len(text.rows.ids))
    if text.truncated:
        message = "%d of %d lines are longer than --max_seq_length=%d; their %s tokens have no features."
        logging.warning(message, text.truncated, len(text.rows), length, tokenizer.lost)
    return text


# --- tokens to values ------------------------------------------------------------------------------------------------


def layer_values(
    model: BertModel,
    rows: TokenRows,
    layers: Sequence[int],
    settings: FeatureSettings,
    strategy: tf.distribute.Strategy | None = None,
) -> Iterator[tuple[range, np.ndarray]]:
    """Window by window, its lines and the values float32 [tokens, L, H] of their tokens; see `extract_features`."""
    strategy = strategy or tf.distribute.get_strategy()
    batch_size, max_seq_length = settings.batch_size, settings.max_seq_length
    static_padding = settings.static_padding or settings.strategy == "tpu"
    sizes, fused = rows.lengths, kernels.fused_enabled() and len(rows) >= batch_size * BATCHES_OF_A_PROGRAM
    fused = fused and on_cpu()  # a GPU takes long to compile, for each length anew
    lengths = token_rows.padded_lengths(max_seq_length) if fused else range(1, max_seq_length + 1)
    lengths = [max_seq_length] if static_padding else lengths
    # A batch whose size never changes: the last, smaller one gets copies of its last line.
    full_size = batch_size if fused or static_padding or strategy.num_replicas_in_sync > 1 else None
    spec = tf.TensorSpec((full_size, max_seq_length if static_padding else None), tf.int32)
    most_tokens = _WINDOW_BYTES // (4 * len(layers) * model.config.hidden_size)
    windows = list(_line_ranges(rows.offsets, batch_size, most_tokens))

    def batches_of(lines: range) -> list[np.ndarray]:
        numbers = np.arange(lines.start, lines.stop)
        if len(lengths) > 1:
            numbers = numbers[np.argsort(-sizes[numbers], kind="stable")]
        return [numbers[start : start + batch_size] for start in range(0, len(numbers), batch_size)]

    def padded(chosen: np.ndarray) -> dict[str, np.ndarray]:
        length = token_rows.padded_length(int(sizes[chosen].max()), lengths)
        return rows.batch(np.pad(chosen, (0, (full_size or len(chosen)) - len(chosen)), mode="edge"), length)

    def values_of(batch, training):
        outputs = model(batch, training=training, return_all_layers=True)["encoder_layers"]
        return tf.stack([tf.cast(outputs[layer], tf.float32) for layer in layers], axis=2)  # [B, S, L, H]

    predict = make_predict_function(values_of, strategy, fused)
    batches = (padded(chosen) for lines in windows for chosen in batches_of(lines))
    results = predict(batches, dict.fromkeys(("input_ids", "input_mask", "segment_ids"), spec))
    with progress_bar(total=len(rows), desc="extract", unit="line") as bar:
        for lines in windows:
            first, end = int(rows.offsets[lines.start]), int(rows.offsets[lines.stop])
            values = np.empty((end - first, len(layers), model.config.hidden_size), np.float32)
            for chosen in batches_of(lines):
                for row, output in zip(chosen.tolist(), next(results), strict=False):
                    start, size = int(rows.offsets[row]) - first, int(sizes[row])
                    values[start : start + size] = output[:size]
                bar.update(len(chosen))
            yield lines, values
            del values  # so that only two windows are in memory: the one being written and the one computed


def _line_ranges(offsets: np.ndarray, batch_size: int, most_tokens: int) -> Iterator[range]:
    """Windows of whole batches with no more tokens than `most_tokens`, except for a single batch."""
    first, count = 0, len(offsets) - 1
    while first < count:
        fitting = int(np.searchsorted(offsets, offsets[first] + most_tokens, "right")) - 1 - first
        last = min(first + max(fitting // batch_size, 1) * batch_size, count)
        yield range(first, last)
        first = last


def pool(values: np.ndarray, starts: np.ndarray, pooling: str) -> np.ndarray:
    """The values [T, L, H] of words. values: [tokens, L, H]. starts: [T + 1], the words' first tokens, and the end."""
    if pooling == "none":
        return values
    if pooling == "first":
        return values[starts[:-1]]
    if pooling == "max":
        return np.maximum.reduceat(values, starts[:-1], axis=0)
    return np.add.reduceat(values, starts[:-1], axis=0) / np.diff(starts)[:, None, None].astype(np.float32)


def pool_lines(values: np.ndarray, starts: np.ndarray, sentences: SentenceSettings, tokenizer: Tokenizer) -> np.ndarray:
    """The values [n, L, H] of lines, as `sentences` say; arguments as for `pool`."""
    skipped = sentences.skipped(sentences.prompt(), tokenizer)
    if skipped:
        kept = np.arange(len(values)) - np.repeat(starts[:-1], np.diff(starts)) >= skipped
        starts = np.concatenate([[0], np.cumsum(np.add.reduceat(kept, starts[:-1]))])
        values = values[kept]
    vectors = pool(values, starts, "first" if sentences.pooling == "cls" else sentences.pooling)
    return np.asarray(finished(vectors, sentences))


def extract_features(
    model: BertModel,
    tokenizer: Tokenizer,
    text: EncodedText,
    layers: tuple[int, ...],
    settings: FeatureSettings,
    sentences: SentenceSettings | None = None,
    strategy: tf.distribute.Strategy | None = None,
) -> None:
    """Writes the values of some layers for every token, every word, or every line of a text.

    text: of `read_input`. layers: numbers of encoder layers, negative ones from the end.
    sentences: how tokens become the row of a line, with --pooling=sentence.
    """
    pooling = settings.pooling
    size = sentences.size_for(model.config) if sentences else model.config.hidden_size

    def write_pooled(lines: range, values: np.ndarray) -> None:
        starts = text.starts[text.entries.offsets[lines.start] : text.entries.offsets[lines.stop] + 1]
        starts = starts - starts[0]
        write(lines, pool_lines(values, starts, sentences, tokenizer) if sentences else pool(values, starts, pooling))

    with (
        open_writer(settings.output_file, settings.output_format, layers, size, text.entries) as write,
        concurrent.futures.ThreadPoolExecutor(1) as writing,
    ):
        written = writing.submit(lambda: None)
        for lines, values in layer_values(model, text.rows, layers, settings, strategy):
            written.result()
            written = writing.submit(write_pooled, lines, values)
            del values
        written.result()


def run(settings: FeatureSettings) -> None:
    """What extract_features.py does: checks model and text, then writes the features."""
    settings = with_models(settings, FeatureSettings.check)
    opened, tokenizer, layers = open_extracted_model(settings)
    sentences = None
    if settings.pooling == SENTENCE:
        with naming_flag("--init_checkpoint"):
            sentences = read_sentence_settings(opened.directory)
        length = ", of length 1" if sentences.normalize else ""
        logging.info("Vectors: %s over the tokens of a line%s.", sentences.pooling, length)
    with naming_flag("--input_file"):
        text = read_input(settings, tokenizer, sentences)
    strategy = distribution.set_up_devices(settings)
    distribution.check_batch_sizes(strategy, settings)
    with deferred_initialization():
        with strategy.scope():
            model = BertModel(opened.config, dtype=settings.dtype_policy)
            model.build()
        model.reads_pooler = False
        initialize.load_complete(model, opened.weights)
    with storage.file_locked(settings.output_file):
        extract_features(model, tokenizer, text, layers, settings, sentences, strategy)
    rows = {"none": "tokens", SENTENCE: "vectors"}.get(settings.pooling, "words")
    logging.info("Wrote %d %s of %d lines to %s.", text.entries.count, rows, len(text.rows), settings.output_file)
