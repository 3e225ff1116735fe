"""The results of --search: a table and a picture of all combinations, and the files of the best one."""

import dataclasses
import json
import posixpath
from collections.abc import Callable, Mapping, Sequence

import keras
from absl import logging

from bert_tf.models.card import shown_results
from bert_tf.system.atomic import write_text_file
from bert_tf.tasks import seeds
from bert_tf.training import plots, run_directory, search
from bert_tf.training.settings import FineTuningSettings


@dataclasses.dataclass(frozen=True)
class Tried:
    """A combination that was trained.

    Attributes:
      values: of the settings. results: seed -> metrics on the main dev set.
    """

    values: search.Values
    results: Mapping[int, Mapping[str, float]]

    @property
    def summary(self) -> dict[str, dict[str, float]]:
        """See `seeds.summarize`."""
        return seeds.summarize(self.results)


def try_all(
    runs: Sequence[FineTuningSettings],
    run_seeds: Callable[[FineTuningSettings, int], Mapping[int, Mapping[str, float]]],
    main_metric: str,
) -> tuple[Mapping[int, Mapping[str, float]], str]:
    """Runs with all combinations of settings, each in a folder of its own in output_dir.

    Args:
      runs: the settings of each, with the output_dir of all.
      run_seeds: settings, number of the combination from 0 -> seed -> metrics on the main dev set.

    Returns:
      The results of the best combination, and the table of all.
    """
    tried, output_dir = [], runs[0].output_dir
    for number, (run, values) in enumerate(zip(runs, runs[0].combinations, strict=True)):
        logging.info("Combination %d of %d: %s.", number + 1, len(runs), search.combination_text(values))
        folder = posixpath.join(output_dir, search.folder_of(values))
        tried.append(Tried(values, run_seeds(dataclasses.replace(run, output_dir=folder), number)))
        keras.backend.clear_session()
    return best_of(tried, main_metric).results, write_search(output_dir, tried, main_metric) + "\n"


def best_of(tried: Sequence[Tried], main_metric: str) -> Tried:
    """The combination with the largest mean of the metric over its seeds; the first of equals."""
    return max(tried, key=lambda one: one.summary[main_metric]["mean"])


def write_search(output_dir: str, tried: Sequence[Tried], main_metric: str) -> str:
    """Writes search.json, search.md and search.png, and copies the best combination's results and best model.

    Args:
      output_dir: has the runs of each combination in the folder `search.folder_of`.

    Returns:
      The table of search.md.
    """
    best = best_of(tried, main_metric)
    content = {
        "metric": main_metric,
        "best": dict(best.values),
        "combinations": [
            {
                "settings": dict(one.values),
                "folder": search.folder_of(one.values),
                "seeds": {str(seed): dict(results) for seed, results in one.results.items()},
                "summary": one.summary,
            }
            for one in tried
        ],
    }
    table = table_text(tried, main_metric)
    write_text_file(posixpath.join(output_dir, run_directory.SEARCH), json.dumps(content, indent=2) + "\n")
    write_text_file(posixpath.join(output_dir, "search.md"), table + "\n")
    plots.plot_search(
        [search.combination_text(one.values) for one in tried],
        [[results[main_metric] for results in one.results.values()] for one in tried],
        posixpath.join(output_dir, "search.png"),
        metric=main_metric,
    )
    seeds.copy_best(posixpath.join(output_dir, search.folder_of(best.values)), output_dir)
    return table


def table_text(tried: Sequence[Tried], main_metric: str) -> str:
    """A table in Markdown that can also be read on a console: a row for each combination, the best one named below."""
    best, several = best_of(tried, main_metric), len(tried[0].results) > 1
    further = [name for name in shown_results(tried[0].summary) if name != main_metric]
    spread = {"std": "standard_deviation", "min": "min", "max": "max"} if several else {}
    rows = [[*tried[0].values, main_metric, *spread, *further]]
    for one in tried:
        summary = one.summary
        numbers = [summary[main_metric]["mean"], *(summary[main_metric][key] for key in spread.values())]
        numbers += [summary[name]["mean"] for name in further]
        rows.append([*map(search.value_text, one.values.values()), *(f"{number:.4f}" for number in numbers)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"| {' | '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))} |" for row in rows]
    lines.insert(1, f"|{'|'.join('-' * (width + 1) + ':' for width in widths)}|")
    count = len(tried[0].results)
    over = f", the mean of {count} seeds," if several else ""
    verdict = f"The best by {main_metric}{over} is {search.combination_text(best.values)}."
    if not several:
        verdict += " One seed each: what differs little may be chance; --num_seeds=5 shows how much."
    return "\n".join([*lines, "", verdict])
