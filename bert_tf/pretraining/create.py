"""Text to pre-training records: masked LM and next sentence instances (original: create_pretraining_data.py).

The stages: corpus -> token_store (word_kernels) -> instances (instance_kernels) or row_kinds -> record_writer; `shard`
is all of it for one shard of the text. This module finds what an earlier run has already done, starts the rest, and
says what looks wrong.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf
from absl import logging

from bert_tf.pretraining.corpus import Corpus, TextSettings
from bert_tf.pretraining.model_vocabulary import tokenizer_of, vocabulary_sha256
from bert_tf.pretraining.record_settings import InstanceSettings, RecordSettings, settings_of_records
from bert_tf.pretraining.shard import ShardJob, finished_summary, make_shard, read_summary, report_stage, summary_path
from bert_tf.system import storage, workers
from bert_tf.system.checks import check_output_files
from bert_tf.system.example_bytes import is_frame_head
from bert_tf.system.messages import abbreviated_list, progress_bar
from bert_tf.system.storage import is_remote, paths_beginning_with
from bert_tf.system.text_files import list_files
from bert_tf.system.workers import available_cores
from bert_tf.text.tokenizer import Tokenizer

# Flags that earlier versions did not have -> what they did.
_LATER = {
    "word_boundaries": None, "segmenter": None, "rows": "pairs", "next_sentence": "random", "ngram": 0,
    "favor_shorter_ngram": True, "blanks_separate_docs": True, "joins_files": True, "encoding": "utf-8",
}  # fmt: skip
# By default up to 128 shards would be one piece of work, for one worker.
_DASK_PARTITIONS = ("--dask_partition_size", "--dask_npartitions")


def create_pretraining_data(
    input_file: str,
    output_file: str,
    vocab_file: str,
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
    *,
    text: TextSettings | None = None,
    beam_options: Sequence[str] = (),
    show_progress: bool = True,
    **settings: float | bool | str | None,
) -> dict:
    """Text files in, TFRecord files out, with a summary of them in `summary_path(first output file)`.

    The arguments are the flags of create_pretraining_data.py, `settings` those of `RecordSettings` and
    `InstanceSettings`. A failed run leaves finished shards, from which the same flags and input resume.

    Returns the summary, as written: flags, input_files, vocab_sha256, vocab_size; counts of documents, sentences,
    tokens, instances, rows (records), masked_positions, random_next; shares of unknown tokens in the text and of
    padding in the records; output_files with the instances of each.
    """
    records, instances = settings_of_records(
        input_file=input_file, output_file=output_file, vocab_file=vocab_file, do_lower_case=do_lower_case,
        strip_accents=strip_accents, beam_option=tuple(beam_options), **settings,
    )  # fmt: skip
    return create_records(records, instances, text or TextSettings(), show_progress)


def create_records(
    records: RecordSettings, instances: InstanceSettings, text: TextSettings, show_progress: bool = True
) -> dict:
    """`create_pretraining_data` of settings that were checked, see `settings_of_records`."""
    # ELECTRA's original ends its rows with the file.
    text = dataclasses.replace(text, joins_files=instances.rows != "electra")
    tokenizer = tokenizer_of(records, instances)
    vocabulary = {"vocab_sha256": vocabulary_sha256(records.vocab_file), "vocab_size": tokenizer.vocab_size}
    job, flags = _job_of(records, instances, text, tokenizer, vocabulary["vocab_sha256"])
    _check_files(job)
    with _exclusive(job) as job:
        summaries, is_new = _make_missing(job, flags, show_progress)
        merged, path = _merged_summary(job, flags, summaries) | vocabulary, summary_path(job.output_files[0])
        if read_summary(path) != merged:
            storage.write_text_file(path, json.dumps(merged, indent=2, ensure_ascii=False) + "\n")
        _remove(summary_path(job.outputs(shard)[0]) for shard in range(job.num_shards) if job.num_shards > 1)
    if is_new:
        _log_summary(merged, path)
    return merged


def _job_of(
    records: RecordSettings, instances: InstanceSettings, text: TextSettings, tokenizer: Tokenizer, vocab_sha256: str
) -> tuple[ShardJob, dict]:
    casing = {"do_lower_case": not tokenizer.cased, "strip_accents": tokenizer.settings().get("strip_accents")}
    # Everything that determines the output: runs with equal values are the same job.
    flags = dict(
        input_file=records.input_file, output_file=records.output_file, vocab_file=records.vocab_file,
        **casing, random_seed=records.random_seed, masking=records.masking, pack_sequences=records.pack_sequences,
        num_shards=records.num_shards, **vars(instances), **vars(text),
        word_boundaries=records.word_boundaries, segmenter=records.segmenter,
    )  # fmt: skip
    # Left out at their defaults, so that files of earlier versions, which lack them, count as made by this job.
    flags = {name: value for name, value in flags.items() if name not in _LATER or value != _LATER[name]}
    if records.masking == "dynamic":
        instances = dataclasses.replace(instances, max_predictions_per_seq=0)
    input_files = list_files(records.input_file, flag="--input_file")
    stats = [tf.io.gfile.stat(path) for path in input_files]
    files = [[path, int(stat.length), int(stat.mtime_nsec)] for path, stat in zip(input_files, stats, strict=True)]
    decisive = {name: value for name, value in flags.items() if name not in ("input_file", "vocab_file")}
    decisive["compression"] = None  # which earlier versions had: their files are what would be made now
    content = json.dumps([1, decisive, files, vocab_sha256], sort_keys=True)
    records = dataclasses.replace(records, **casing, beam_option=tuple(records.beam_option))
    fingerprint = hashlib.sha256(content.encode()).hexdigest()
    return ShardJob(tuple(input_files), records.output_files, text, records, instances, fingerprint), flags


def _check_files(job: ShardJob) -> None:
    flag = f"--output_file={job.records.output_file}"
    written = [path for shard in range(job.num_shards) for path in job.files(shard)]
    check_output_files(written, [*job.input_files, job.records.vocab_file], flag)
    outputs = [path for shard in range(job.num_shards) for path in job.outputs(shard)]
    for path in outputs:
        if os.path.isfile(path) or (is_remote(path) and tf.io.gfile.exists(path)):  # a pipe is not read
            with tf.io.gfile.GFile(path, "rb") as file:
                head = file.read(12)
            if head and not is_frame_head(head):
                raise ValueError(f"--output_file: {path} is there, and not a file of records: choose another name.")
    if scratch := job.records.scratch_dir:
        if is_remote(scratch):
            raise ValueError(f"--scratch_dir={scratch} must be a local directory.")
        os.makedirs(scratch, exist_ok=True)
    existing = {name for path in job.output_files for name in paths_beginning_with(f"{path}-")}
    if stale := sorted(name for name in existing.difference(outputs) if re.search(r"-\d{5,}-of-\d{5,}$", name)):
        what = f"delete the {len(stale)} files of another number of shards, which would be taken for these"
        raise ValueError(f"--num_shards={job.num_shards}: {what}: {abbreviated_list(stale)}")


@contextlib.contextmanager
def _exclusive(job: ShardJob) -> Iterator[ShardJob]:
    """Locks the output files, removes what a killed run left, and yields the job, with its own scratch directory."""
    with contextlib.ExitStack() as stack:
        for path in sorted({*job.output_files}):
            stack.enter_context(storage.file_locked(path, summary_path(path)))
        storage.remove_temporary_files([path for shard in range(job.num_shards) for path in job.files(shard)])
        if not job.records.beam_runner:
            storage.remove_left_behind(job.records.scratch_dir)
            scratch = stack.enter_context(storage.private_folder(job.records.scratch_dir))
            job = dataclasses.replace(job, records=dataclasses.replace(job.records, scratch_dir=scratch))
        yield job


def _remove(paths: Iterable[str]) -> None:
    for path in filter(tf.io.gfile.exists, paths):
        tf.io.gfile.remove(path)


def _make_missing(job: ShardJob, flags: dict, show_progress: bool) -> tuple[list[dict], bool]:
    """Makes the shards that no earlier run has made; the summaries of all, and whether any was made."""
    final_summary, records = summary_path(job.output_files[0]), job.records
    earlier = read_summary(final_summary) or {}
    known = dict(enumerate(earlier.get("shards", []) if earlier.get("fingerprint") == job.fingerprint else []))
    # One of the known may have been made again by a run that was killed.
    finished = ((shard, finished_summary(job, shard, known.get(shard))) for shard in range(job.num_shards))
    summaries = {shard: summary for shard, summary in finished if summary}
    missing = [shard for shard in range(job.num_shards) if shard not in summaries]
    if summaries and job.num_shards > 1:
        logging.info("%d of %d shards are done already", len(summaries), job.num_shards)
    if replaced := [shard for shard in missing if all(map(tf.io.gfile.exists, job.outputs(shard)))]:
        before, count = earlier.get("flags", {}), len(replaced) * len(job.output_files)
        changed = [f"--{name} was {before[name]}" for name in flags if name in before and before[name] != flags[name]]
        what = f"{count} finished files of an earlier run with other flags or another text are replaced"
        flags_changed = f" ({', '.join(changed)})" if changed else ""
        logging.warning(f"{what}, the first is {job.outputs(replaced[0])[0]}{flags_changed}")
    num_workers = records.num_workers or available_cores()
    bar = functools.partial(progress_bar, disable=not show_progress)
    corpus = Corpus(job.input_files, job.text)
    corpus.warn_of_tables()
    logging.info("%.1f MB of text in %s", corpus.total_bytes / 1e6, abbreviated_list(job.input_files))
    if not missing:
        logging.info("Everything is done already; nothing is written. Delete %s to make it again.", final_summary)
    elif records.beam_runner:
        summaries |= _make_shards_by_beam(job, missing, records.beam_runner, records.beam_option)
    elif job.num_shards == 1:
        if corpus.total_bytes > 200_000_000 and num_workers > 1:
            logging.info("One shard is drawn on one core: --num_shards=%d would use all of them.", 4 * num_workers)
        summaries[0] = make_shard(job, 0, num_workers, bar=bar, log=True)
    else:
        summaries |= _make_shards(job, corpus, missing, num_workers, bar)
    if not any(summary["rows"] for summary in summaries.values()):
        _remove(path for shard in range(job.num_shards) for path in job.files(shard))
        raise ValueError(job.no_rows)
    for shard, summary in sorted(summaries.items()):
        warn_of_text(summary, f"shard {shard}" if job.num_shards > 1 else records.input_file, job)
    return [summaries[shard] for shard in range(job.num_shards)], bool(missing)


def _make_shards(job: ShardJob, corpus: Corpus, missing: list[int], num_workers: int, bar: Callable) -> dict[int, dict]:
    summaries, weight = {}, corpus.total_bytes / job.num_shards
    num_workers = min(num_workers, len(missing))
    logging.info("%d shards by %d process%s", len(missing), num_workers, "es" if num_workers > 1 else "")
    with bar(total=weight * len(missing), desc="making shards", unit="B", unit_scale=True) as progress:
        tasks = [(job, shard, 1, functools.partial(report_stage, weight / 3)) for shard in missing]  # of three stages
        for number, summary in workers.run_tasks(make_shard, tasks, num_workers, progress.update):
            summaries[missing[number]] = summary
            done_shards = f"{len(summaries) + job.num_shards - len(missing)} of {job.num_shards}"
            logging.info(f"shard {missing[number]}: {summary['instances']} instances ({done_shards})")
    return summaries


def _make_shards_by_beam(job: ShardJob, shards: list[int], runner: str, options: Sequence[str]) -> dict[int, dict]:
    """Makes shards on workers that reach text, vocabulary and output by the same names as this machine; waits."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    logging.info("%d shards by Apache Beam %s, %s", len(shards), beam.__version__, runner)
    if runner == "DaskRunner":
        runner = "apache_beam.runners.dask.dask_runner.DaskRunner"  # Beam finds it only by its whole name
        if not any(option.startswith(_DASK_PARTITIONS) for option in options):
            options = [*options, f"{_DASK_PARTITIONS[0]}=1"]  # each shard is a piece of work of its own
    pipeline_options = PipelineOptions([f"--runner={runner}", "--job_name=bert-pretraining-data", *options])
    with beam.Pipeline(options=pipeline_options) as pipeline:
        _ = (
            pipeline
            | "Shards" >> beam.Create(shards)
            # Without it a runner may keep all shards in one bundle, on one worker.
            | "Spread" >> beam.Reshuffle()
            | "Make" >> beam.Map(_make_on_beam, job)
        )
    summaries = {shard: finished_summary(job, shard) for shard in shards}
    if missing := [shard for shard, summary in summaries.items() if summary is None]:
        raise RuntimeError(f"{job.outputs(missing[0])[0]} is not there: do all workers share this file system?")
    return summaries


def _make_on_beam(shard: int, job: ShardJob) -> tuple[int, int]:
    bar = functools.partial(progress_bar, disable=True)
    return shard, (finished_summary(job, shard) or make_shard(job, shard, bar=bar))["instances"]


def _merged_summary(job: ShardJob, flags: dict, shards: list[dict]) -> dict:
    counted = dict.fromkeys(name for shard in shards for name, value in shard.items() if isinstance(value, int))
    totals = {name: sum(shard.get(name, 0) for shard in shards) for name in counted}
    room = job.instances.max_seq_length
    summary = {
        "fingerprint": job.fingerprint,
        "flags": flags,
        "input_files": list(job.input_files),
        **totals,
        "unknown_share": totals["unknown_tokens"] / totals["tokens"],
        "padding_share": 1 - totals["instance_tokens"] / (totals["rows"] * room),
        "output_files": {path: count for shard in shards for path, count in shard["output_files"].items()},
        "output_bytes": {path: count for shard in shards for path, count in shard["output_bytes"].items()},
    }
    if job.pairs_per_row > 1:
        summary["padding_share_unpacked"] = 1 - totals["instance_tokens"] / (totals["instances"] * room)
    if job.num_shards > 1:
        summary["shards"] = shards
    return summary


def _log_summary(summary: dict, path: str) -> None:
    masks = "unmasked"
    if summary["masked_positions"]:
        masks = f"{summary['masked_positions'] / summary['instance_tokens']:.1%} of the tokens masked"
    if "padding_share_unpacked" in summary:
        masks += f", packed into {summary['rows']} rows, {summary['padding_share_unpacked']:.1%} padding before"
    settings = summary["flags"]
    if not settings["nsp"]:
        kind = settings.get("rows", "single sequences").replace("_", " ")
    elif "not_in_order" in summary:
        kind = f"{summary['not_in_order'] / summary['instances']:.1%} not in order"
    else:
        kind = f"{summary['random_next'] / summary['instances']:.1%} random next"
    counts = f"{summary['instances']} instances of {summary['documents']} documents"
    size = f"{sum(summary['output_bytes'].values()) / 1e6:.1f} MB"
    logging.info(f"{counts} ({summary['padding_share']:.1%} padding, {masks}, {kind}), {size}; see {path}")


def warn_of_text(summary: dict, name: str, job: ShardJob) -> None:
    """Logs what looks wrong with a text, judged by the counts of a shard. name: of the shard, for messages."""
    settings, count = job.instances, summary
    if not count["instances"]:
        return
    length, in_order = settings.max_seq_length, settings.next_sentence == "order"
    lines, tokens = count["sentences"] / count["documents"], count["tokens"] / count["sentences"]
    is_random = settings.nsp and not in_order
    # Usually half of them.
    share = count["not_in_order" if in_order else "random_next"] / count["instances"]
    of_pairs = f"a pair takes two lines of one document; here one has {lines:.1f} lines of {tokens:.0f} tokens"
    split = "" if job.text.split_sentences else "; --split_sentences (with --language) makes sentences of paragraphs"
    for is_wrong, message in (
        (
            settings.rows in ("pairs", "electra") and tokens > length,
            f"a line has {tokens:.0f} tokens on average, and what exceeds --max_seq_length={length} is cut off{split}",
        ),
        (
            settings.ngram > 1 and not settings.do_whole_word_mask,
            "without --do_whole_word_mask, --ngram masks runs of pieces, not of words",
        ),
        (in_order and share > 0.6, f"{share:.0%} of the pairs are not in order: {of_pairs}{split}"),
        (
            is_random and count["documents"] == 1,
            "there is only one document, so that random next sentences are of the same, and labels contradict each "
            f"other; a blank line separates documents, and fewer shards hold more{split}",
        ),
        (
            is_random and count["documents"] > 1 and share > 0.8,
            f"{share:.0%} of the pairs have a random next sentence, so that labels are nearly constant: {of_pairs}"
            f"{split}; --nsp=false makes records without such labels",
        ),
        (
            count["unknown_tokens"] > count["tokens"] / 10,
            f"{count['unknown_tokens'] / count['tokens']:.0%} of the tokens are unknown: do --vocab_file, "
            "--do_lower_case and --strip_accents fit this text?",
        ),
    ):
        if is_wrong:
            logging.warning("%s: %s", name, message)
