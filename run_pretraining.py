"""Pre-trains BERT with masked LM and next sentence prediction on the records of create_pretraining_data.py.

The original's command works as it is; started again after a crash it goes on exactly where it stood:

    python run_pretraining.py \\
      --input_file=/data/tf_examples.tfrecord --output_dir=/runs/pretraining \\
      --bert_config_file=$BERT_BASE_DIR/bert_config.json --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt \\
      --do_train=True --do_eval=True --train_batch_size=32 --max_seq_length=128 --max_predictions_per_seq=20 \\
      --num_train_steps=20 --num_warmup_steps=10 --learning_rate=2e-5

Several GPUs: --distribution_strategy=mirrored. Cloud TPU: --distribution_strategy=tpu --tpu_name=local.
In output_dir: model.ckpt-* (the original's format), eval_results.txt, train_log.jsonl, TensorBoard events.
Exit code 143: stopped by SIGTERM, with a checkpoint of the step reached.
"""

import posixpath

from absl import flags, logging

from bert_tf import script_flags

FLAGS = flags.FLAGS

# Required.
flags.DEFINE_string(
    "bert_config_file",
    None,
    "The model's configuration, as JSON (bert_config.json). If unset, the one that lies beside --init_checkpoint.",
)
flags.DEFINE_string(
    "bert_size",
    None,
    "A named size instead of --bert_config_file: tiny, mini, small, medium, base, large, any of the 24 miniatures as "
    "L-4_H-512, or L-3_H-768, L-6_H-768_A-3, L-12_H-1024, L-24_H-1024. Its vocabulary is --vocab_file, or else of "
    "30,522 tokens.",
)
flags.DEFINE_string(
    "input_file", None, "TFRecord files of create_pretraining_data.py: a comma list, each entry a file or a glob."
)
flags.DEFINE_string(
    "output_dir", None, "For checkpoints, logs and eval_results.txt. A run found there is gone on with."
)

# What to do.
flags.DEFINE_bool("do_train", False, "Train until --num_train_steps.")
flags.DEFINE_bool("do_eval", False, "Evaluate at the end, and write eval_results.txt.")
flags.DEFINE_string(
    "eval_input_file",
    None,
    "Held-out records to evaluate on: the first --max_eval_steps batches, each record once. If unset, evaluation is on "
    "--input_file, repeated to exactly --max_eval_steps batches, as the original did.",
)
flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Weights to start from: a checkpoint of the original, of this project or of tf-models-official (prefix or "
    "directory), a Hugging Face directory, or a SavedModel of TensorFlow Hub. Ignored once output_dir has a "
    "checkpoint.",
)

# What is learned. The defaults are the original's, the others the paper's ablations.
flags.DEFINE_enum(
    "objective",
    "mlm",
    ["mlm", "ltr"],
    "mlm: masked tokens are predicted. ltr: each token is predicted from those before it, and the model, marked "
    '"attention": "causal" in its bert_config.json, looks only backwards, in fine-tuning, too (Table 5 of the paper).',
)
flags.DEFINE_bool(
    "nsp",
    True,
    "Predict whether the second part follows the first. false: only tokens are predicted; with records of "
    "create_pretraining_data.py --nsp=false, or pairs (Table 5).",
)

# Data and schedule; the defaults are the original's.
flags.DEFINE_integer(
    "max_seq_length", 128, "Tokens a sequence. Must be that of the data; of unmasked records at least that."
)
flags.DEFINE_integer(
    "max_predictions_per_seq",
    20,
    "Masked positions a sequence. Must be that of the data; for unmasked records it is free, about max_seq_length * "
    "masked_lm_prob.",
)
flags.DEFINE_integer("train_batch_size", 32, "Examples a step, over all devices.", lower_bound=1)
flags.DEFINE_integer("eval_batch_size", 8, "Examples a batch in evaluation, over all devices.", lower_bound=1)
flags.DEFINE_float(
    "learning_rate", 5e-5, "Peak rate. 1e-4 from random weights (the paper), 2e-5 to go on from released ones."
)
flags.DEFINE_integer("num_train_steps", 100000, "Steps in all; the rate is 0 there.")
flags.DEFINE_integer("num_warmup_steps", 10000, "Steps over which the rate rises from 0; absolute, not a share.")
flags.DEFINE_integer("save_checkpoints_steps", 1000, "Steps between two checkpoints.", lower_bound=1)
flags.DEFINE_integer(
    "iterations_per_loop", 1000, "Most steps in one call of the graph; fewer where they take over 5 s.", lower_bound=1
)
flags.DEFINE_integer("max_eval_steps", 100, "Most batches of an evaluation.", lower_bound=1)
flags.DEFINE_integer(
    "shuffle_window",
    20000,
    "Records that are shuffled together; blocks of 1,024 records are shuffled over the whole data. Memory: this many "
    "records.",
    lower_bound=1,
)
# For unmasked records.
flags.DEFINE_string(
    "vocab_file",
    None,
    "For unmasked records (create_pretraining_data.py --masking=dynamic), which are masked while training, and for "
    "--bert_size: the vocabulary they were made with. If unset, the one beside --init_checkpoint.",
)
flags.DEFINE_float(
    "masked_lm_prob",
    0.15,
    "For unmasked records: the share of tokens to predict. Masked records have theirs from create_pretraining_data.py.",
)
flags.DEFINE_bool(
    "do_whole_word_mask",
    False,
    "For unmasked records: mask all pieces of a word or none. Masked records are as create_pretraining_data.py made "
    "them.",
)
flags.DEFINE_float(
    "mask_rate",
    0.8,
    "For unmasked records: share of the predicted tokens that become [MASK]. The three rates add up to 1 (Table 8).",
)
flags.DEFINE_float("random_rate", 0.1, "For unmasked records: share of the predicted tokens that become any token.")
flags.DEFINE_float("keep_rate", 0.1, "For unmasked records: share of the predicted tokens that stay as they are.")
flags.DEFINE_bool("skip_corrupt_records", False, "Count damaged records and go on, instead of stopping.")

_MASK_FLAGS = ("masked_lm_prob", "do_whole_word_mask", "mask_rate", "random_rate", "keep_rate")
_FOR_UNMASKED_RECORDS = ("vocab_file", *_MASK_FLAGS)

script_flags.define_device_flags()
script_flags.define_training_flags()
flags.adopt_module_key_flags(script_flags)  # so that --help shows them, too


def create_config():
    """The model's configuration and what to call it, by the flags.

    Raises:
      ValueError: none or two are given, there is no such size, or a left-to-right model is to learn masked LM.
    """
    from bert_tf import pretrained
    from bert_tf.config import BertConfig
    from bert_tf.tokenization import load_vocab

    if FLAGS.bert_size and FLAGS.bert_config_file:
        raise ValueError(
            f"--bert_size={FLAGS.bert_size} and --bert_config_file={FLAGS.bert_config_file} both give the model's "
            "size: leave one out."
        )
    if FLAGS.bert_size:
        size = {"vocab_size": max(load_vocab(FLAGS.vocab_file).values()) + 1} if FLAGS.vocab_file else {}
        config, name = BertConfig.from_size(FLAGS.bert_size, **size), f"--bert_size={FLAGS.bert_size}"
    else:
        config = pretrained.read_config(FLAGS.bert_config_file, FLAGS.init_checkpoint, FLAGS.allow_unknown_config_keys)
        name = FLAGS.bert_config_file or f"the configuration beside {FLAGS.init_checkpoint}"
    if FLAGS.objective == "ltr":
        logging.info("--objective=ltr: attention is causal, here and wherever this model is used.")
        config.attention = "causal"
    elif config.is_causal:
        raise ValueError(
            f"--objective={FLAGS.objective} needs attention to both sides, but attention is {config.attention} in "
            f"{name}: give --objective=ltr, or another configuration."
        )
    return config, name


def create_masking(config):
    """How unmasked records are masked, by the flags.

    Raises:
      ValueError: no vocabulary, or one that does not fit the model, or a flag out of range.
    """
    from bert_tf import dynamic_masking, pretrained
    from bert_tf.tokenization import load_vocab

    vocab_file = FLAGS.vocab_file
    if not vocab_file and FLAGS.init_checkpoint:
        vocab_file = pretrained.read_model(FLAGS.init_checkpoint)[1].vocab_file
    if not vocab_file:
        raise ValueError(
            "The records are unmasked (create_pretraining_data.py --masking=dynamic), to be masked while training: "
            "give --vocab_file, the vocabulary they were made with, or --init_checkpoint with one beside it."
        )
    masking = dynamic_masking.Masking.from_vocab(
        load_vocab(vocab_file),
        vocab_file,
        max_predictions_per_seq=FLAGS.max_predictions_per_seq,
        masked_lm_prob=FLAGS.masked_lm_prob,
        do_whole_word_mask=FLAGS.do_whole_word_mask,
        mask_rate=FLAGS.mask_rate,
        random_rate=FLAGS.random_rate,
        keep_rate=FLAGS.keep_rate,
    )
    if (largest := masking.all_ids.max()) >= config.vocab_size:
        raise ValueError(
            f"--vocab_file={vocab_file} has token id {largest}, but the model's vocab_size is {config.vocab_size}."
        )
    logging.info(
        "The records are unmasked: %g of the tokens (%s) will be masked while training, at most %d a row, with the "
        "vocabulary %s; %g of these become [MASK], %g any token.",
        masking.masked_lm_prob,
        "whole words" if masking.do_whole_word_mask else "single pieces",
        masking.max_predictions_per_seq,
        vocab_file,
        masking.mask_rate,
        masking.random_rate,
    )
    return masking


def main(_):
    # TensorFlow is imported here, so that --help and a wrong flag answer at once.
    import tensorflow as tf

    from bert_tf import (
        checkpoints,
        distribution,
        dynamic_masking,
        heads,
        left_to_right,
        objectives,
        optimization,
        pretrained,
        records,
        train_step,
        training,
    )
    from bert_tf.text_files import list_files, warn_of_missing_shards

    logging.set_verbosity(logging.INFO)
    if not FLAGS.do_train and not FLAGS.do_eval:
        raise ValueError("Nothing to do: give --do_train, --do_eval or both.")
    if FLAGS.num_train_steps <= 0:
        raise ValueError(f"--num_train_steps={FLAGS.num_train_steps} must be positive.")
    config, config_name = create_config()
    if FLAGS.max_seq_length > config.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={FLAGS.max_seq_length} is more than max_position_embeddings="
            f"{config.max_position_embeddings} of {config_name}."
        )

    # --- devices
    strategy = script_flags.set_up_devices(FLAGS)
    parts = FLAGS.gradient_accumulation_steps
    distribution.check_batch_size(FLAGS.train_batch_size, strategy, parts, "train_batch_size")
    distribution.check_batch_size(FLAGS.eval_batch_size, strategy, 1, "eval_batch_size")
    script_flags.set_seed(FLAGS.seed, FLAGS.deterministic)
    chief = training.is_chief(strategy)

    # --- data
    training.check_output_dir(FLAGS.output_dir, config.to_json_string())
    if not FLAGS.do_train and not FLAGS.init_checkpoint and not checkpoints.latest_checkpoint(FLAGS.output_dir):
        raise ValueError(
            f"Nothing to evaluate: no checkpoint in --output_dir={FLAGS.output_dir}, and no --init_checkpoint."
        )
    if chief:
        tf.io.gfile.makedirs(FLAGS.output_dir)

    def index(patterns, flag_name):
        """Index, features, and pairs a row (None: masked records)."""
        cache_name = f"{flag_name}.index.npz"
        files = list_files(patterns, f"--{flag_name}")
        warn_of_missing_shards(files, f"--{flag_name}")
        found = records.index_records(
            files,
            None,
            skip_corrupt_records=FLAGS.skip_corrupt_records,
            cache_file=posixpath.join(FLAGS.output_dir, cache_name) if chief else None,
        )
        return found, *records.features_of(found, FLAGS.max_seq_length, FLAGS.max_predictions_per_seq)

    data = {}
    if FLAGS.do_train or not FLAGS.eval_input_file:
        data["input_file"] = index(FLAGS.input_file, "input_file")
    if FLAGS.eval_input_file:
        data["eval_input_file"] = index(FLAGS.eval_input_file, "eval_input_file")
    train_index, train_features, _ = data.get("input_file") or (None, None, None)
    eval_index, eval_features, _ = data.get("eval_input_file") or data["input_file"]

    left_to_right_labels = FLAGS.objective == "ltr"
    unmasked = any(pairs for *_, pairs in data.values())
    masking = create_masking(config) if unmasked and not left_to_right_labels else None
    for name in _MASK_FLAGS:
        if FLAGS[name].value != FLAGS[name].default and left_to_right_labels:
            raise ValueError(f"--{name} is for --objective=mlm: under --objective=ltr nothing is masked.")
        if FLAGS[name].value != FLAGS[name].default and not masking:
            raise ValueError(
                f"--{name} is for unmasked records; these were masked by create_pretraining_data.py already, with its "
                "own flags."
            )

    def labeller(flag_name, seed):
        """Makes labels for the batches of a file: next tokens, or masks where the records have none yet."""
        if left_to_right_labels:
            return lambda rows, step: left_to_right.predict_next_tokens(rows)
        if not data[flag_name][2]:
            return None
        return lambda rows, step: dynamic_masking.mask_rows(rows, seed, step, masking)

    for name, (found, features, pairs) in data.items():
        for batch in records.evaluation_batches(found, features, batch_size=64, repeat=False, max_steps=1):
            largest = int(tf.reduce_max(batch["input_ids"]))
            if largest >= config.vocab_size:  # GPUs and TPUs would not notice, and train on NaN
                raise ValueError(
                    f"--{name} has token id {largest}, but vocab_size={config.vocab_size} in {config_name}: "
                    "the data was made with another, larger vocabulary."
                )
            second = batch["segment_lengths"][:, 1::2] if pairs else batch["segment_ids"]
            if FLAGS.nsp and not tf.reduce_any(second > 0):
                raise ValueError(
                    f"--{name} holds single sequences (create_pretraining_data.py --nsp=false), with no second parts "
                    "to predict: give --nsp=false here, too."
                )
            if masking and pairs and (problem := masking.problem(batch)):
                raise ValueError(f"--{name} {problem}: the records were made with another vocabulary (--vocab_file).")

    # --- model
    objective = objectives.pretraining_objective(FLAGS.objective, FLAGS.nsp)
    with strategy.scope():
        model = heads.BertForPreTraining(config, dtype=script_flags.DTYPE_POLICIES[FLAGS.dtype])
        model.build()
        optimizer = None
        if FLAGS.do_train:
            optimizer = optimization.create_optimizer(
                FLAGS.optimizer, FLAGS.learning_rate, FLAGS.num_train_steps, FLAGS.num_warmup_steps
            )
            optimizer.build(model.trainable_variables)
    logging.info(
        "Model with %s parameters; batch %d = %d replicas x %d micro-batches x %d examples; %s%s.",
        f"{model.count_params():,}",
        FLAGS.train_batch_size,
        strategy.num_replicas_in_sync,
        parts,
        FLAGS.train_batch_size // (strategy.num_replicas_in_sync * parts),
        FLAGS.dtype,
        ", XLA" if FLAGS.use_xla else "",
    )
    step = training.restore(model, optimizer, FLAGS.output_dir, FLAGS.init_checkpoint, FLAGS.init_with_optimizer)

    settings = {flag.name: flag.value for flag in FLAGS.get_key_flags_for_module(__name__)}
    settings |= {"input_file_fingerprint": train_index.fingerprint} if train_index else {}
    if masking:
        settings["vocab_file_fingerprint"] = masking.fingerprint
    else:
        settings = {name: settings[name] for name in settings if name not in _FOR_UNMASKED_RECORDS}
    if chief and FLAGS.do_train and step < FLAGS.num_train_steps:
        training.claim_output_dir(FLAGS.output_dir, config.to_json_string())
        pretrained.copy_description(FLAGS.init_checkpoint, FLAGS.output_dir)
        training.record_settings(FLAGS.output_dir, settings, resumed=step > 0)

    evaluate_batches = train_step.make_evaluate_function(model, objective, strategy)

    evaluated = {}  # results by step, so that the last step is not evaluated twice

    def evaluate(step: int) -> dict:
        batches = records.evaluation_batches(
            eval_index,
            eval_features,
            batch_size=FLAGS.eval_batch_size,
            repeat=not FLAGS.eval_input_file,
            max_steps=FLAGS.max_eval_steps,
            prepare=labeller(
                "eval_input_file" if FLAGS.eval_input_file else "input_file", dynamic_masking.EVALUATION_SEED
            ),
        )
        with records.explained_errors(eval_index, eval_features):
            results = evaluate_batches(batches)
        evaluated[step] = results
        return results

    # --- train, evaluate
    if FLAGS.do_train:
        plan = script_flags.training_plan(
            FLAGS,
            num_train_steps=FLAGS.num_train_steps,
            batch_size=FLAGS.train_batch_size,
            tokens_per_example=FLAGS.max_seq_length,
            flops_per_example=heads.pretraining_flops_per_example(
                config,
                FLAGS.max_seq_length,
                FLAGS.max_seq_length - 1 if left_to_right_labels else FLAGS.max_predictions_per_seq,
            ),
        )

        def training_batches(first_step: int) -> tf.data.Dataset:
            return records.training_batches(
                train_index,
                train_features,
                batch_size=FLAGS.train_batch_size,
                seed=FLAGS.seed,
                start_step=first_step,
                shuffle_window=FLAGS.shuffle_window,
                prepare=labeller("input_file", FLAGS.seed),
            )

        with records.explained_errors(train_index, train_features):
            step = training.train(
                model,
                optimizer,
                objective,
                strategy,
                plan,
                training_batches,
                FLAGS.output_dir,
                evaluate if FLAGS.eval_every_steps else None,
            )
    if FLAGS.do_eval:
        logging.info("Evaluation of step %d:", step)
        results = {**(evaluated.get(step) or evaluate(step)), "global_step": step}
        if chief:
            training.write_eval_results(posixpath.join(FLAGS.output_dir, "eval_results.txt"), results)


if __name__ == "__main__":
    for name in ("input_file", "output_dir"):
        flags.mark_flag_as_required(name)
    script_flags.run(main)
