"""Text to pre-training records: masked LM and next sentence instances (original: create_pretraining_data.py).

Where things are:

  corpus, corpus_formats            text of any kind, cut into ranges -> lines
  vocabulary_files                  the tokenizer of any family, by its vocabulary's file
  word_tables                       words -> ids, each word once
  token_store                       lines -> documents, sentences and ids on disk
  instances                         pairs of sentence runs, [CLS] A [SEP] B [SEP], with masked positions
  row_kinds                         or the rows of other families
  packing                           several short pairs in a row
  record_writer                     tf.train.Example records in TFRecord files
  word_kernels, instance_kernels    the compiled loops of these: over characters, over tokens
  shard                             all of it for one shard of the text
  system.workers, beam_pipeline     many shards, on this machine or on a cluster

This module checks the flags, finds what an earlier run has already done, and starts the rest.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Sequence

import tensorflow as tf
from absl import logging

from bert_tf.pretraining import shard as pretraining_shard
from bert_tf.pretraining.corpus import Corpus
from bert_tf.pretraining.corpus_formats import TextSettings
from bert_tf.pretraining.record_settings import InstanceSettings, settings_of_records
from bert_tf.pretraining.shard import ShardJob, finished_summary, make_shard, read_summary, summary_path
from bert_tf.pretraining.text_warnings import warn_of_text
from bert_tf.pretraining.vocabulary_files import read_tokenizer, vocabulary_sha256
from bert_tf.system import atomic, workers
from bert_tf.system.checks import check_local_dir
from bert_tf.system.cores import available_cores
from bert_tf.system.progress import progress_bar
from bert_tf.system.text_files import list_files
from bert_tf.text.casing import directory_of, read_casing, resolve_casing
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import FullTokenizer

_FORMAT = 1  # of the records, in fingerprints
# Flags that earlier versions did not have -> what they did.
_LATER = {
    "word_boundaries": None, "segmenter": None, "rows": "pairs", "next_sentence": "random", "ngram": 0,
    "favor_shorter_ngram": True, "blanks_separate_docs": True, "joins_files": True, "encoding": "utf-8",
}  # fmt: skip
_LARGE_TEXT = 200_000_000  # bytes


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
    `InstanceSettings`. None for do_lower_case and strip_accents means that the files beside the vocabulary say it, or
    else that text for word pieces is lower-cased and stripped.

    A shard's files appear under their names when all of them are written. A failed run leaves earlier files, and
    finished shards: the same flags and input resume from these.

    Returns:
      The summary, as written: flags, input_files, vocab_sha256, vocab_size; counts of documents, sentences, tokens,
      instances, rows (records), masked_positions, random_next; shares of unknown tokens in the text and of padding in
      the records; output_files with the instances of each.

    Raises:
      ValueError: bad flag, vocabulary or text; names the flag, or the file and its line or byte.
      RuntimeError: worker processes keep dying. OSError: the scratch directory is full.
      tf.errors.OpError: a file can't be read or written.
    """
    records, instances = settings_of_records(
        input_file=input_file, output_file=output_file, vocab_file=vocab_file, **settings
    )
    # ELECTRA's original ends its rows with the file.
    text = dataclasses.replace(text or TextSettings(), joins_files=instances.rows != "electra")
    tokenizer = _read_vocabulary(vocab_file, do_lower_case, strip_accents, instances.rows == "electra")
    # Everything that determines the output: the summary shows it, and runs with equal values are the same job.
    flags = dict(
        input_file=input_file, output_file=output_file, vocab_file=vocab_file, do_lower_case=not tokenizer.cased,
        strip_accents=tokenizer.settings().get("strip_accents"), random_seed=records.random_seed,
        masking=records.masking, pack_sequences=records.pack_sequences, compression=records.compression,
        num_shards=records.num_shards, **vars(instances), **vars(text), word_boundaries=records.word_boundaries,
        segmenter=records.segmenter,
    )  # fmt: skip
    # Not where they are left alone: without them, files of earlier versions are what would be made now.
    flags = {name: value for name, value in flags.items() if name not in _LATER or value != _LATER[name]}
    _check_tokenizer(tokenizer, instances, records.word_boundaries or records.segmenter)
    if records.masking == "dynamic":
        instances = dataclasses.replace(instances, max_predictions_per_seq=0)
    vocabulary = {"vocab_sha256": vocabulary_sha256(vocab_file), "vocab_size": tokenizer.vocab_size}
    job = _job_of(flags, text, instances, records.scratch_dir, vocabulary["vocab_sha256"])
    runner = records.beam_runner
    with pretraining_shard.alone(job, own_scratch=not runner) as job:
        run = (lambda missing: _make_shards_on_beam(job, missing, runner, beam_options)) if runner else None
        return _make_missing(job, flags, vocabulary, records.num_workers, show_progress, run)


def _make_missing(
    job: ShardJob,
    flags: dict,
    vocabulary: dict,
    num_workers: int | None,
    show_progress: bool,
    on_cluster: Callable[[Sequence[int]], dict[int, dict]] | None,
) -> dict:
    """Makes the shards that no earlier run has made, and writes and returns the summary of all.

    Args:
      vocabulary: what the summary says of it. on_cluster: makes shards elsewhere.
    """
    final_summary = summary_path(job.output_files[0])
    summaries = _earlier_shards(job, final_summary)
    missing = [shard for shard in range(job.num_shards) if shard not in summaries]
    _warn_of_replaced(job, missing, read_summary(final_summary), flags)
    num_workers = num_workers or available_cores()
    _log_size(job, num_workers if missing else 1)
    if not missing:
        logging.info("Everything is done already; nothing is written. Delete %s to make it again.", final_summary)
    elif on_cluster:
        summaries |= on_cluster(missing)
    elif job.num_shards == 1:
        summaries[0] = make_shard(job, 0, num_workers, show_progress=show_progress, log=True)
    else:
        summaries |= _make_shards(job, missing, num_workers, show_progress)
    _check_text(job, summaries, flags["input_file"])
    merged = _merged_summary(job, flags, [summaries[shard] for shard in range(job.num_shards)]) | vocabulary
    _write_summary(job, merged, final_summary, made=bool(missing))
    if missing:
        _log_summary(merged, final_summary)
    return merged


def _read_vocabulary(
    vocab_file: str, do_lower_case: bool | None, strip_accents: bool | None, electra: bool
) -> Tokenizer:
    """The tokenizer of a vocabulary file, with the casing of its directory if no argument says it."""
    casing = resolve_casing(do_lower_case, strip_accents, read_casing(directory_of(vocab_file)))
    tokenizer = read_tokenizer(vocab_file, casing.do_lower_case, casing.strip_accents, electra)
    tokenizer.check_casing(vocab_file, do_lower_case, strip_accents)
    return tokenizer


def _check_tokenizer(tokenizer: Tokenizer, settings: InstanceSettings, words: str | None) -> None:
    """Raises ValueError for flags that mean nothing with the tokenizer; names them."""
    if words and not (isinstance(tokenizer, FullTokenizer) and not tokenizer.basic_tokenizer.never_split):
        raise ValueError(
            "--word_boundaries, --segmenter: they find the words of word pieces (vocab.txt); the pieces of this "
            "--vocab_file say themselves where a word begins."
        )
    if settings.rows == "electra" and not isinstance(tokenizer, FullTokenizer):
        raise ValueError(
            "--rows=electra makes ELECTRA's rows, of word pieces (vocab.txt), but this --vocab_file is "
            f"{tokenizer.vocab_kind}."
        )
    if settings.nsp and len(tokenizer.between_tokens) > 1:
        raise ValueError(
            f"--nsp: models of {tokenizer.vocab_kind} have one segment, and no next sentence to predict: give "
            "--nsp=false."
        )


def _job_of(
    flags: dict, text: TextSettings, settings: InstanceSettings, scratch_dir: str | None, vocab_sha256: str
) -> ShardJob:
    """The job that the flags describe, with its files checked."""
    input_files = list_files(flags["input_file"], flag="--input_file")
    vocab_file = flags["vocab_file"]
    job = ShardJob(
        input_files=tuple(input_files),
        output_files=tuple(_split_list(flags["output_file"])),
        vocab_file=vocab_file,
        do_lower_case=flags["do_lower_case"],
        strip_accents=flags["strip_accents"],
        text=text,
        settings=settings,
        random_seed=flags["random_seed"],
        num_shards=flags["num_shards"],
        pairs_per_row=pretraining_shard.PACKED_PAIRS if flags["pack_sequences"] else 1,
        compression=flags["compression"],
        scratch_dir=scratch_dir,
        fingerprint=_fingerprint(flags, input_files, vocab_sha256),
        segmenter=flags.get("segmenter") or flags.get("word_boundaries"),
    )
    _check_output_files(flags["output_file"], job, [*input_files, vocab_file])
    if scratch_dir:
        check_local_dir(scratch_dir, "--scratch_dir")
        os.makedirs(scratch_dir, exist_ok=True)
    if stale := pretraining_shard.other_shards(job):
        raise ValueError(
            f"--num_shards={job.num_shards}: an earlier run left {len(stale)} files of another number of shards, which "
            f"would be taken for these: delete {stale[0]}" + (" and the others" if len(stale) > 1 else "")
        )
    return job


def _log_size(job: ShardJob, num_workers: int) -> None:
    total_bytes = Corpus(job.input_files, job.text).total_bytes
    logging.info(
        "%.1f MB of text in %d files, the first is %s", total_bytes / 1e6, len(job.input_files), job.input_files[0]
    )
    if job.num_shards == 1 and total_bytes > _LARGE_TEXT and num_workers > 1:
        logging.info(
            "All of it is one shard, whose instances are drawn on one core, as in the original; --num_shards=%d would "
            "use %d cores for that, too.", 4 * num_workers, num_workers
        )  # fmt: skip


def _make_shards_on_beam(job: ShardJob, missing: Sequence[int], runner: str, options: Sequence[str]) -> dict[int, dict]:
    from bert_tf.pretraining import beam_pipeline

    beam_pipeline.make_shards(job, missing, runner, list(options))
    return {shard: _finished_on_cluster(job, shard) for shard in missing}


def _check_text(job: ShardJob, summaries: dict[int, dict], input_file: str) -> None:
    """Logs what looks wrong with the text, shard by shard.

    Raises:
      ValueError: there is no text in any.
    """
    if not any(summary["documents"] for summary in summaries.values()):
        pretraining_shard.remove_shards(job)
        raise ValueError(pretraining_shard.no_text(job))
    if not any(summary["rows"] for summary in summaries.values()):
        pretraining_shard.remove_shards(job)
        raise ValueError(pretraining_shard.no_rows(job))
    for shard, summary in sorted(summaries.items()):
        name = f"shard {shard}" if job.num_shards > 1 else input_file
        warn_of_text(summary, name, job)


def _write_summary(job: ShardJob, merged: dict, path: str, made: bool) -> None:
    """Writes the summary of all shards, and removes those of each shard."""
    written = read_summary(path) or {}
    # A run may have been killed after its last shard.
    if made or written.get("fingerprint") != job.fingerprint or "flags" not in written:
        atomic.write_text_file(path, json.dumps(merged, indent=2, ensure_ascii=False) + "\n")
    if job.num_shards > 1:
        for shard in range(job.num_shards):
            # An earlier run may have removed it already.
            if tf.io.gfile.exists(path := summary_path(job.outputs(shard)[0])):
                tf.io.gfile.remove(path)


# ---- shards ----------------------------------------------------------------------------------------------------------


def _earlier_shards(job: ShardJob, final_summary: str) -> dict[int, dict]:
    """Summaries of the shards that an earlier run of the same job finished."""
    summaries = {}
    whole = read_summary(final_summary) if job.num_shards > 1 else None
    if whole and whole.get("fingerprint") == job.fingerprint:
        for shard, summary in enumerate(whole.get("shards", [])):
            sizes = summary.get("output_bytes", {})
            if set(sizes) == set(job.outputs(shard)) and all(
                tf.io.gfile.exists(path) and tf.io.gfile.stat(path).length == size for path, size in sizes.items()
            ):
                summaries[shard] = summary
    for shard in range(job.num_shards):
        if shard not in summaries and (summary := finished_summary(job, shard)):
            summaries[shard] = summary
    if summaries and job.num_shards > 1:
        logging.info("%d of %d shards are done already", len(summaries), job.num_shards)
    return summaries


def _warn_of_replaced(job: ShardJob, missing: Sequence[int], earlier: dict | None, flags: dict) -> None:
    """Logs which finished files, made with other flags or of another text, are about to be replaced."""
    replaced = [shard for shard in missing if all(map(tf.io.gfile.exists, job.outputs(shard)))]
    if not replaced:
        return
    before = (earlier or {}).get("flags", {})
    changed = [f"--{name} was {before[name]}" for name in flags if name in before and before[name] != flags[name]]
    logging.warning(
        "%d finished files of an earlier run with other flags or another text are replaced, the first is %s%s",
        len(replaced) * len(job.output_files),
        job.outputs(replaced[0])[0],
        f" ({', '.join(changed)})" if changed else "",
    )


def _make_shards(job: ShardJob, missing: Sequence[int], num_workers: int, show_progress: bool) -> dict[int, dict]:
    corpus, summaries = Corpus(job.input_files, job.text), {}
    weights = [end - begin for begin, end in (corpus.shard_range(shard, job.num_shards) for shard in missing)]
    num_workers = min(num_workers, len(missing))
    logging.info("%d shards by %d process%s", len(missing), num_workers, "es" if num_workers > 1 else "")
    with progress_bar(
        total=sum(weights), desc="making shards", unit="B", unit_scale=True, disable=not show_progress
    ) as bar:
        tasks = [(job, shard, weight) for shard, weight in zip(missing, weights, strict=True)]
        done = workers.run_tasks(pretraining_shard.make_shard_as_task, tasks, num_workers, bar.update)
        for number, summary in done:
            atomic.check_may_write(job.output_files[0])
            summaries[missing[number]] = summary
            logging.info(
                "shard %d: %d instances (%d of %d)",
                missing[number],
                summary["instances"],
                len(summaries) + job.num_shards - len(missing),
                job.num_shards,
            )
    return summaries


def _finished_on_cluster(job: ShardJob, shard: int) -> dict:
    summary = finished_summary(job, shard)
    if summary is None:
        raise RuntimeError(
            f"The pipeline ended, but shard {shard} is not in {job.outputs(shard)[0]}: is --output_file on a file "
            "system that all workers and this machine share?"
        )
    return summary


# ---- summary ---------------------------------------------------------------------------------------------------------

_ADDED_UP = (
    "documents",
    "sentences",
    "tokens",
    "unknown_tokens",
    "instances",
    "rows",
    "instance_tokens",
    "masked_positions",
    "random_next",
    "not_in_order",
)


def _merged_summary(job: ShardJob, flags: dict, shards: list[dict]) -> dict:
    totals = {name: sum(shard[name] for shard in shards) for name in _ADDED_UP if name in shards[0]}
    read_counts: dict = {}
    for shard in shards:
        for name, value in shard.items():
            if isinstance(value, int) and name not in _ADDED_UP:
                read_counts[name] = read_counts.get(name, 0) + value
    room = job.settings.max_seq_length
    summary = {
        "fingerprint": job.fingerprint,
        "flags": flags,
        "input_files": list(job.input_files),
        **read_counts,
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
    for name, count in summary["output_files"].items():
        logging.info("%s: %d instances", name, count)
    masks = (
        f"{summary['masked_positions'] / summary['instance_tokens']:.1%} of the tokens masked"
        if summary["masked_positions"]
        else "unmasked"
    )
    if "padding_share_unpacked" in summary:
        masks += f", packed into {summary['rows']} rows, {summary['padding_share_unpacked']:.1%} padding before"
    settings = summary["flags"]
    if not settings["nsp"]:
        kind = settings.get("rows", "single sequences").replace("_", " ")
    elif "not_in_order" in summary:
        kind = f"{summary['not_in_order'] / summary['instances']:.1%} not in order"
    else:
        kind = f"{summary['random_next'] / summary['instances']:.1%} random next"
    logging.info(
        "%d instances of %d documents (%.1f%% padding, %s, %s), %.1f MB; see %s",
        summary["instances"],
        summary["documents"],
        100 * summary["padding_share"],
        masks,
        kind,
        sum(summary["output_bytes"].values()) / 1e6,
        path,
    )


# ---- checks ----------------------------------------------------------------------------------------------------------


def _split_list(names: str) -> list[str]:
    return [name for name in map(str.strip, names.split(",")) if name]


def _check_output_files(output_file: str, job: ShardJob, read_files: Sequence[str]) -> None:
    if not job.output_files:
        raise ValueError(f"--output_file names no file: {output_file!r}")
    read_keys, written_keys = set(map(_same_file_key, read_files)), set()
    for path in (path for shard in range(job.num_shards) for path in job.files(shard)):
        key = _same_file_key(path)
        if key in read_keys:
            raise ValueError(f"--output_file={output_file}: {path} would overwrite a file that is read")
        if key in written_keys:
            raise ValueError(f"--output_file={output_file}: {path} is named twice")
        if tf.io.gfile.exists(path) and tf.io.gfile.isdir(path):
            raise ValueError(f"--output_file={output_file}: {path} is a directory; name a file in it")
        written_keys.add(key)


def _same_file_key(path: str) -> str:
    return path if "://" in path else os.path.realpath(path)


def _fingerprint(flags: dict, input_files: Sequence[str], vocab_sha256: str) -> str:
    """A hash of everything that determines the output: flags, and the files with their sizes and times."""
    stats = [tf.io.gfile.stat(path) for path in input_files]
    files = [[path, int(stat.length), int(stat.mtime_nsec)] for path, stat in zip(input_files, stats, strict=True)]
    decisive = {name: value for name, value in flags.items() if name not in ("input_file", "vocab_file")}
    content = json.dumps([_FORMAT, decisive, files, vocab_sha256], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
