"""Fine-tunes BERT to answer questions on texts, and answers them: SQuAD 1.1, SQuAD 2.0, and data in their format.

The original's commands work as they are:

    python run_squad.py --vocab_file=$BERT_BASE_DIR/vocab.txt --bert_config_file=$BERT_BASE_DIR/bert_config.json \\
      --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --do_train=True --train_file=$SQUAD_DIR/train-v1.1.json \\
      --do_predict=True --predict_file=$SQUAD_DIR/dev-v1.1.json --train_batch_size=12 --learning_rate=3e-5 \\
      --num_train_epochs=2.0 --max_seq_length=384 --doc_stride=128 --output_dir=/tmp/squad_base/

--vocab_file and --bert_config_file may be left out where they lie beside --init_checkpoint, which takes weights of any
format. Where --predict_file has answers, exact match and F1 are computed, too. For Chinese, Japanese, Korean and every
other language than English take --answer_from=offsets.

In output_dir: predictions.json, nbest_predictions.json, null_odds.json (2.0), eval_results.txt, best_model/ (with
--do_eval), question_answering.json, checkpoints, logs. Started again after a crash, the same command goes on exactly
where it stood. Exit code 143: stopped by SIGTERM, with a checkpoint.
"""

import json
import posixpath
import random

from absl import flags, logging

from bert_tf import script_flags

FLAGS = flags.FLAGS

# What to do.
flags.DEFINE_bool("do_train", False, "Train on --train_file.")
flags.DEFINE_bool(
    "do_eval",
    False,
    "Evaluate on --dev_file while training (--eval_every_steps) and at the end, keep the best model, and with "
    "--version_2_with_negative choose the threshold for 'no answer' there.",
)
flags.DEFINE_bool("do_predict", False, "Answer the questions of --predict_file.")

# Data.
flags.DEFINE_string("train_file", None, "SQuAD JSON to train on; several files with commas between them, or a glob.")
flags.DEFINE_string("predict_file", None, "SQuAD JSON to answer, e.g. dev-v1.1.json (or several); needs no answers.")
flags.DEFINE_string("dev_file", None, "SQuAD JSON for --do_eval; --predict_file if unset.")
flags.DEFINE_integer("max_seq_length", 384, "Tokens of question and part of the context, with [CLS] and [SEP].")
flags.DEFINE_integer(
    "doc_stride", 128, "Tokens from the start of one part of a long context to the start of the next.", lower_bound=1
)
flags.DEFINE_integer("max_query_length", 64, "Tokens kept of a question.", lower_bound=1)
flags.DEFINE_enum(
    "answer_from",
    "words",
    ["words", "offsets"],
    "How answers are found in the text. words: as the original, right for most of English. offsets: by characters, "
    "right in every script; words that the vocabulary lacks are cut up. Train and predict with the same.",
)
flags.DEFINE_bool("verbose_logging", False, "Log each question that is left out, and the first windows.")
flags.DEFINE_string(
    "feature_cache_dir",
    None,
    "Where token windows are kept for the next run, under a hash of their content; output_dir/windows if unset, "
    "'none' for nowhere.",
)

# Schedule.
flags.DEFINE_bool(
    "steps_from_windows", False, "Count an epoch in windows, all of which are trained on, not in questions."
)

# Prediction.
flags.DEFINE_integer("n_best_size", 20, "Candidates kept of each window, and written of each question.", lower_bound=1)
flags.DEFINE_integer("max_answer_length", 30, "Tokens of an answer at most.", lower_bound=1)
flags.DEFINE_bool("version_2_with_negative", False, "Questions may have no answer (SQuAD 2.0).")
flags.DEFINE_float(
    "null_score_diff_threshold",
    0.0,
    "Predict no answer if its score is better by more than this. If unset, what was chosen on a dev set and lies in "
    "the model's question_answering.json, if anything.",
)

script_flags.define_model_flags()
script_flags.define_fine_tuning_flags()
script_flags.define_device_flags()
script_flags.define_training_flags()
flags.adopt_module_key_flags(script_flags)  # so that --help shows them, too


def check_flags() -> None:
    """Raises ValueError for flags that make no sense together."""
    if not (FLAGS.do_train or FLAGS.do_predict or FLAGS.do_eval):
        raise ValueError("Nothing to do: give --do_train, --do_predict, --do_eval or several of them.")
    if FLAGS.do_train and not FLAGS.train_file:
        raise ValueError("--do_train needs --train_file.")
    if FLAGS.do_predict and not FLAGS.predict_file:
        raise ValueError("--do_predict needs --predict_file.")
    if FLAGS.do_eval and not (FLAGS.dev_file or FLAGS.predict_file):
        raise ValueError("--do_eval needs --dev_file (or --predict_file).")
    for name in ("early_stopping_patience", "use_best_model"):
        if FLAGS[name].value and not FLAGS.do_eval:
            raise ValueError(f"--{name} chooses by the results on a dev set: give --do_eval.")


def main(_):
    check_flags()
    # TensorFlow is imported here, so that --help and a wrong flag answer at once.
    import tensorflow as tf

    from bert_tf import best_model, checkpoints, fine_tuning, model_files, task_models, train_step, training
    from bert_tf.tasks import batching, squad, squad_data, squad_features, squad_predictions
    from bert_tf.text_files import list_files, write_text_file

    logging.set_verbosity(logging.INFO)
    window_settings = squad_features.WindowSettings(
        FLAGS.max_seq_length, FLAGS.doc_stride, FLAGS.max_query_length, FLAGS.answer_from
    )
    newest = checkpoints.latest_checkpoint(FLAGS.output_dir)
    start = newest or FLAGS.init_checkpoint
    files, tokenizer = fine_tuning.describe_model(FLAGS, newest, "cls/squad/output_weights")
    config = files.config
    training.check_output_dir(FLAGS.output_dir, config.to_json_string())

    # --- how answers are chosen
    with fine_tuning.named_by("--output_dir" if newest else "--init_checkpoint"):
        stored = squad.QuestionAnsweringSettings.read(model_files.directory_of(start)) if start else None
    threshold, threshold_is_given = FLAGS.null_score_diff_threshold, FLAGS["null_score_diff_threshold"].present > 0
    if stored and FLAGS.version_2_with_negative and not threshold_is_given:
        threshold = stored.predictions.null_score_diff_threshold
        logging.info("null_score_diff_threshold %.4f, as it lies beside %s.", threshold, start)
    if stored and FLAGS.version_2_with_negative and not stored.predictions.version_2_with_negative:
        logging.warning("%s was trained without --version_2_with_negative: it never learned to give no answer.", start)
    if stored and stored.windows.answer_from != FLAGS.answer_from:
        logging.warning("%s was trained with --answer_from=%s.", start, stored.windows.answer_from)
    settings = squad.QuestionAnsweringSettings(
        window_settings,
        squad_predictions.PredictionSettings(
            FLAGS.n_best_size, FLAGS.max_answer_length, FLAGS.version_2_with_negative, threshold, FLAGS.answer_from
        ),
    )

    # --- devices
    strategy = fine_tuning.set_up_devices(FLAGS, "predict_batch_size")
    chief = training.is_chief(strategy)
    static_padding = fine_tuning.padding(FLAGS)["static_padding"]

    # --- data: everything is read and checked before the first window is cut, which takes long
    def read(patterns: str, flag: str, is_training: bool):
        paths = list_files(patterns, flag)
        with fine_tuning.named_by(flag):
            data = squad_data.read_squad_examples(paths, is_training, FLAGS.version_2_with_negative, FLAGS.answer_from)
        if not data.examples:
            left_out = f" to train on: {len(data.skipped)} are left out, see above." if data.skipped else "."
            raise ValueError(f"{flag}={patterns} has no questions{left_out}")
        if not any(tokenizer.tokenize(example.paragraph.context) for example in data.examples):
            raise ValueError(f"{flag}={patterns} has no context with any text.")
        return data

    dev_flag = "--dev_file" if FLAGS.dev_file else "--predict_file"
    dev_files = FLAGS.dev_file or FLAGS.predict_file
    train_data = read(FLAGS.train_file, "--train_file", True) if FLAGS.do_train else None
    predict_data = read(FLAGS.predict_file, "--predict_file", False) if FLAGS.do_predict else None
    dev_data = None
    if FLAGS.do_eval:
        same = FLAGS.do_predict and dev_files == FLAGS.predict_file
        dev_data = predict_data if same else read(dev_files, dev_flag, False)
        if dev_data.unanswered:
            raise ValueError(f"--do_eval: {dev_flag}={dev_files} can't be scored: {dev_data.unanswered}.")

    def steps_for(count: int) -> int:
        return fine_tuning.number_of_steps(count, FLAGS.train_batch_size, FLAGS.num_train_epochs)

    num_train_steps = steps_for(len(train_data.examples)) if FLAGS.do_train and not FLAGS.steps_from_windows else 0

    # --- windows
    cache_dir = FLAGS.feature_cache_dir or posixpath.join(FLAGS.output_dir, "windows")
    cache_dir = None if cache_dir == "none" or not chief else cache_dir

    def cut(data, flag: str, is_training: bool):
        windows = squad_features.cached_windows(data.examples, tokenizer, window_settings, is_training, cache_dir)
        logging.info("%s: %d questions, %d windows", flag, len(data.examples), len(windows))
        if FLAGS.verbose_logging:
            for skipped in data.skipped:
                logging.info("Left out: %s", skipped)
            for description in squad_features.describe_windows(windows, tokenizer, range(min(20, len(windows)))):
                logging.info("Window: %s", description)
        return windows

    train_windows = predict_windows = dev_windows = None
    if FLAGS.do_train:
        # The original shuffles the questions before it cuts their contexts, and so orders train.tf_record.
        order = list(range(len(train_data.examples)))
        random.Random(12345).shuffle(order)
        train_windows = cut(train_data, "--train_file", True).of_examples(order)
        num_train_steps = num_train_steps or steps_for(len(train_windows))
    if FLAGS.do_predict:
        predict_windows = cut(predict_data, "--predict_file", False)
    if FLAGS.do_eval:
        dev_windows = predict_windows if dev_data is predict_data else cut(dev_data, dev_flag, False)

    # --- model
    script_flags.set_seed(FLAGS.seed, FLAGS.deterministic)
    model, optimizer, step = fine_tuning.build_and_restore(
        FLAGS,
        strategy,
        lambda: task_models.BertForQuestionAnswering(config, dtype=script_flags.DTYPE_POLICIES[FLAGS.dtype]),
        num_train_steps,
        FLAGS.output_dir,
    )
    main_metric = "eval_best_f1" if FLAGS.version_2_with_negative else "eval_f1"
    keeper = best_model.BestModel(
        FLAGS.output_dir, files, main_metric, patience=FLAGS.early_stopping_patience, active=chief
    )
    keeper.forget_after(step)
    predict = train_step.make_predict_function(model, strategy)
    answered = {}  # the newest evaluation: step -> predictions

    def answer(data, windows) -> list:
        return squad.answer(
            predict, data, windows, tokenizer, settings, batch_size=FLAGS.predict_batch_size,
            static_padding=static_padding,
        )  # fmt: skip

    def evaluate(step: int) -> dict:
        """On the dev set, while training."""
        answered.clear()
        answered[step] = answer(dev_data, dev_windows)
        results = squad.score(dev_data, answered[step], FLAGS.version_2_with_negative)
        chosen = settings if threshold_is_given else squad.choose_threshold(settings, results, answered[step])
        keeper.further_files[squad.SETTINGS_FILE] = chosen.to_json()
        if chief:
            write_text_file(posixpath.join(FLAGS.output_dir, squad.SETTINGS_FILE), chosen.to_json())
        keeper.update(step, results, model)
        return results

    # --- train
    if FLAGS.do_train:
        plan = fine_tuning.training_plan(
            FLAGS, config, train_windows.lengths, num_train_steps, evaluates=FLAGS.do_eval, seed=FLAGS.seed
        )

        def training_batches(first_step: int) -> tf.data.Dataset:
            return batching.training_batches(
                train_windows, batch_size=FLAGS.train_batch_size, seed=FLAGS.seed, start_step=first_step,
                max_seq_length=FLAGS.max_seq_length, static_padding=static_padding, length_step=squad.LENGTH_STEP,
            )  # fmt: skip

        def before_training() -> None:
            write_text_file(posixpath.join(FLAGS.output_dir, squad.SETTINGS_FILE), settings.to_json())
            if train_data.skipped:
                lines = "".join(json.dumps(skipped) + "\n" for skipped in train_data.skipped)
                write_text_file(posixpath.join(FLAGS.output_dir, "skipped_questions.jsonl"), lines)
            if FLAGS.write_tf_records:
                path = posixpath.join(FLAGS.output_dir, "train.tf_record")
                squad_features.write_records(path, train_windows, FLAGS.max_seq_length)

        flag_values = {flag.name: flag.value for flag in FLAGS.get_key_flags_for_module(__name__)}
        step = fine_tuning.train(
            model, optimizer, strategy, plan, training_batches, FLAGS.output_dir, files, keeper,
            evaluate if FLAGS.do_eval else None, flag_values, before_training,
        )  # fmt: skip
    last_step = step
    if FLAGS.use_best_model:
        step = fine_tuning.use_best_model(model, keeper)
        answered.clear()

    # --- evaluate
    tf.io.gfile.makedirs(FLAGS.output_dir)
    results = {}
    if FLAGS.do_eval:
        predictions = answered.get(step) or answer(dev_data, dev_windows)
        results = squad.score(dev_data, predictions, FLAGS.version_2_with_negative)
        if not threshold_is_given:
            settings = squad.choose_threshold(settings, results, predictions)
        predictions = squad.apply_threshold(predictions, settings.predictions.null_score_diff_threshold)
        results = squad.score(dev_data, predictions, FLAGS.version_2_with_negative)
        if chief and step == last_step:  # the best model has its own, in best_model/
            write_text_file(posixpath.join(FLAGS.output_dir, squad.SETTINGS_FILE), settings.to_json())

    # --- predict
    if FLAGS.do_predict:
        if predict_data is not dev_data:
            predictions = answer(predict_data, predict_windows)
        if chief:
            ids = [example.qas_id for example in predict_data.examples]
            squad_predictions.write_predictions(FLAGS.output_dir, ids, predictions)
            logging.info("Wrote %d answers to %s.", len(ids), posixpath.join(FLAGS.output_dir, "predictions.json"))
            if FLAGS.write_tf_records:
                path = posixpath.join(FLAGS.output_dir, "eval.tf_record")
                squad_features.write_records(path, predict_windows, FLAGS.max_seq_length)
        if predict_data.unanswered:
            logging.info("Not scored: %s.", predict_data.unanswered)
        elif not results:
            results = squad.score(predict_data, predictions, FLAGS.version_2_with_negative)
    if results and chief:
        path = posixpath.join(FLAGS.output_dir, "eval_results.txt")
        training.write_eval_results(path, {**results, "global_step": step})
        if not FLAGS.do_eval:  # what was evaluated in training is in TensorBoard already
            writer = tf.summary.create_file_writer(posixpath.join(FLAGS.output_dir, "eval"))
            with writer.as_default(step=step):
                for name, value in results.items():
                    tf.summary.scalar(name, value)
            writer.close()


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    script_flags.run(main)
