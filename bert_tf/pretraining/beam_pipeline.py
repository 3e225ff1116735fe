"""Shards of pre-training data on Apache Beam: Dataflow, Flink, Spark, Dask, or this machine (DirectRunner).

Apache Beam is an optional extra: `pip install -e .[beam]`, with Dask `.[dask]`. Workers need this package and its
requirements, and must reach the text, the vocabulary and the output by the same names as this machine (gs://..., a
shared file system).
"""

import functools
from collections.abc import Sequence

from absl import logging

from bert_tf.pretraining.shard import ShardJob, finished_summary, make_shard
from bert_tf.system.messages import progress_bar

# Beam finds this runner only by its whole name. By default up to 128 shards would be one piece of work, for one worker.
_DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"
_DASK_PARTITIONS = ("--dask_partition_size", "--dask_npartitions")


def _make(shard: int, job: ShardJob) -> tuple[int, int]:
    bar = functools.partial(progress_bar, disable=True)
    summary = finished_summary(job, shard) or make_shard(job, shard, bar=bar)
    return shard, summary["instances"]


def make_shards(job: ShardJob, shards: Sequence[int], runner: str, options: Sequence[str] = ()) -> dict[int, dict]:
    """Makes shards of a job in a Beam pipeline, waits for its end, and returns their summaries.

    Args:
      runner: "DirectRunner", "DataflowRunner", "FlinkRunner", "SparkRunner", "DaskRunner", ...
      options: further options of Beam: ["--project=...", "--region=..."].
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    logging.info("%d shards by Apache Beam %s, %s", len(shards), beam.__version__, runner)
    if runner == "DaskRunner":
        runner = _DASK
        if not any(option.startswith(_DASK_PARTITIONS) for option in options):
            options = [*options, f"{_DASK_PARTITIONS[0]}=1"]  # each shard is a piece of work of its own
    pipeline_options = PipelineOptions([f"--runner={runner}", "--job_name=bert-pretraining-data", *options])
    with beam.Pipeline(options=pipeline_options) as pipeline:
        _ = (
            pipeline
            | "Shards" >> beam.Create(list(shards))
            # Without it a runner may keep all shards in one bundle, on one worker.
            | "Spread" >> beam.Reshuffle()
            | "Make" >> beam.Map(_make, job)
        )
    summaries = {shard: finished_summary(job, shard) for shard in shards}
    for shard, summary in summaries.items():
        if summary is None:
            raise RuntimeError(f"{job.outputs(shard)[0]} is not there: do all workers share this file system?")
    return summaries
