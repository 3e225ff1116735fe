"""The last lines of a fine-tuning run: its results and of which step they are, its best model, and how to use it."""

import json
import posixpath
import re
from collections.abc import Iterable, Mapping

from absl import logging

from bert_tf.models import card
from bert_tf.tasks.table import TASKS
from bert_tf.training import best_model
from bert_tf.training.settings import FineTuningSettings

_SHOWN = 80  # characters of a text


def tell(task, run: FineTuningSettings, results: Mapping[str, float], seed: int, last: int) -> None:
    """Logs the results, where the model is, and the line of Python that uses it.

    Without training and evaluation the results are those of an earlier evaluation, which say nothing of this run.

    Args:
      task: a `script.FineTuningTask`. results: of the run with this seed. last: the last step, where the results don't
        say which one they are of.
    """
    best = best_model.read_results(run.output_dir) if task.dev_sets else None
    step = results.get("global_step", last)
    of_step = f" of step {step}" if step else ""
    if run.do_train:
        of_seed = f", with seed {seed}" if run.num_seeds > 1 else ""
        of_step = f" of step {step}, the {'best' if run.use_best_model else 'last'} one{of_seed}"
    if results and (run.do_train or run.do_eval):
        shown = (f"{name} {value:.6g}" for name, value in sorted(card.shown_results(results).items()))
        logging.info("Results%s: %s.", of_step, ", ".join(shown))
    if not run.do_train:
        return
    if run.do_predict:
        logging.info("Predictions:%s.", of_step)
    path = run.output_dir
    if best:
        path = posixpath.join(run.output_dir, best_model.DIRECTORY)
        beside = advice = ""
        if best["step"] != step and not run.use_best_model:
            beside = f" beside {results[task.main_metric]:.4f} of step {step}"
            advice = " To evaluate and predict with it, run the same command with --use_best_model."
        value = f"{task.main_metric} {best[task.main_metric]:.4f}"
        logging.info("Best model: %s (step %d, %s%s).%s", path, best["step"], value, beside, advice)
    else:
        logging.info("Model: %s (the last step; without a dev set there is no best one).", path)
    if task.answers:
        texts = task.texts_of(task.dev_sets[0].examples) if task.dev_sets else []
        logging.info("In Python:\n  from bert_tf import %s\n  %s", *usage(task, path, texts))


def usage(task, path: str, texts: Iterable[str] = ()) -> tuple[str, str]:
    """The name of `bert_tf` that answers with the task's models, and the line that does so with that at a path.

    Args:
      texts: take the place of the examples in the line, which are English.
    """
    shown = (text if len(text) <= _SHOWN else text[:_SHOWN] + "..." for text in texts)
    own = (json.dumps(string, ensure_ascii=False) for string in (path, *shown))
    return TASKS[task.name].answerer, re.sub('"[^"]*"', lambda found: next(own, found[0]), task.answers)
