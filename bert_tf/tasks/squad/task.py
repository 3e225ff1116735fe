"""Questions on texts for the fine-tuning run: windows, model, metrics and files of run_squad.py."""

import dataclasses
import json
import posixpath
import random

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.families.recipe import number_of_steps
from bert_tf.models.task_models import BertForQuestionAnswering
from bert_tf.store.head_config import HeadConfig
from bert_tf.system.declare import value_of
from bert_tf.system.messages import naming_flag
from bert_tf.system.storage import write_text_file
from bert_tf.system.text_files import directory_of, list_files
from bert_tf.tasks.squad import answers, data, metrics, windows
from bert_tf.tasks.task import LOGGED_EXAMPLES, ExampleSet, FineTuningTask
from bert_tf.text import shown
from bert_tf.training import run_directory
from bert_tf.training.loop import event, open_events


class SquadTask(FineTuningTask):
    """The answer to a question is a part of a text, or there is none. settings: `SquadSettings`."""

    name = "squad"
    test_records = "eval"
    write_records = staticmethod(windows.write_records)

    def describe(self, run, earlier):
        run, files, tokenizer = super().describe(run, earlier)
        spans_words = tokenizer.added_tokens.span_words
        if self.settings.answer_from == "words" and spans_words:
            raise ValueError("added tokens of this model have spaces in them: give --answer_from=offsets.")
        if self.settings.answer_from is None:
            answer_from = "words" if tokenizer.answers_by_words and not spans_words else "offsets"
            self.settings = dataclasses.replace(self.settings, answer_from=answer_from)
        files.head = HeadConfig()  # whatever the model was for before
        return run, files, tokenizer

    def load(self, run, files, tokenizer):
        settings = self.settings
        self.files, self.tokenizer = files, tokenizer
        name = metrics.METRICS[settings.metric][0]
        self.main_metric = f"eval_best_{name}" if settings.version_2_with_negative else f"eval_{name}"
        self.answering = self._choose_answering(run)
        self.answering.windows.check_room(tokenizer)
        # Everything is read and checked before the first window is cut, which takes long.
        train = self.train_data = self._read("train_file", True) if run.do_train else None
        predicted = self._read("predict_file", False) if run.do_predict else None
        dev = None
        if run.do_eval:
            same = predicted and (settings.dev_file or settings.predict_file) == settings.predict_file
            dev = predicted if same else self._read(settings.dev_flag, False)
            if dev.unanswered:
                file = getattr(settings, settings.dev_flag)
                raise ValueError(f"--do_eval: --{settings.dev_flag}={file} can't be scored: {dev.unanswered}.")
        cache_dir = settings.feature_cache_dir or posixpath.join(run.output_dir, "windows")
        self.cache_dir = cache_dir if cache_dir != "none" and self.is_chief else None
        if train and not settings.steps_from_windows:
            number_of_steps(len(train.examples), run.train_batch_size, run.num_train_epochs)
        if train:
            # The original shuffles the questions before it cuts their contexts, and so orders train.tf_record.
            order = list(range(len(train.examples)))
            random.Random(12345).shuffle(order)
            self.train_rows = self._cut(train, "train_file", True).of_examples(order)
        if predicted:
            self.test_sets = [ExampleSet("test", self._cut(predicted, "predict_file", False), predicted)]
        if dev:
            same = self.test_sets[0] if dev is predicted else None
            self.dev_sets = [same or ExampleSet("dev", self._cut(dev, settings.dev_flag, False), dev)]

    def _choose_answering(self, run) -> metrics.QuestionAnsweringSettings:
        """How windows are cut and answers chosen: by the settings, with the threshold stored next to the model."""
        settings, source = self.settings, self.source
        has_null, answer_from = settings.version_2_with_negative, settings.answer_from
        with naming_flag("--output_dir" if self.earlier.newest else "--init_checkpoint"):
            stored = metrics.QuestionAnsweringSettings.read(directory_of(source)) if source else None
        threshold = value_of(settings, "null_score_diff_threshold")
        if stored and has_null and settings.null_score_diff_threshold is None:
            threshold = stored.predictions.null_score_diff_threshold
            logging.info("null_score_diff_threshold %.4f, from the file next to %s.", threshold, source)
        if stored and has_null and not stored.predictions.version_2_with_negative:
            message = "%s was trained without --version_2_with_negative: it never learned to give no answer."
            logging.warning(message, source)
        if stored and stored.windows.answer_from != answer_from:
            logging.warning("%s was trained with --answer_from=%s.", source, stored.windows.answer_from)
        chosen = {"max_seq_length": run.max_seq_length, "null_score_diff_threshold": threshold}
        return metrics.QuestionAnsweringSettings.of({**vars(settings), **chosen})

    def _read(self, name: str, is_training: bool) -> data.SquadData:
        settings, flag, patterns = self.settings, f"--{name}", getattr(self.settings, name)
        paths = list_files(patterns, flag)
        with naming_flag(flag):
            how = settings.version_2_with_negative, settings.answer_from, settings.encoding
            squad = data.read_squad_examples(paths, is_training, *how)
        if not squad.examples:
            raise ValueError(f"{flag}={patterns} has no questions ({len(squad.skipped)} are left out).")
        return squad

    def _cut(self, questions: data.SquadData, name: str, is_training: bool) -> windows.Windows:
        examples, settings = questions.examples, self.answering.windows
        cut = windows.build_windows(examples, self.tokenizer, settings, is_training, cache_dir=self.cache_dir)
        logging.info("--%s: %d questions, %d windows", name, len(examples), len(cut))
        windows.warn_of_cut_questions(examples, self.tokenizer, settings)
        windows.warn_of_gaps(cut, settings)
        if self.settings.verbose_logging:
            for skipped in questions.skipped:
                logging.info("Left out: %s", skipped)
            for description in windows.describe_windows(cut, self.tokenizer, range(min(20, len(cut)))):
                logging.info("Window: %s", description)
        elif is_training:
            for window in windows.describe_windows(cut, self.tokenizer, range(min(LOGGED_EXAMPLES, len(cut)))):
                ids, start = window["input_ids"], window["start_position"]
                answer = shown(self.tokenizer, ids[start : window["end_position"] + 1]) if start else "none here"
                number, tokens = window["doc_span_index"], shown(self.tokenizer, ids)
                logging.info("Window %d: %s; answer: %s", number, tokens, answer)
        return cut

    def is_trained_on(self, examples):
        return self.train_data.articles == examples.examples.articles  # of which other windows are cut

    def num_training_examples(self):
        return len(self.train_rows) if self.settings.steps_from_windows else len(self.train_data.examples)

    def create_model(self, dtype):
        return BertForQuestionAnswering(self.files.config, dtype=dtype)

    def begin(self, run):
        self.chosen = self.answering  # with the threshold that the last evaluation chose

    def write_beside_training(self, output_dir):
        write_text_file(posixpath.join(output_dir, metrics.SETTINGS_FILE), self.answering.to_json())
        if self.train_data.skipped:
            lines = "".join(json.dumps(skipped, ensure_ascii=False) + "\n" for skipped in self.train_data.skipped)
            write_text_file(posixpath.join(output_dir, "skipped_questions.jsonl"), lines)

    def outputs_of(self, predict, examples, *, batch_size, **padding):
        rows, batches = examples.rows, token_rows.evaluation_batches(examples.rows, batch_size=batch_size, **padding)
        # Padding can be among the n-best, as in the original.
        lengths = np.full(len(rows), padding["max_seq_length"]) if padding["static_padding"] else rows.lengths
        scores = answers.collect_scores(token_rows.rows_and_outputs(rows, batch_size, predict(batches)), lengths)
        options = self.tokenizer, self.chosen.predictions, self.settings.verbose_logging
        return list(answers.predict_answers(examples.examples.examples, rows, scores, *options))

    def score(self, examples, predictions, batch_size):
        has_null, metric = self.settings.version_2_with_negative, self.settings.metric
        return metrics.score(examples.examples, predictions, has_null, metric)

    def _with_threshold(self, examples, predictions) -> metrics.QuestionAnsweringSettings:
        if self.settings.null_score_diff_threshold is not None:
            return self.answering
        return metrics.choose_threshold(self.answering, examples.examples, predictions, self.settings.metric)

    def texts_of(self, data):
        return [data.examples[0].question_text, data.examples[0].paragraph.context]

    def known_texts(self):
        sets = self.dev_sets or self.test_sets  # the original's command has no dev set
        return self.texts_of(sets[0].examples if sets else self.train_data)

    def further_files(self, examples, predictions):
        return {metrics.SETTINGS_FILE: self._with_threshold(examples, predictions).to_json()}

    def evaluate(self, examples, predictions, batch_size):
        self.chosen = self._with_threshold(examples, predictions)
        threshold = self.chosen.predictions.null_score_diff_threshold
        predictions = metrics.apply_threshold(predictions, threshold)
        return predictions, self.score(examples, predictions, batch_size)

    def write_predictions(self, output_dir, examples, predictions):
        ids = [example.qas_id for example in examples.examples.examples]
        answers.write_predictions(output_dir, ids, predictions)
        logging.info("Wrote %d answers to %s.", len(ids), posixpath.join(output_dir, "predictions.json"))

    def score_predictions(self, output_dir, examples, predictions, step, batch_size):
        if examples.examples.unanswered:
            logging.info("Not scored: %s.", examples.examples.unanswered)
            return
        if self.dev_sets:
            return  # eval_results.txt is that of the dev set
        results = self.score(examples, predictions, batch_size)
        path = posixpath.join(output_dir, "eval_results.txt")
        run_directory.write_eval_results(path, {**results, "global_step": step})
        with open_events(posixpath.join(output_dir, "eval")) as events:
            events.write(event(step, results))
