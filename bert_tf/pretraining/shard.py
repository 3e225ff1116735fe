"""One shard of pre-training data, from its part of the text to its record files.

`make_shard` is a pure function of a job and a shard's number, so it does not matter which process of which machine runs
it, when, and how often: create_pretraining_data.py runs it in this process, in a pool of processes, or on Apache Beam.
"""

import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import json
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data.written_index import WrittenIndex, beside, index_path
from bert_tf.pretraining import record_writer
from bert_tf.pretraining.corpus import Corpus
from bert_tf.pretraining.corpus_formats import TextSettings
from bert_tf.pretraining.instance_kernels import A_LENGTH, B_BEGIN, B_LENGTH, LABEL, NO_B, NUM_MASKED
from bert_tf.pretraining.instances import Instances, InstanceSettings, VocabularyIds, log_instances
from bert_tf.pretraining.packing import pack
from bert_tf.pretraining.row_kinds import WITH_SEPARATORS, create_rows
from bert_tf.pretraining.token_store import TokenStore, merge_stores, tokenize
from bert_tf.pretraining.vocabulary_files import read_tokenizer
from bert_tf.system import run_lock, workers
from bert_tf.system.atomic import is_temporary_name, remove_folder, written_together
from bert_tf.system.literal_paths import names_in, paths_beginning_with
from bert_tf.system.messages import visible
from bert_tf.system.numba_compile import interpreted
from bert_tf.system.progress import progress_bar
from bert_tf.system.run_lock import Owner
from bert_tf.system.text_files import read_json
from bert_tf.text.sentence_piece import SentencePieceTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.word_boundaries import WordBoundaries

PACKED_PAIRS = 8  # most pairs per row with --pack_sequences
INSTANCES_LOGGED = 3
# Of text, times passes: up to here nothing is compiled. Plain Python takes some 7 s for a megabyte, compilation 8 s.
BYTES_INTERPRETED = 1 << 18
# Roughly how a shard's time is divided.
_TOKENIZING_SHARE, _BUILDING_SHARE, _WRITING_SHARE = 0.4, 0.3, 0.3
_BYTES_A_TASK = 16 << 20  # of text, where one shard is tokenized by several processes
_ROWS_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class ShardJob:
    """Everything needed to make any of the shards; the fields are the flags of create_pretraining_data.py.

    Attributes:
      input_files: the text, see `corpus.Corpus`; text: how to read it.
      output_files: names of the files, which `shard_name` completes where there are several shards.
      settings: of the instances; max_predictions_per_seq 0: unmasked records.
      pairs_per_row: 1; more to pack pairs (unmasked records only).
      compression: None or "gzip".
      segmenter: of `text.segmenters`, or "spaces"; None: pieces show by "##" what continues a word.
      scratch_dir: local directory for what does not fit in memory; None: the system's.
      fingerprint: of everything the output depends on.
    """

    input_files: tuple[str, ...]
    output_files: tuple[str, ...]
    vocab_file: str
    do_lower_case: bool
    strip_accents: bool | None
    text: TextSettings
    settings: InstanceSettings
    random_seed: int
    num_shards: int
    pairs_per_row: int
    compression: str | None
    scratch_dir: str | None
    fingerprint: str
    segmenter: str | None = None

    def outputs(self, shard: int) -> list[str]:
        """The record files of a shard."""
        return [shard_name(path, shard, self.num_shards) for path in self.output_files]

    def files(self, shard: int) -> list[str]:
        """All files of a shard: its record files, their indexes, and the summary."""
        outputs = self.outputs(shard)
        return [*outputs, *map(index_path, outputs), summary_path(outputs[0])]

    def seed(self, shard: int) -> int:
        """The seed of a shard: random_seed itself where there is only one, so that this is the original's."""
        if self.num_shards == 1:
            return self.random_seed
        return int.from_bytes(hashlib.sha256(f"{self.random_seed}/{shard}".encode()).digest()[:8], "big")

    def tokenizer(self) -> Tokenizer:
        electra = self.settings.rows == "electra"
        return read_tokenizer(self.vocab_file, self.do_lower_case, self.strip_accents, electra)

    def store_arguments(self, tokenizer: Tokenizer) -> dict:
        """What `token_store.tokenize` needs to know beside the text, by the names of its arguments."""
        arguments = {"separator": tokenizer.sep_id} if self.settings.rows in WITH_SEPARATORS else {}
        if self.segmenter:
            segmenter = None if self.segmenter == "spaces" else self.segmenter
            return {**arguments, "boundaries": WordBoundaries(tokenizer, segmenter)}
        masks_words = self.settings.do_whole_word_mask and self.settings.max_predictions_per_seq > 0
        return {**arguments, "mark_words": masks_words and isinstance(tokenizer, SentencePieceTokenizer)}


def shard_name(path: str, shard: int, num_shards: int) -> str:
    """out.tfrecord -> out.tfrecord-00003-of-00010; the name itself of a single shard."""
    return path if num_shards == 1 else f"{path}-{shard:05d}-of-{num_shards:05d}"


def summary_path(output_file: str) -> str:
    """Where the summary of a record file is: `data/a.tfrecord` -> `data/pretraining_data.a.json`."""
    return beside(output_file, ".json")


# The share of a shard's time that a stage takes -> a function that makes the stage's bar, called like `progress_bar`.
Bars = Callable[[float], Callable]


def make_shard(
    job: ShardJob,
    shard: int,
    num_workers: int = 1,
    *,
    show_progress: bool = True,
    bars: Bars | None = None,
    log: bool = False,
) -> dict:
    """Makes the record files of a shard, their indexes and, last of all, their summary.

    Files appear under their names when all of them are written; on an error earlier files stay.

    Args:
      num_workers: processes for tokenizing.
      show_progress: draw a progress bar for each stage. bars: what to make instead of them.
      log: show some instances in the log.

    Returns:
      The summary, as written.

    Raises:
      ValueError: bad text (names file, line and byte). OSError: the scratch directory is full.
      tf.errors.OpError: a file can't be read or written.
    """
    if bars is None:
        drawn = functools.partial(progress_bar, disable=not show_progress)
        bars = lambda _: drawn  # noqa: E731
    corpus = Corpus(job.input_files, job.text)
    begin, end = corpus.shard_range(shard, job.num_shards)
    tokenizer = job.tokenizer()
    outputs = job.outputs(shard)
    for path in outputs:
        if os.path.dirname(path):
            tf.io.gfile.makedirs(os.path.dirname(path))
    # Opened before the long work, so that an output that can't be written fails at once.
    with (
        written_together(job.files(shard)) as temporary,
        tempfile.TemporaryDirectory(prefix=f"bert_tf_{shard}_", dir=job.scratch_dir) as scratch,
        _explained_full_disk(scratch),
        interpreted(corpus.total_bytes * job.settings.dupe_factor <= BYTES_INTERPRETED),
    ):
        store, read_counts = _tokenize(job, tokenizer, (begin, end), scratch, num_workers, bars(_TOKENIZING_SHARE))
        text_counts = _count_text(store, tokenizer.unk_id, job.settings.rows in WITH_SEPARATORS)
        if not text_counts["documents"] and job.num_shards == 1:
            raise ValueError(no_text(job))
        vocabulary = VocabularyIds.of(tokenizer)
        rng = random.Random(job.seed(shard))
        # ALBERT's original leaves NumPy's generator unseeded.
        numpy_rng = np.random.RandomState(job.seed(shard) % 2**32)
        instances = create_rows(
            store, job.settings, vocabulary, tokenizer.unk_id, rng, numpy_rng, scratch, bars(_BUILDING_SHARE)
        )
        if log:
            log_instances(instances[:INSTANCES_LOGGED], tokenizer.inv_vocab, job.settings.next_sentence)
        if not len(instances) and job.num_shards == 1:
            raise ValueError(no_rows(job))
        temporary_records, temporary_indexes = temporary[: len(outputs)], temporary[len(outputs) : -1]
        counts, indexes = _write(job, instances, rng, temporary_records, bars(_WRITING_SHARE))
        summary = {
            "fingerprint": job.fingerprint,
            **read_counts,
            **text_counts,
            **_count_instances(instances, sum(int(index.counts.sum()) for index in indexes)),
            "output_files": dict(zip(outputs, counts, strict=True)),
            "output_bytes": {
                path: tf.io.gfile.stat(temporary).length
                for path, temporary in zip(outputs, temporary_records, strict=True)
            },
        }
        del store, instances
        contents = [index.to_bytes() for index in indexes]
        contents.append((json.dumps(summary, indent=2, ensure_ascii=False) + "\n").encode())
        for path, content in zip([*temporary_indexes, temporary[-1]], contents, strict=True):
            with tf.io.gfile.GFile(path, "wb") as file:
                file.write(content)
    return summary


def read_summary(path: str) -> dict | None:
    """A summary that an earlier run wrote; None if there is none that can be read."""
    try:
        return read_json(path)
    except (ValueError, tf.errors.OpError):
        return None


def finished_summary(job: ShardJob, shard: int) -> dict | None:
    """The summary of a shard that an earlier run of the same job finished; None if there is none."""
    summary = read_summary(summary_path(job.outputs(shard)[0])) or {}
    try:
        if summary.get("fingerprint") != job.fingerprint or set(summary["output_files"]) != set(job.outputs(shard)):
            return None
        sizes = {name: tf.io.gfile.stat(name).length for name in summary["output_files"]}
    except (KeyError, TypeError, tf.errors.OpError):
        return None
    return summary if sizes == summary["output_bytes"] else None


def make_shard_as_task(job: ShardJob, shard: int, weight: float) -> dict:
    """`make_shard` for `workers.run_tasks`; the whole shard counts as `weight` in the progress."""
    return make_shard(job, shard, bars=lambda share: functools.partial(_StageProgress, weight * share))


class _StageProgress:
    """Stands in for a progress bar: reports a stage, which adds up to `weight`, to the parent process."""

    def __init__(self, weight: float, *, total: float, **_):
        self.weight, self.total, self.done = weight, max(total, 1), 0.0

    def update(self, amount: float) -> None:
        self.done += amount
        workers.report_progress(self.weight * amount / self.total)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.update(self.total - self.done)


# ---- stages ----------------------------------------------------------------------------------------------------------


def _tokenize(job, tokenizer, text_range, scratch, num_workers, bar) -> tuple[TokenStore, dict]:
    begin, end = text_range
    counts: dict = {}
    tasks = min(-(-(end - begin) // _BYTES_A_TASK), 64 * num_workers) if num_workers > 1 else 1
    with bar(total=end - begin, desc="tokenizing", unit="B", unit_scale=True) as progress:
        if tasks <= 1:
            pieces = Corpus(job.input_files, job.text).blocks(begin, end, counts=counts, progress=progress.update)
            return tokenize(pieces, tokenizer, os.path.join(scratch, "text"), **job.store_arguments(tokenizer)), counts
        cuts = [begin + (end - begin) * k // tasks for k in range(tasks + 1)]
        folders = [os.path.join(scratch, f"text{k}") for k in range(tasks)]
        arguments = [(job, cuts[k], cuts[k + 1], folders[k]) for k in range(tasks)]
        for _, part_counts in workers.run_tasks(_tokenize_part, arguments, num_workers, progress.update):
            counts = _add(counts, part_counts)
    return merge_stores(folders, os.path.join(scratch, "text")), counts


@functools.lru_cache(maxsize=1)  # of this process, which does many parts
def _tokenizer_of(job: ShardJob) -> tuple[Tokenizer, dict]:
    tokenizer = job.tokenizer()
    return tokenizer, job.store_arguments(tokenizer)


def _tokenize_part(job: ShardJob, begin: int, end: int, directory: str) -> dict:
    tokenizer, arguments = _tokenizer_of(job)
    counts: dict = {}
    pieces = Corpus(job.input_files, job.text).blocks(begin, end, counts=counts, progress=workers.report_progress)
    tokenize(pieces, tokenizer, directory, **arguments)
    return counts


def _add(one: dict, other: dict) -> dict:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _write(
    job: ShardJob, instances: Instances, rng: random.Random, paths: Sequence[str], bar: Callable
) -> tuple[list[int], list[WrittenIndex]]:
    """Writes the records; returns how many instances each file holds, and its index."""
    counts, indexes = [], []
    with bar(total=len(instances), desc="writing", unit="instances", unit_scale=True) as progress:
        for number, path in enumerate(paths):
            chosen = instances.order[number :: len(paths)].copy()
            row_ends = np.arange(1, len(chosen) + 1)
            if job.pairs_per_row > 1:
                lengths = _lengths(instances.spans, chosen)
                chosen_places, row_ends = pack(lengths, job.settings.max_seq_length, job.pairs_per_row, rng)
                chosen = chosen[chosen_places]
            if job.settings.rows == "electra":
                blocks = record_writer.plain_blocks(instances, chosen)
            elif job.settings.max_predictions_per_seq:
                blocks = record_writer.masked_blocks(instances, chosen)
            else:
                blocks = record_writer.unmasked_blocks(instances, row_ends, chosen, job.pairs_per_row)

            written = _counted(blocks, len(row_ends), len(chosen), progress.update)
            indexes.append(record_writer.write_blocks(path, written, len(row_ends), job.compression))
            counts.append(len(chosen))
    return counts, indexes


def _counted(blocks: Iterator[bytes], rows: int, instances: int, update: Callable[[float], None]) -> Iterator[bytes]:
    """Passes the blocks of this many rows through and returns the number of instances taken from them."""
    for number, block in enumerate(blocks):
        yield block
        before, after = (min(rows, (number + k) * record_writer.RECORDS_PER_BLOCK) for k in (0, 1))
        update(instances * after // rows - instances * before // rows)


def _lengths(spans: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    special_tokens = 3 - (spans[numbers, B_BEGIN] == NO_B)
    return spans[numbers, A_LENGTH] + spans[numbers, B_LENGTH] + special_tokens


def _count_text(store: TokenStore, unknown_id: int, separated: bool) -> dict:
    """Counts of a store's text, without its separators, if it has any."""
    documents, sentences = len(store.document_ends), len(store.sentence_ends)
    tokens = store.tokens
    unknown = sum(
        int(np.count_nonzero(tokens[begin : begin + _ROWS_AT_ONCE] == unknown_id))
        for begin in range(0, len(tokens), _ROWS_AT_ONCE)
    )
    return {
        "documents": documents,
        "sentences": sentences - documents * separated,
        "tokens": store.num_tokens - sentences * separated,
        "unknown_tokens": unknown,
    }


def _count_instances(instances: Instances, rows: int) -> dict:
    totals, singles = np.zeros(instances.spans.shape[1], np.int64), 0
    for begin in range(0, len(instances), _ROWS_AT_ONCE):
        spans = instances.spans[begin : begin + _ROWS_AT_ONCE]
        totals += spans.sum(axis=0)
        singles += int(np.count_nonzero(spans[:, B_BEGIN] == NO_B))
    in_order = instances.settings.next_sentence == "order"
    return {
        "instances": len(instances),
        "rows": rows,
        "instance_tokens": int(totals[A_LENGTH] + totals[B_LENGTH]) + 3 * len(instances) - singles,
        "masked_positions": int(totals[NUM_MASKED]),
        "not_in_order" if in_order else "random_next": int(totals[LABEL]),
        **({"rows_left_out": instances.left_out} if instances.left_out else {}),
    }


# ---- files -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def alone(job: ShardJob, own_scratch: bool = True) -> Iterator[ShardJob]:
    """Yields the job while no other run writes its files, after removing what a killed run of them left behind.

    Args:
      own_scratch: the job that is yielded has a new scratch directory of its own, which only this user can open.

    Raises:
      LockedError: another run writes one of the files; names it.
    """
    with contextlib.ExitStack() as stack:
        locks = []
        for path in sorted({*job.output_files}):
            held = run_lock.held(_lock_path(path), f"--output_file={path}", [path, beside(path, "")])
            locks.append(stack.enter_context(held))
        place = os.path.abspath(job.scratch_dir or tempfile.gettempdir())
        for lock in locks:
            if lock.predecessor:
                _remove_scratch(lock.predecessor, place)
        _remove_temporary_files(job)
        if own_scratch:
            scratch = os.path.join(place, _scratch_name(locks[0].owner))
            locks[0].note_scratch(scratch)  # first, so that it is known after a kill at any moment
            os.mkdir(scratch, 0o700)
            stack.callback(remove_folder, scratch)
            folder = stack.enter_context(_opened(scratch))
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(folder, fcntl.LOCK_SH)  # until this process ends, in whatever way
            job = dataclasses.replace(job, scratch_dir=scratch)
        yield job


def _lock_path(output_file: str) -> str:
    folder, name = os.path.split(output_file)
    return os.path.join(folder, f".{name}.lock")


def _scratch_name(owner: Owner) -> str:
    return f"bert_tf_{owner.token}"


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int]:
    """The descriptor of a folder. OSError if it is anything else, such as a link to one."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_scratch(owner: Owner, place: str) -> None:
    """Removes the scratch directory of a run that was killed, if it is really that and this user's.

    Anyone who can write beside the output can write the lock file, too, so that it is not believed.

    Args:
      place: the folder of scratch directories. In another one nothing is removed.
    """
    if not owner.scratch or os.path.basename(owner.scratch) != _scratch_name(owner):
        return
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(_opened(owner.scratch))
        except (OSError, ValueError):  # nothing there, or a name that no file can have
            return
        if os.fstat(folder).st_uid != os.geteuid():
            return
        if os.path.dirname(owner.scratch) != place:
            reason = "seems to be left by a killed run with another --scratch_dir"
        elif _is_in_use(folder):
            reason = "seems to be left by a killed run, but may be in use by another one"
        else:
            remove_folder(owner.scratch)
            return
        logging.warning("%s %s; remove it if it is.", visible(owner.scratch), reason)


def _is_in_use(folder: int) -> bool:
    """Whether a running process has locked a folder, or that can't be seen."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _remove_temporary_files(job: ShardJob) -> None:
    paths = [path for shard in range(job.num_shards) for path in job.files(shard)]
    paths += map(_lock_path, job.output_files)
    for folder in {os.path.dirname(path) for path in paths}:
        names = {os.path.basename(path) for path in paths if os.path.dirname(path) == folder}
        for name in names_in(folder):
            if is_temporary_name(name) and name[1:].rsplit(".", 2)[0] in names:
                tf.io.gfile.remove(os.path.join(folder, name))


def remove_shards(job: ShardJob) -> None:
    """Removes all files of a job."""
    for shard in range(job.num_shards):
        for path in job.files(shard):
            if tf.io.gfile.exists(path):  # runs of older versions wrote no index
                tf.io.gfile.remove(path)


def no_text(job: ShardJob) -> str:
    """The message that there is no text to make instances of."""
    return f"no text to make instances of in {', '.join(job.input_files[:5])}: every line is blank"


def no_rows(job: ShardJob) -> str:
    """The message that every line is left out."""
    return (
        f"no rows to make of {', '.join(job.input_files[:5])}: with --rows=lines a line holds several sentences, but "
        "here each has less than 10 tokens, or half of them unknown"
    )


def other_shards(job: ShardJob) -> list[str]:
    """Record files of these names that an earlier run cut into another number of shards."""
    mine = {name for shard in range(job.num_shards) for name in job.outputs(shard)}
    found = [name for path in job.output_files for name in paths_beginning_with(f"{path}-")]
    return sorted(name for name in set(found) - mine if re.search(r"-\d{5,}-of-\d{5,}$", name))


@contextlib.contextmanager
def _explained_full_disk(scratch: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"{os.strerror(error.errno)} in the scratch directory; --scratch_dir can name one with more room",
            scratch,
        ) from error
