"""Fine-tunes BERT on sentences or pairs of sentences: GLUE, XNLI, or your own TSV, CSV or JSON lines.

The original's commands work as they are:

    python run_classifier.py --task_name=MRPC --do_train=true --do_eval=true --data_dir=$GLUE_DIR/MRPC \\
      --vocab_file=$BERT_BASE_DIR/vocab.txt --bert_config_file=$BERT_BASE_DIR/bert_config.json \\
      --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --max_seq_length=128 --train_batch_size=32 \\
      --learning_rate=2e-5 --num_train_epochs=3.0 --output_dir=/tmp/mrpc_output/

--vocab_file and --bert_config_file may be left out where they lie beside --init_checkpoint, which takes weights of any
format. Your own data, without touching code:

    python run_classifier.py --task_name=custom --train_file=train.csv --dev_file=dev.csv --text_a=review \\
      --label=stars --do_train --do_eval --init_checkpoint=$BERT_BASE_DIR --output_dir=reviews

What BERT adds shows beside a model without it, on the same data with the same flags:

    python run_classifier.py ... --model=bilstm --vocab_file=$BERT_BASE_DIR/vocab.txt --output_dir=without_bert

In output_dir: eval_results.txt, test_results.tsv, predictions.jsonl, best_model/, checkpoints, logs. Started again
after a crash, the same command goes on exactly where it stood. Exit code 143: stopped by SIGTERM, with a checkpoint.
"""

import dataclasses
import posixpath

from absl import flags, logging

from bert_tf import script_flags

FLAGS = flags.FLAGS

# What to do.
flags.DEFINE_string(
    "task_name",
    None,
    "cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, ax, xnli, or custom (--train_file and so on).",
)
flags.DEFINE_bool("do_train", False, "Train on the task's training set.")
flags.DEFINE_bool("do_eval", False, "Evaluate on the dev set at the end, and write eval_results.txt.")
flags.DEFINE_bool("do_predict", False, "Predict the test set, and write test_results.tsv and predictions.jsonl.")

# Data.
flags.DEFINE_string("data_dir", None, "Folder with the task's files, as the GLUE download has them.")
flags.DEFINE_string("language", "", "xnli: which language to take, e.g. ko, de, en. zh if unset, as in the original.")
flags.DEFINE_string("train_file", None, "custom: training examples (.tsv, .csv or .jsonl).")
flags.DEFINE_string("dev_file", None, "custom: examples to evaluate on.")
flags.DEFINE_string("test_file", None, "custom: examples to predict; they need no label.")
flags.DEFINE_string("text_a", None, "custom: column of the text, by name or number from 0.")
flags.DEFINE_string("text_b", None, "custom: column of the second text, where there are two.")
flags.DEFINE_string("label", None, "custom: column of the label.")
flags.DEFINE_list("labels", None, "custom: the classes in the order of their ids. If unset, those of --train_file.")
flags.DEFINE_bool("regression", False, "custom: labels are numbers to be predicted.")
flags.DEFINE_bool("multi_label", False, "custom: an example has any number of labels, separated by commas in its cell.")
flags.DEFINE_string("tfds_name", None, "Load this data set with tensorflow-datasets instead, e.g. glue/mrpc.")
flags.DEFINE_integer(
    "max_seq_length", 128, "Tokens of an example at most, with [CLS] and [SEP]; longer ones lose their last tokens."
)
flags.DEFINE_integer("eval_batch_size", 8, "Examples a batch in evaluation, over all devices.", lower_bound=1)
flags.DEFINE_integer(
    "num_seeds",
    1,
    "Train this many times with seeds --seed, --seed + 1, ..., report mean, min and max, and keep the best. Small data "
    "sets vary by several points.",
    lower_bound=1,
)

# Model.
flags.DEFINE_enum(
    "model",
    "bert",
    ["bert", "bilstm", "cnn"],
    "bilstm, cnn: a model without BERT, on embeddings of word pieces that it learns itself from random ones. It needs "
    "--vocab_file instead of --init_checkpoint, more epochs, and a --learning_rate of about 1e-3, which is the default "
    "with it. A trained one is known by its directory.",
)
flags.DEFINE_integer("embedding_size", 300, "bilstm, cnn: width of the embeddings.", lower_bound=1)
flags.DEFINE_integer(
    "hidden_size",
    300,
    "bilstm: width of both directions together. cnn: convolutions of widths 3, 4 and 5 together.",
    lower_bound=1,
)

flags.DEFINE_bool(
    "lstm_on_top",
    False,
    "bert: train a BiLSTM between BERT and the classifier, which reads all tokens; for left-to-right models "
    "(run_pretraining.py --objective=ltr, Table 5 of the paper). A trained model keeps it.",
)

script_flags.define_model_flags()
script_flags.define_fine_tuning_flags()
script_flags.define_device_flags()
script_flags.define_training_flags()
flags.adopt_module_key_flags(script_flags)  # so that --help shows them, too

_CUSTOM_FLAGS = (
    "train_file", "dev_file", "test_file", "text_a", "text_b", "label", "labels", "regression", "multi_label",
)  # fmt: skip


def load_task(model_config):
    """The task, and a function that reads its examples: "train", "dev" or "test" -> {name: examples}.

    Args:
      model_config: what the model's directory says; its labels count where no training file tells them.
    """
    from bert_tf.tasks import classification_data as data
    from bert_tf.tasks import glue

    if FLAGS.tfds_name:
        columns = {"text_a": FLAGS.text_a, "text_b": FLAGS.text_b, "label": FLAGS.label}
        task, examples = data.tfds_task(FLAGS.tfds_name, FLAGS.labels, **columns)

        def read(kind: str) -> dict:
            return {name: rows for name, rows in examples.items() if name.startswith(kind)}

        return task, read
    if (FLAGS.task_name or "").lower() == "custom":
        if not FLAGS.text_a:
            raise ValueError("--task_name=custom needs --text_a, the column of the text, by name or number.")
        if (FLAGS.do_train or FLAGS.do_eval) and not FLAGS.label:
            raise ValueError("--task_name=custom needs --label, the column of the label, to train or evaluate.")
        labels = FLAGS.labels
        if not labels and not FLAGS.train_file and not FLAGS.regression:
            labels = read_labels(FLAGS.output_dir, model_config)
        task = data.custom_task(
            FLAGS.train_file, FLAGS.dev_file, FLAGS.test_file,
            text_a=FLAGS.text_a, text_b=FLAGS.text_b, label=FLAGS.label,
            labels=labels, regression=FLAGS.regression, multi_label=FLAGS.multi_label,
        )  # fmt: skip
    elif FLAGS.task_name:
        task = glue.find_task(FLAGS.task_name, FLAGS.language)
        for name in _CUSTOM_FLAGS:
            if FLAGS[name].value:
                raise ValueError(
                    f"--{name} is for --task_name=custom; --task_name={FLAGS.task_name} has its own files."
                )
        if not FLAGS.data_dir:
            raise ValueError(f"--task_name={FLAGS.task_name} needs --data_dir, the folder with its files.")
    else:
        raise ValueError("Which task? Give --task_name or --tfds_name.")

    def read(kind: str) -> dict:
        splits = {"train": task.train} if kind == "train" else task.dev if kind == "dev" else task.test
        main = next(iter(splits), None)
        there = {}
        for name, split in splits.items():
            if split is None:
                continue
            try:
                there[name] = data.read_examples(task, split, FLAGS.data_dir or "")
            except FileNotFoundError:
                if name == main:
                    raise  # only the further sets (mismatched) may be missing
                logging.info("There is no %s: left out.", split.file)
        return there

    return task, read


def read_labels(output_dir: str, model_config) -> list[str] | None:
    """The labels that an earlier run kept in output_dir, or else the model's: predicting needs no train file."""
    import tensorflow as tf

    from bert_tf.model_files import BERT_CONFIG, read_config

    path = posixpath.join(output_dir, BERT_CONFIG)
    config = read_config(path, allow_unknown=True) if tf.io.gfile.exists(path) else model_config
    names = getattr(config, "id2label", None)
    return [names[str(number)] for number in range(len(names))] if names else None


def main(_):
    # TensorFlow is imported here, so that --help and a wrong flag answer at once.
    import keras
    import numpy as np
    import tensorflow as tf

    from bert_tf import baseline_models, best_model, checkpoints, fine_tuning, task_models, train_step, training
    from bert_tf.tasks import (
        batching,
        classification,
        classification_baselines,
        classification_features,
        classification_metrics,
    )

    logging.set_verbosity(logging.INFO)
    if not FLAGS.do_train and not FLAGS.do_eval and not FLAGS.do_predict:
        raise ValueError("Nothing to do: give --do_train, --do_eval, --do_predict or several of them.")
    if FLAGS.num_seeds > 1 and not FLAGS.do_train:
        raise ValueError(f"--num_seeds={FLAGS.num_seeds} compares trained models: give --do_train.")
    newest = checkpoints.latest_checkpoint(FLAGS.output_dir)
    chosen = classification_baselines.chosen_model(FLAGS, newest)
    if chosen == "bert":
        for name in ("embedding_size", "hidden_size"):
            if FLAGS[name].present:
                raise ValueError(f"--{name} is for --model=bilstm and --model=cnn; a BERT has the size of its weights.")
        files, tokenizer = fine_tuning.describe_model(FLAGS, newest, "output_weights")
        if FLAGS.lstm_on_top:
            if not FLAGS.do_train and not getattr(files.config, "lstm_on_top", False):
                raise ValueError("--lstm_on_top needs --do_train: this model was trained without a BiLSTM.")
            files.config.lstm_on_top = True
    else:
        if FLAGS.lstm_on_top:
            raise ValueError(f"--lstm_on_top is for --model=bert; this is a {chosen}.")
        files, tokenizer = classification_baselines.describe_model(FLAGS, newest, chosen)
        classification_baselines.choose_learning_rate(FLAGS)
    earlier = training.read_settings(FLAGS.output_dir)
    for name in ("task_name", "tfds_name") if newest and earlier else ():
        then, now = (value or "none" for value in (earlier.get(name), FLAGS[name].value))
        if then.lower() != now.lower():
            raise ValueError(
                f"--output_dir={FLAGS.output_dir} holds a run of --{name}={then}, this one is {now}. Choose another "
                f"directory; to use that run's model, give --init_checkpoint={FLAGS.output_dir}."
            )

    # --- devices
    strategy = fine_tuning.set_up_devices(FLAGS, "eval_batch_size", "predict_batch_size")
    chief = training.is_chief(strategy)
    padding = fine_tuning.padding(FLAGS)

    # --- data
    task, read = load_task(files.config)
    config = classification.configure(files.config, task)
    files.config = config

    def encode(kind: str, flag: str) -> dict:
        """Set name -> encoded examples; none where the task has no such set."""
        sets = {}
        for name, examples in read(kind).items():
            logging.info("%s: %d examples", name, len(examples))
            encoded = classification_features.encode_examples(examples, task, tokenizer, FLAGS.max_seq_length)
            if kind != "test" and encoded.label_ids is None:
                raise ValueError(f"{flag}: the set {name} has examples without label.")
            if kind == "train":
                classification.log_examples(examples[:5], encoded, tokenizer)
            sets[name] = encoded
        if not sets and FLAGS[flag[2:]].value:
            needed = f": give --{kind}_file" if task.name == "custom" else ""
            raise ValueError(f"{flag}: the task {task.name} has no {kind} set here{needed}.")
        return sets

    train_set = encode("train", "--do_train")["train"] if FLAGS.do_train else None
    dev_sets = encode("dev", "--do_eval") if FLAGS.do_eval else {}
    if FLAGS.do_train and not FLAGS.do_eval:
        try:
            dev_sets = encode("dev", "--do_eval")
        except FileNotFoundError as error:
            if FLAGS.dev_file:
                raise
            logging.info("No evaluation while training: %s", error)
    test_sets = encode("test", "--do_predict") if FLAGS.do_predict else {}
    for name in ("num_seeds", "early_stopping_patience", "use_best_model"):
        if FLAGS.do_train and not dev_sets and FLAGS[name].value != FLAGS[name].default:
            raise ValueError(f"--{name} chooses by the results on a dev set, and there is none.")
    num_train_steps = 0
    if FLAGS.do_train:
        num_train_steps = fine_tuning.number_of_steps(len(train_set), FLAGS.train_batch_size, FLAGS.num_train_epochs)
    main_metric = f"eval_{task.metrics[0]}"

    def run(seed: int, output_dir: str) -> dict:
        """Trains, evaluates and predicts with one seed; returns the results on the main dev set."""
        script_flags.set_seed(seed, FLAGS.deterministic)
        training.check_output_dir(output_dir, config.to_json_string())

        def create_model():
            model_class = task_models.BertForSequenceClassification
            if chosen != "bert":
                model_class = baseline_models.BaselineClassifier
            num_labels = 1 if task.is_regression else len(task.labels)
            return model_class(config, num_labels=num_labels, dtype=script_flags.DTYPE_POLICIES[FLAGS.dtype])

        model, optimizer, step = fine_tuning.build_and_restore(
            FLAGS, strategy, create_model, num_train_steps, output_dir
        )
        keeper = best_model.BestModel(
            output_dir, files, main_metric, patience=FLAGS.early_stopping_patience, active=chief
        )
        keeper.forget_after(step)
        predict = train_step.make_predict_function(model, strategy)

        def logits_of(encoded, batch_size: int) -> np.ndarray:
            return classification.predict_logits(predict, encoded, batch_size=batch_size, **padding)

        def evaluate(step: int) -> dict:
            """On the main dev set, while training."""
            encoded = next(iter(dev_sets.values()))
            logits = logits_of(encoded, FLAGS.eval_batch_size)
            results = classification_metrics.evaluate(task, logits, encoded.label_ids, FLAGS.eval_batch_size)
            keeper.update(step, results, model)
            return results

        # --- train
        if FLAGS.do_train:
            plan = fine_tuning.training_plan(
                FLAGS, config, train_set.lengths, num_train_steps, evaluates=bool(dev_sets), seed=seed
            )
            if chosen != "bert":
                flops = 3.0 * model.flops_per_example(plan.tokens_per_example)
                plan = dataclasses.replace(plan, flops_per_example=flops)

            def training_batches(first_step: int) -> tf.data.Dataset:
                return batching.training_batches(
                    train_set, batch_size=FLAGS.train_batch_size, seed=seed, start_step=first_step, **padding
                )

            def write_train_records() -> None:
                if FLAGS.write_tf_records:
                    path = posixpath.join(output_dir, "train.tf_record")
                    classification_features.write_records(path, train_set, FLAGS.max_seq_length)

            settings = {flag.name: flag.value for flag in FLAGS.get_key_flags_for_module(__name__)}
            step = fine_tuning.train(
                model, optimizer, strategy, plan, training_batches, output_dir, files, keeper,
                evaluate if dev_sets else None, {**settings, "seed": seed}, write_train_records,
            )  # fmt: skip
        if FLAGS.use_best_model:
            step = fine_tuning.use_best_model(model, keeper)

        # --- evaluate
        tf.io.gfile.makedirs(output_dir)
        results = keeper.results_of(step) or {}
        for number, (name, encoded) in enumerate(dev_sets.items() if FLAGS.do_eval else ()):
            suffix = "" if number == 0 else f"_{name}"
            logging.info("Evaluation of step %d on %s:", step, name)
            logits = logits_of(encoded, FLAGS.eval_batch_size)
            scores = classification_metrics.evaluate(task, logits, encoded.label_ids, FLAGS.eval_batch_size)
            if chief:
                path = posixpath.join(output_dir, f"eval_results{suffix}.txt")
                training.write_eval_results(path, {**scores, "global_step": step})
                classification.write_analysis(output_dir, suffix, task, logits, encoded.label_ids)
                if FLAGS.write_tf_records:
                    path = posixpath.join(output_dir, f"eval{suffix}.tf_record")
                    classification_features.write_records(path, encoded, FLAGS.max_seq_length)
            if number == 0:
                results = {**scores, "global_step": step}

        # --- predict
        for number, (name, encoded) in enumerate(test_sets.items()):
            suffix = "" if number == 0 else f"_{name}"
            logits = logits_of(encoded, FLAGS.predict_batch_size)
            if chief:
                classification.write_predictions(output_dir, suffix, task, encoded, logits)
                if FLAGS.write_tf_records:
                    path = posixpath.join(output_dir, f"predict{suffix}.tf_record")
                    classification_features.write_records(path, encoded, FLAGS.max_seq_length)
        return results

    if FLAGS.num_seeds == 1:
        run(FLAGS.seed, FLAGS.output_dir)
        return
    results = {}
    for seed in range(FLAGS.seed, FLAGS.seed + FLAGS.num_seeds):
        results[seed] = run(seed, posixpath.join(FLAGS.output_dir, f"seed-{seed}"))
        keras.backend.clear_session()
    if chief:
        print(classification.write_seed_summary(FLAGS.output_dir, results, main_metric))


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    script_flags.run(main)
