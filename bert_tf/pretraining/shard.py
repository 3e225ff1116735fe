"""One shard of pre-training data, from its part of the text to its record files.

`make_shard` is a pure function of a job and a shard's number, in this process, in a pool, or on Apache Beam.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import random
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from bert_tf.data.record_files import companion_path, index_path, write_blocks, written_index
from bert_tf.pretraining import record_writer
from bert_tf.pretraining.corpus import Corpus, TextSettings
from bert_tf.pretraining.instance_kernels import A_LENGTH, B_BEGIN, B_LENGTH, LABEL, NO_B, NUM_MASKED
from bert_tf.pretraining.instances import Instances, create_instances, log_instances
from bert_tf.pretraining.model_vocabulary import data_tokenizer
from bert_tf.pretraining.record_settings import InstanceSettings, RecordSettings
from bert_tf.pretraining.row_kinds import WITH_SEPARATORS, pack
from bert_tf.pretraining.token_store import TokenStore, merge_stores, tokenize
from bert_tf.system import workers
from bert_tf.system.messages import abbreviated_list, progress_bar
from bert_tf.system.numba_compile import interpreted
from bert_tf.system.storage import atomic_files
from bert_tf.system.text_files import Progress, exists, read_json_if_there, size_of
from bert_tf.text.sentence_piece import SentencePieceTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.word_boundaries import WordBoundaries

# Of text, times passes: up to here nothing is compiled. Plain Python takes some 7 s for a megabyte, compilation 8 s.
BYTES_INTERPRETED = 1 << 18
_BYTES_A_TASK = 16 << 20  # of text, where one shard is tokenized by several processes
_TOKENS_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class ShardJob:
    """Everything needed to make any of the shards.

    output_files: names of the files, which `outputs` completes where there are several shards.
    records, instances: the settings, with the tokenizer's do_lower_case and strip_accents; of unmasked records
      instances.max_predictions_per_seq is 0.
    fingerprint: of everything the output depends on.
    """

    input_files: tuple[str, ...]
    output_files: tuple[str, ...]
    text: TextSettings
    records: RecordSettings
    instances: InstanceSettings
    fingerprint: str

    @property
    def num_shards(self) -> int:
        return self.records.num_shards

    @property
    def pairs_per_row(self) -> int:
        return 8 if self.records.pack_sequences else 1

    def outputs(self, shard: int) -> list[str]:
        """The record files of a shard, out.tfrecord-00003-of-00010; of a single one the names themselves."""
        ending = f"-{shard:05d}-of-{self.num_shards:05d}" if self.num_shards > 1 else ""
        return [path + ending for path in self.output_files]

    def files(self, shard: int) -> list[str]:
        outputs = self.outputs(shard)
        return [*outputs, *map(index_path, outputs), summary_path(outputs[0])]

    def seed(self, shard: int) -> int:
        """The seed of a shard; of a single one random_seed itself, as in the original."""
        seed = self.records.random_seed
        if self.num_shards == 1:
            return seed
        return int.from_bytes(hashlib.sha256(f"{seed}/{shard}".encode()).digest()[:8], "big")

    @property
    def no_rows(self) -> str:
        reason = "too short or half unknown (--rows=lines)" if self.instances.rows == "lines" else "blank"
        return f"no text to make records of in {abbreviated_list(self.input_files)}: every line is {reason}"


def summary_path(output_file: str) -> str:
    """`data/a.tfrecord` -> `data/pretraining_data.a.json`."""
    return companion_path(output_file, ".json")


def make_shard(
    job: ShardJob, shard: int, num_workers: int = 1, bar: Callable = progress_bar, *, log: bool = False
) -> dict:
    """Makes the record files of a shard, their indexes and, last of all, their summary, which is returned.

    Files appear under their names when all of them are written; on an error earlier files stay.

    num_workers: for tokenizing. bar: makes the progress bar of each stage. log: show some instances in the log.
    """
    corpus, (tokenizer, _), outputs = Corpus(job.input_files, job.text), _tokenizer_of(job), job.outputs(shard)
    for folder in filter(None, map(os.path.dirname, outputs)):
        tf.io.gfile.makedirs(folder)
    # Opened before the long work, so that an output that can't be written fails at once.
    with (
        atomic_files(job.files(shard)) as temporary,
        tempfile.TemporaryDirectory(prefix=f"bert_tf_{shard}_", dir=job.records.scratch_dir) as scratch,
        _naming(scratch),
        interpreted(corpus.total_bytes * job.instances.dupe_factor <= BYTES_INTERPRETED),
    ):
        store, read_counts = _tokenize(job, corpus, shard, scratch, num_workers, bar)
        rng = random.Random(job.seed(shard))
        # ALBERT's original leaves NumPy's generator unseeded.
        numpy_rng = np.random.RandomState(job.seed(shard) % 2**32)
        instances = create_instances(store, job.instances, tokenizer, rng, scratch, bar, numpy_rng)
        if log:
            log_instances([instances[k] for k in range(min(3, len(instances)))], tokenizer.inv_vocab)
        if not len(instances) and job.num_shards == 1:
            raise ValueError(job.no_rows)
        written = temporary[: len(outputs)]
        counts, blocks = _write(job, instances, rng, written, bar)
        summary = {
            "fingerprint": job.fingerprint,
            **read_counts,
            **_counts(store, instances, sum(int(file[:, 1].sum()) for file in blocks)),
            "output_files": dict(zip(outputs, counts, strict=True)),
            "output_bytes": dict(zip(outputs, map(size_of, written), strict=True)),
        }
        del store, instances
        contents = list(map(written_index, blocks))
        contents.append((json.dumps(summary, indent=2, ensure_ascii=False) + "\n").encode())
        for path, content in zip(temporary[len(outputs) :], contents, strict=True):
            with tf.io.gfile.GFile(path, "wb") as file:
                file.write(content)
    return summary


def read_summary(path: str) -> dict | None:
    """A summary that an earlier run wrote, if there is a whole one."""
    with contextlib.suppress(ValueError):
        return read_json_if_there(path)


def finished_summary(job: ShardJob, shard: int, known: dict | None = None) -> dict | None:
    """The summary of a shard that an earlier run of the same job finished, if any: `known`, or next to its records."""
    summary = known or read_summary(summary_path(job.outputs(shard)[0]))
    with contextlib.suppress(KeyError, TypeError):
        is_ours, sizes = summary["fingerprint"] == job.fingerprint, summary["output_bytes"]
        if is_ours and all(exists(name) and size_of(name) == size for name, size in sizes.items()):
            return summary
    return finished_summary(job, shard) if known else None


@contextlib.contextmanager
def report_stage(weight: float, *, total: float, **_) -> Iterator[types.SimpleNamespace]:
    """Stands in for a progress bar: reports a stage, which adds up to `weight`, to the parent process."""
    yield types.SimpleNamespace(update=lambda amount: workers.report_progress(weight * amount / max(total, 1)))


# ---- stages ----------------------------------------------------------------------------------------------------------


def _tokenize(
    job: ShardJob, corpus: Corpus, shard: int, scratch: str, num_workers: int, bar: Callable
) -> tuple[TokenStore, dict]:
    (begin, end), counts, folder = corpus.shard_range(shard, job.num_shards), Counter(), os.path.join(scratch, "text")
    tasks = min(-(-(end - begin) // _BYTES_A_TASK), 64 * num_workers) if num_workers > 1 else 1
    with bar(total=end - begin, desc="tokenizing", unit="B", unit_scale=True) as progress:
        if tasks <= 1:
            counts = _tokenize_part(job, corpus, begin, end, folder, progress.update)
            return TokenStore.open(folder), counts
        cuts = [begin + (end - begin) * k // tasks for k in range(tasks + 1)]
        folders = [f"{folder}{k}" for k in range(tasks)]
        arguments = [(job, corpus, cuts[k], cuts[k + 1], folders[k]) for k in range(tasks)]
        for _, part_counts in workers.run_tasks(_tokenize_part, arguments, num_workers, progress.update):
            counts.update(part_counts)
    return merge_stores(folders, folder), counts


def _tokenize_part(
    job: ShardJob, corpus: Corpus, begin: int, end: int, folder: str, progress: Progress = workers.report_progress
) -> dict:
    (tokenizer, arguments), counts = _tokenizer_of(job), Counter()
    tokenize(corpus.blocks(begin, end, counts=counts, progress=progress), tokenizer, folder, **arguments)
    return counts


@functools.lru_cache(maxsize=1)  # of this process, which does many parts
def _tokenizer_of(job: ShardJob) -> tuple[Tokenizer, dict]:
    """The tokenizer, and the further arguments of `token_store.tokenize`."""
    records, rows = job.records, job.instances.rows
    tokenizer = data_tokenizer(records.vocab_file, records.do_lower_case, records.strip_accents, rows == "electra")
    arguments = {"separator": tokenizer.sep_id} if rows in WITH_SEPARATORS else {}
    if records.segmenter or records.word_boundaries:
        arguments["boundaries"] = WordBoundaries(tokenizer, records.segmenter)
    elif job.instances.do_whole_word_mask and job.instances.max_predictions_per_seq > 0:
        arguments["mark_words"] = isinstance(tokenizer, SentencePieceTokenizer)
    return tokenizer, arguments


def _write(job: ShardJob, instances: Instances, rng: random.Random, paths: list[str], bar: Callable):
    """Writes the records; returns how many instances each file holds, and its blocks."""
    layouts = []
    for number in range(len(paths)):
        members = instances.order[number :: len(paths)].copy()
        row_ends = np.arange(1, len(members) + 1)
        if job.pairs_per_row > 1:
            spans = instances.spans[members]
            lengths = spans[:, A_LENGTH] + spans[:, B_LENGTH] + 3 - (spans[:, B_BEGIN] == NO_B)
            order, row_ends = pack(lengths, job.instances.max_seq_length, job.pairs_per_row, rng)
            members = members[order]
        layouts.append((members, row_ends))
    written, total = [], sum(len(row_ends) for _, row_ends in layouts)
    with bar(total=total, desc="writing", unit="records", unit_scale=True) as progress:
        for path, (members, row_ends) in zip(paths, layouts, strict=True):
            blocks = record_writer.blocks_of(instances, members, row_ends, job.pairs_per_row)
            written.append(write_blocks(path, blocks, progress.update))
    return [len(members) for members, _ in layouts], written


def _counts(store: TokenStore, instances: Instances, rows: int) -> dict:
    """What a shard has of all that summaries count. rows: the number of its records."""
    settings, spans = instances.settings, instances.spans
    documents, sentences = len(store.document_ends), len(store.sentence_ends)
    separated, unknown_id = settings.rows in WITH_SEPARATORS, instances.tokenizer.unk_id
    parts = np.array_split(store.tokens, len(store.tokens) // _TOKENS_AT_ONCE + 1)
    totals, singles = spans.sum(axis=0), int(np.count_nonzero(spans[:, B_BEGIN] == NO_B))
    return {
        "documents": documents,
        "sentences": sentences - documents * separated,
        "tokens": store.num_tokens - sentences * separated,
        "unknown_tokens": sum(int(np.count_nonzero(part == unknown_id)) for part in parts),
        "instances": len(instances),
        "rows": rows,
        "instance_tokens": int(totals[A_LENGTH] + totals[B_LENGTH]) + 3 * len(instances) - singles,
        "masked_positions": int(totals[NUM_MASKED]),
        "not_in_order" if settings.next_sentence == "order" else "random_next": int(totals[LABEL]),
        **({"rows_left_out": instances.left_out} if instances.left_out else {}),
    }


@contextlib.contextmanager
def _naming(scratch: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # of a full disk, which names no file
        if error.filename or not error.errno:
            raise
        raise OSError(error.errno, f"{error.strerror}, as --scratch_dir has no more room", scratch) from error
