"""Fine-tunes BERT for multiple choice (paper, section 4.4): SWAG, or your own CSV, TSV or JSON lines with any number of
choices.

    python run_swag.py --do_train --do_eval --train_file=train.csv --dev_file=val.csv \\
      --init_checkpoint=$BERT_BASE_DIR --max_seq_length=80 --train_batch_size=16 --learning_rate=2e-5 \\
      --output_dir=swag_output

Each choice goes through BERT as `[CLS] context [SEP] question choice [SEP]`; a vector dot the output of [CLS] is its
score, and a softmax over the choices makes probabilities of the scores. SWAG's columns are known (sent1 is the context,
sent2 the beginning of every choice), and so are JSON lines with context, question, choices and label. Others are named:

    python run_swag.py ... --context=1 --choices=2,3,4,5 --label=6       # CODAH, which has no header
    python run_swag.py ... --context=goal --choices=sol1,sol2            # PIQA, its labels put in as label

In output_dir: eval_results.txt, predictions.jsonl, test_results.tsv, test_results.txt where --test_file has labels,
best_model/, checkpoints, logs. Started again after a crash, the same command goes on exactly where it stood. Exit code
143: stopped by SIGTERM, with a checkpoint.
"""

import dataclasses
import posixpath

from absl import flags, logging

from bert_tf import script_flags

FLAGS = flags.FLAGS

# What to do.
flags.DEFINE_bool("do_train", False, "Train on --train_file.")
flags.DEFINE_bool("do_eval", False, "Evaluate on --dev_file while training (--eval_every_steps) and at the end.")
flags.DEFINE_bool("do_predict", False, "Choose in --test_file.")

# Data.
flags.DEFINE_string("train_file", None, "Examples to train on: .csv, .tsv or .jsonl.")
flags.DEFINE_string("dev_file", None, "Examples to evaluate on.")
flags.DEFINE_string("test_file", None, "Examples to predict. It needs no labels; where it has some they are scored.")
flags.DEFINE_string(
    "context",
    None,
    "Column of the text that comes first, by name, or by number from 0 where the file has no header. If none is named: "
    "SWAG's columns, or context, question, choices and label.",
)
flags.DEFINE_string("question", None, "Column of what every choice begins with, where there is one.")
flags.DEFINE_list(
    "choices",
    None,
    "Columns of the choices with commas between them; or one name: that of a list in JSON lines, or what stands before "
    "the numbers of the columns (ending for ending0, ending1, ...).",
)
flags.DEFINE_string("label", None, "Column of the right choice; label if columns are named and this one isn't.")
flags.DEFINE_string("first_label", "0", "What the label column has for the first choice: 0, 1, A or the like.")
flags.DEFINE_integer(
    "max_seq_length", 128, "Tokens of context and one choice at most, with [CLS] and both [SEP]; longer ones are cut."
)

script_flags.define_model_flags()
script_flags.define_fine_tuning_flags()
script_flags.define_device_flags()
script_flags.define_training_flags()
flags.adopt_module_key_flags(script_flags)  # so that --help shows them, too


def check_flags() -> None:
    """Raises ValueError for flags that make no sense together."""
    if not (FLAGS.do_train or FLAGS.do_predict or FLAGS.do_eval):
        raise ValueError("Nothing to do: give --do_train, --do_eval, --do_predict or several of them.")
    for action, file in (("do_train", "train_file"), ("do_eval", "dev_file"), ("do_predict", "test_file")):
        if FLAGS[action].value and not FLAGS[file].value:
            raise ValueError(f"--{action} needs --{file}.")
    for name in ("early_stopping_patience", "use_best_model"):
        if FLAGS[name].value and not FLAGS.do_eval:
            raise ValueError(f"--{name} chooses by the results on a dev set: give --do_eval.")
    if bool(FLAGS.context) != bool(FLAGS.choices):
        raise ValueError("--context and --choices: name both, or neither for SWAG's columns.")
    for name in ("question", "label"):
        if FLAGS[name].value and not FLAGS.context:
            raise ValueError(f"--{name} needs --context and --choices beside it.")
    number = FLAGS.first_label.removeprefix("-")
    if not number.isdecimal() and len(number) != 1:
        raise ValueError(f"--first_label={FLAGS.first_label} must be a number or one letter.")


def main(_):
    check_flags()
    # TensorFlow is imported here, so that --help and a wrong flag answer at once.
    import tensorflow as tf

    from bert_tf import best_model, checkpoints, fine_tuning, task_models, train_step, training
    from bert_tf.tasks import batching, choice, choice_data, choice_features

    logging.set_verbosity(logging.INFO)
    newest = checkpoints.latest_checkpoint(FLAGS.output_dir)
    files, tokenizer = fine_tuning.describe_model(FLAGS, newest, "output_weights")
    config = files.config = choice.configure(files.config)
    training.check_output_dir(FLAGS.output_dir, config.to_json_string())

    # --- devices
    strategy = fine_tuning.set_up_devices(FLAGS, "predict_batch_size")
    chief = training.is_chief(strategy)
    padding = fine_tuning.padding(FLAGS)

    # --- data: everything is read and checked before anything is computed
    columns = None
    if FLAGS.context:
        columns = choice_data.Columns(
            FLAGS.context, FLAGS.question or None, tuple(FLAGS.choices), FLAGS.label or "label"
        )

    def read(flag: str, labels_needed: bool = True) -> tuple[list, choice_features.ChoiceRows]:
        with fine_tuning.named_by(flag):
            examples = choice_data.read_examples(
                FLAGS[flag[2:]].value, columns, first_label=FLAGS.first_label, labels_needed=labels_needed
            )
        rows = choice_features.encode_examples(examples, tokenizer, FLAGS.max_seq_length)
        logging.info("%s: %d examples of %d choices", flag, len(rows), rows.num_choices)
        return examples, rows

    train_rows = read("--train_file")[1] if FLAGS.do_train else None
    dev_rows = read("--dev_file")[1] if FLAGS.do_eval else None
    test_examples, test_rows = read("--test_file", labels_needed=False) if FLAGS.do_predict else (None, None)
    for flag, rows in (("--dev_file", dev_rows), ("--test_file", test_rows)):
        if train_rows and rows and rows.num_choices != train_rows.num_choices:
            logging.warning("%s has %d choices, --train_file %d.", flag, rows.num_choices, train_rows.num_choices)
    num_train_steps = 0
    if FLAGS.do_train:
        choice_features.log_examples(train_rows, tokenizer)
        num_train_steps = fine_tuning.number_of_steps(len(train_rows), FLAGS.train_batch_size, FLAGS.num_train_epochs)

    # --- model
    script_flags.set_seed(FLAGS.seed, FLAGS.deterministic)
    model, optimizer, step = fine_tuning.build_and_restore(
        FLAGS, strategy,
        lambda: task_models.BertForMultipleChoice(config, dtype=script_flags.DTYPE_POLICIES[FLAGS.dtype]),
        num_train_steps, FLAGS.output_dir,
    )  # fmt: skip
    keeper = best_model.BestModel(
        FLAGS.output_dir, files, "eval_accuracy", patience=FLAGS.early_stopping_patience, active=chief
    )
    keeper.forget_after(step)
    predict = train_step.make_predict_function(model, strategy)

    def logits_of(rows):
        return choice.predict_logits(predict, rows, batch_size=FLAGS.predict_batch_size, **padding)

    def evaluate(step: int) -> dict:
        """On the dev set, while training."""
        results = choice.evaluate(dev_rows, logits_of(dev_rows), FLAGS.predict_batch_size)
        keeper.update(step, results, model)
        return results

    # --- train
    if FLAGS.do_train:
        plan = fine_tuning.training_plan(
            FLAGS, config, train_rows.lengths, num_train_steps, evaluates=FLAGS.do_eval, seed=FLAGS.seed
        )
        # An example is as many rows as it has choices.
        plan = dataclasses.replace(
            plan,
            tokens_per_example=plan.tokens_per_example * train_rows.num_choices,
            flops_per_example=plan.flops_per_example * train_rows.num_choices,
        )

        def training_batches(first_step: int) -> tf.data.Dataset:
            return batching.training_batches(
                train_rows, batch_size=FLAGS.train_batch_size, seed=FLAGS.seed, start_step=first_step, **padding
            )

        def write_train_records() -> None:
            if FLAGS.write_tf_records:
                path = posixpath.join(FLAGS.output_dir, "train.tf_record")
                choice_features.write_records(path, train_rows, FLAGS.max_seq_length)

        flag_values = {flag.name: flag.value for flag in FLAGS.get_key_flags_for_module(__name__)}
        step = fine_tuning.train(
            model, optimizer, strategy, plan, training_batches, FLAGS.output_dir, files, keeper,
            evaluate if FLAGS.do_eval else None, flag_values, write_train_records,
        )  # fmt: skip
    if FLAGS.use_best_model:
        step = fine_tuning.use_best_model(model, keeper)

    # --- evaluate and predict
    tf.io.gfile.makedirs(FLAGS.output_dir)

    def write_scores(kind: str, rows, logits) -> None:
        logging.info("Step %d, %s:", step, kind)
        results = choice.evaluate(rows, logits, FLAGS.predict_batch_size)
        results = {name.replace("eval_", f"{kind}_"): value for name, value in results.items()}
        path = posixpath.join(FLAGS.output_dir, f"{kind}_results.txt")
        training.write_eval_results(path, {**results, "global_step": step})

    if FLAGS.do_eval:
        logits = logits_of(dev_rows)
        if chief:
            write_scores("eval", dev_rows, logits)
    if FLAGS.do_predict:
        logits = logits_of(test_rows)
        if chief:
            paths = choice.write_predictions(FLAGS.output_dir, test_examples, logits)
            logging.info("Wrote the choices in %d examples to %s.", len(test_rows), " and ".join(paths))
            if test_rows.labels:
                write_scores("test", test_rows, logits)


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    script_flags.run(main)
