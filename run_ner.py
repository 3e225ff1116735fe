"""Fine-tunes BERT to tag words: named entities (paper, section 5.3), or any other tags, in files of CoNLL style.

    python run_ner.py --do_train --do_eval --do_predict --train_file=train.conll --dev_file=dev.conll \\
      --test_file=test.conll --init_checkpoint=$BERT_BASE_DIR --output_dir=ner_output

One word a line, its columns separated by tabs or spaces, the word first and the tag last unless --word_column and
--tag_column say otherwise; a blank line after each sentence, and -DOCSTART- before each document where there are some.
The tags are IOB2 unless --tag_scheme says otherwise. CoNLL-2003 as it was published:

    python run_ner.py ... --tag_scheme=iob1 --document_context --max_seq_length=512

The feature-based way of the paper, with BERT as it is and two BiLSTMs on it:

    python run_ner.py ... --features=concat_last_four --learning_rate=1e-3 --num_train_epochs=10

In output_dir: eval_results.txt, eval_report.txt (scores of each type), predictions.conll (--test_file with one more
column), predictions.jsonl (entities with scores), test_results.txt and test_report.txt where --test_file has tags,
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
flags.DEFINE_bool("do_predict", False, "Tag --test_file.")

# Data.
flags.DEFINE_string(
    "train_file", None, "Words and tags to train on; several files with commas between them, or a glob."
)
flags.DEFINE_string("dev_file", None, "Words and tags to evaluate on (or several files).")
flags.DEFINE_string("test_file", None, "One file to tag; it may have tags, which then are scored, or words only.")
flags.DEFINE_bool("test_has_tags", True, "Whether --test_file has a column of tags. One of a single column has none.")
flags.DEFINE_enum(
    "column_separator",
    "auto",
    ["auto", "tab", "space"],
    "What stands between columns. space: any run of spaces and tabs. auto: tab if the first word's line has one.",
)
flags.DEFINE_integer("word_column", 0, "Column of the word, from 0; -1 is the last one.")
flags.DEFINE_integer("tag_column", -1, "Column of the tag, from 0; -1 is the last one.")
flags.DEFINE_enum(
    "tag_scheme",
    "iob2",
    ["iob2", "iob1", "bioes", "bilou", "plain"],
    "How tags mark entities. iob2: B- begins each, I- goes on (most data sets). iob1: B- only between two that touch "
    "(CoNLL-2003 as published). bioes, bilou: ends and single words are marked, too. plain: tags of words that make no "
    "entities, such as parts of speech; accuracy is what is measured.",
)
flags.DEFINE_bool(
    "repair_tags", False, "Read tags that break --tag_scheme as the program conlleval does; without it, an error."
)
flags.DEFINE_string(
    "comment_prefix", "", "Lines that begin so are no words, e.g. '# ' in CoNLL-U. Mind hashtags of tweets."
)
flags.DEFINE_integer("max_seq_length", 128, "Tokens of a sentence or window at most, with [CLS] and [SEP].")
flags.DEFINE_integer(
    "doc_stride",
    None,
    "Tokens from the start of a window of a long sentence or document to that of the next; half a window if unset.",
    lower_bound=1,
)
flags.DEFINE_bool(
    "document_context",
    False,
    "Show a sentence with what stands around it in its document (-DOCSTART- lines), as the paper did; take a large "
    "--max_seq_length for it.",
)

# Model.
flags.DEFINE_enum(
    "features",
    None,
    ["last", "second_to_last", "sum_last_four", "concat_last_four", "sum_all", "embeddings"],
    "Leave BERT as it is, and train BiLSTMs on these outputs of its layers (Table 7 of the paper). If unset, all of "
    "BERT is trained. Take a --learning_rate of about 1e-3 with it.",
)
flags.DEFINE_integer("lstm_size", 768, "--features: width of a BiLSTM, half of it for each direction.", lower_bound=2)
flags.DEFINE_integer("lstm_layers", 2, "--features: BiLSTMs one on another.", lower_bound=1)

script_flags.define_model_flags()
script_flags.define_fine_tuning_flags()
script_flags.define_device_flags()
script_flags.define_training_flags()
flags.adopt_module_key_flags(script_flags)  # so that --help shows them, too

_LSTM_FLAGS = ("lstm_size", "lstm_layers")


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
    for name in _LSTM_FLAGS:
        if FLAGS.do_train and FLAGS[name].present and not FLAGS.features:
            raise ValueError(f"--{name} is for the feature-based way: give --features.")


def choose_settings(stored, source: str, going_on: bool):
    """The `ner.TaggingSettings` of the flags; what isn't given is as with the model that is gone on with or used.

    Args:
      stored: what lies beside the model's weights, or None. source: where. going_on: a run in output_dir goes on, or
        nothing is trained: the model is what it is.

    Raises:
      ValueError: a flag contradicts the model.
    """
    from bert_tf.tasks import ner, ner_data

    given = {
        "learned_scheme": ner_data.learned_scheme(FLAGS.tag_scheme),
        "document_context": FLAGS.document_context,
        "features": FLAGS.features,
        "lstm_size": FLAGS.lstm_size,
        "lstm_layers": FLAGS.lstm_layers,
    }
    if not going_on or stored is None:
        return ner.TaggingSettings(**given)
    for name, value in given.items():
        flag = "tag_scheme" if name == "learned_scheme" else name
        # Tags in files may be marked in another way than those the model learned, so the scheme is no contradiction.
        if FLAGS[flag].present and name != "learned_scheme" and value != getattr(stored, name):
            raise ValueError(f"--{flag}={value} contradicts {source}, which was trained with {getattr(stored, name)}.")
    if "plain" in (given["learned_scheme"], stored.learned_scheme) and given["learned_scheme"] != stored.learned_scheme:
        raise ValueError(
            f"--tag_scheme={FLAGS.tag_scheme} contradicts {source}, which was trained on tags of the kind "
            f"{stored.learned_scheme}."
        )
    return stored


def main(_):
    check_flags()
    # TensorFlow is imported here, so that --help and a wrong flag answer at once.
    import tensorflow as tf

    from bert_tf import best_model, checkpoints, fine_tuning, model_files, train_step, training
    from bert_tf.tasks import ner, ner_data, ner_features
    from bert_tf.text_files import list_files, write_text_file

    logging.set_verbosity(logging.INFO)
    layout = ner_data.Layout(
        FLAGS.column_separator, FLAGS.word_column, FLAGS.tag_column, FLAGS.tag_scheme, FLAGS.comment_prefix,
        FLAGS.repair_tags,
    )  # fmt: skip
    newest = checkpoints.latest_checkpoint(FLAGS.output_dir)
    start = newest or FLAGS.init_checkpoint
    with fine_tuning.named_by("--output_dir" if newest else "--init_checkpoint"):
        stored = ner.TaggingSettings.read(model_files.directory_of(start)) if start else None
    settings = choose_settings(stored, start, bool(newest) or not FLAGS.do_train)
    files, tokenizer = fine_tuning.describe_model(FLAGS, newest, ner.output_layer(settings))
    scheme = settings.learned_scheme
    plain = scheme == "plain"

    # --- devices
    strategy = fine_tuning.set_up_devices(FLAGS, "predict_batch_size")
    chief = training.is_chief(strategy)
    padding = fine_tuning.padding(FLAGS)

    # --- data: everything is read and checked before anything is computed
    def read(patterns: str, flag: str, has_tags: bool = True) -> list:
        paths = list_files(patterns, flag)
        with fine_tuning.named_by(flag):
            return [ner_data.read_conll(path, layout, scheme, has_tags) for path in paths]

    def tagged_sentences(patterns: str, flag: str) -> list:
        sentences, documents = [], 0
        for file in read(patterns, flag):
            if file.sentences[0].tags is None:
                raise ValueError(f"{flag}: {file.path} has words only, and no column of tags.")
            # Documents of different files are different ones.
            sentences += [dataclasses.replace(s, document=s.document + documents) for s in file.sentences]
            documents += file.sentences[-1].document + 1
        log(sentences, flag)
        return sentences

    def log(sentences: list, flag: str) -> None:
        documents = sentences[-1].document + 1
        logging.info(
            "%s: %d words, %d sentences, %d documents", flag, sum(len(s.words) for s in sentences), len(sentences),
            documents,
        )  # fmt: skip
        if settings.document_context and documents == 1 and len(sentences) > 1:
            logging.warning("--document_context: %s has no %s: it is one document.", flag, ner_data.DOCUMENT_START)

    train_sentences = tagged_sentences(FLAGS.train_file, "--train_file") if FLAGS.do_train else []
    dev_sentences = tagged_sentences(FLAGS.dev_file, "--dev_file") if FLAGS.do_eval else []
    test_file = None
    if FLAGS.do_predict:
        test_files = read(FLAGS.test_file, "--test_file", FLAGS.test_has_tags)
        if len(test_files) > 1:
            raise ValueError(f"--test_file={FLAGS.test_file} is {len(test_files)} files; give one.")
        test_file = test_files[0]
        log(test_file.sentences, "--test_file")

    # --- labels
    if FLAGS.do_train:
        labels = ner.labels_of(train_sentences, scheme)
    else:
        labels = ner.stored_labels(FLAGS.output_dir, files.config)
        if not labels:
            raise ValueError(f"{start} does not say which tags it has learned (id2label in its configuration).")
    test_has_tags = test_file is not None and test_file.sentences[0].tags is not None
    for flag, sentences in (
        ("--dev_file", dev_sentences),
        ("--test_file", test_file.sentences if test_has_tags else ()),
    ):
        unknown = sorted({tag for sentence in sentences for tag in sentence.tags} - set(labels))
        if unknown:
            logging.warning("%s has tags that the model does not know, and can't give: %s.", flag, ", ".join(unknown))
    config = ner.configure(files.config, labels)
    files.config = config
    training.check_output_dir(FLAGS.output_dir, config.to_json_string())

    # --- token ids
    def encode(sentences: list, with_labels: bool = False):
        return ner_features.encode_sentences(
            sentences, tokenizer, FLAGS.max_seq_length, doc_stride=FLAGS.doc_stride,
            label_ids={label: number for number, label in enumerate(labels)} if with_labels else None,
            document_context=settings.document_context,
        )  # fmt: skip

    num_train_steps = 0
    if FLAGS.do_train:
        train_rows = encode(train_sentences, with_labels=True)
        ner_features.log_rows(train_rows, labels, tokenizer)
        num_train_steps = fine_tuning.number_of_steps(len(train_rows), FLAGS.train_batch_size, FLAGS.num_train_epochs)
    dev_rows = encode(dev_sentences) if FLAGS.do_eval else None
    test_rows = encode(test_file.sentences) if FLAGS.do_predict else None

    # --- model
    script_flags.set_seed(FLAGS.seed, FLAGS.deterministic)
    model, optimizer, step = fine_tuning.build_and_restore(
        FLAGS, strategy, lambda: ner.create_model(config, settings, script_flags.DTYPE_POLICIES[FLAGS.dtype]),
        num_train_steps, FLAGS.output_dir,
    )  # fmt: skip
    main_metric = "eval_accuracy" if plain else "eval_f1"
    keeper = best_model.BestModel(
        FLAGS.output_dir, files, main_metric, patience=FLAGS.early_stopping_patience, active=chief
    )
    keeper.forget_after(step)
    keeper.further_files[ner.SETTINGS_FILE] = settings.to_json()
    predict = train_step.make_predict_function(model, strategy)

    def logits_of(rows):
        return ner.predict_logits(predict, rows, batch_size=FLAGS.predict_batch_size, **padding)

    def scores(kind: str, sentences: list, logits) -> tuple[dict, str]:
        results, report = ner.score(sentences, logits, labels, settings)
        return {f"{kind}_{name}": value for name, value in results.items()}, report

    def evaluate(step: int) -> dict:
        """On the dev set, while training."""
        results, _ = scores("eval", dev_sentences, logits_of(dev_rows))
        keeper.update(step, results, model)
        return results

    # --- train
    if FLAGS.do_train:
        plan = fine_tuning.training_plan(
            FLAGS, config, train_rows.lengths, num_train_steps, evaluates=FLAGS.do_eval, seed=FLAGS.seed
        )

        def training_batches(first_step: int) -> tf.data.Dataset:
            return ner.training_batches(
                train_rows, batch_size=FLAGS.train_batch_size, seed=FLAGS.seed, start_step=first_step, **padding
            )

        def before_training() -> None:
            write_text_file(posixpath.join(FLAGS.output_dir, ner.SETTINGS_FILE), settings.to_json())
            if FLAGS.write_tf_records:
                path = posixpath.join(FLAGS.output_dir, "train.tf_record")
                ner_features.write_records(path, train_rows, FLAGS.max_seq_length)

        flag_values = {flag.name: flag.value for flag in FLAGS.get_key_flags_for_module(__name__)}
        step = fine_tuning.train(
            model, optimizer, strategy, plan, training_batches, FLAGS.output_dir, files, keeper,
            evaluate if FLAGS.do_eval else None, flag_values, before_training,
        )  # fmt: skip
    if FLAGS.use_best_model:
        step = fine_tuning.use_best_model(model, keeper)

    # --- evaluate and predict
    tf.io.gfile.makedirs(FLAGS.output_dir)

    def write_scores(kind: str, sentences: list, logits) -> None:
        results, report = scores(kind, sentences, logits)
        logging.info("Step %d, %s:\n%s", step, kind, report)
        path = posixpath.join(FLAGS.output_dir, f"{kind}_results.txt")
        training.write_eval_results(path, {**results, "global_step": step})
        write_text_file(posixpath.join(FLAGS.output_dir, f"{kind}_report.txt"), report)

    if FLAGS.do_eval:
        logits = logits_of(dev_rows)
        if chief:
            write_scores("eval", dev_sentences, logits)
    if FLAGS.do_predict:
        logits = logits_of(test_rows)
        if chief:
            paths = ner.write_predictions(FLAGS.output_dir, test_file, layout, logits, labels)
            logging.info("Wrote the tags of %d sentences to %s.", len(test_file.sentences), " and ".join(paths))
            if test_has_tags:
                write_scores("test", test_file.sentences, logits)


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    script_flags.run(main)
