"""Pre-trains BERT, or an ELECTRA, ALBERT, RoBERTa or DistilBERT, on the records of create_pretraining_data.py.

The original's command works unchanged; after a crash, the same command resumes exactly where it stopped:

    python run_pretraining.py \\
      --input_file=/data/tf_examples.tfrecord --output_dir=/runs/pretraining \\
      --bert_config_file=$BERT_BASE_DIR/bert_config.json --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt \\
      --do_train=True --do_eval=True --train_batch_size=32 --max_seq_length=128 --max_predictions_per_seq=20 \\
      --num_train_steps=20 --num_warmup_steps=10 --learning_rate=2e-5

Several GPUs: --distribution_strategy=mirrored. Cloud TPU: --distribution_strategy=tpu --tpu_name=local.
In output_dir: model.ckpt-* (the original's format), eval_results.txt, train_log.jsonl, TensorBoard events.
Exit code 143: stopped by SIGTERM, with a checkpoint of the step reached.
"""

from absl import flags, logging

from bert_tf.pretraining.settings import MASK_RULES, PretrainingSettings, check_settings
from bert_tf.system import script
from bert_tf.training import flags as training_flags
from bert_tf.training.settings import DeviceSettings, TrainingSettings, settings_of

FLAGS = flags.FLAGS

# Required.
flags.DEFINE_string(
    "bert_config_file",
    None,
    "The model's configuration. Its name says the family: bert_config.json, albert_config.json, "
    "distilbert_config.json, electra_config.json or roberta_config.json. If unset, the one beside --init_checkpoint.",
)
flags.DEFINE_string(
    "bert_size",
    None,
    "A named size instead of --bert_config_file: tiny, mini, small, medium, base, large, any of the 24 miniatures as "
    "L-4_H-512, or L-3_H-768, L-6_H-768_A-3, L-12_H-1024, L-24_H-1024; albert_base_v2, "
    "albert_large_v2, albert_xlarge_v2, albert_xxlarge_v2, albert_base_v1, albert_large_v1, "
    "albert_xlarge_v1, albert_xxlarge_v1; distilbert_base; electra_small, electra_base, electra_large; roberta_base, "
    "roberta_large. Its vocabulary is --vocab_file, or else as large as that of the released models (BERT: 30,522 "
    "tokens).",
)
flags.DEFINE_string(
    "input_file", None, "TFRecord files of create_pretraining_data.py: files or globs, separated by commas."
)
flags.DEFINE_string(
    "output_dir", None, "Directory for checkpoints, logs and eval_results.txt. A run found there is resumed."
)

# What to do.
flags.DEFINE_bool("do_train", False, "Train until --num_train_steps.")
flags.DEFINE_bool("do_eval", False, "Evaluate at the end, and write eval_results.txt.")
flags.DEFINE_string(
    "eval_input_file",
    None,
    "Held-out records to evaluate on: the first --max_eval_steps batches, each record once. If unset, evaluation uses "
    "--input_file, repeated to exactly --max_eval_steps batches, as in the original.",
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
    ["mlm", "ltr", "electra"],
    "mlm: predict masked tokens. ltr: predict each token from those before it; the model, marked "
    '"attention": "causal" in its bert_config.json, keeps causal attention in fine-tuning (Table 5 of the paper). '
    "electra: a small generator predicts masked tokens, and the model finds which tokens of its text are not the "
    "original ones; for ELECTRA, with unmasked records.",
)
flags.DEFINE_bool(
    "nsp",
    True,
    "Predict whether the second segment follows the first; for an ALBERT, whether the two are swapped, as the records "
    "say. false: predict only tokens, with records of create_pretraining_data.py --nsp=false, or with pairs (Table 5). "
    "If unset, false for families without a pooler, such as RoBERTa.",
)

# Data and schedule; the defaults are the original's.
flags.DEFINE_integer(
    "max_seq_length", 128, "Tokens per sequence. Must match the data; for unmasked records, at least the data's."
)
flags.DEFINE_integer(
    "max_predictions_per_seq",
    20,
    "Masked positions per sequence. Must match the data; for unmasked records any number, about max_seq_length * "
    "masked_lm_prob, which is the default for ELECTRA and RoBERTa.",
)
flags.DEFINE_integer("train_batch_size", 32, "Examples per step, over all devices.", lower_bound=1)
flags.DEFINE_integer("eval_batch_size", 8, "Examples per batch in evaluation, over all devices.", lower_bound=1)
flags.DEFINE_float(
    "learning_rate",
    5e-5,
    "Peak learning rate. BERT: 1e-4 from random weights (the paper), 2e-5 from released ones. If unset, 5e-5 for BERT; "
    "for other families their authors', which is logged and meant for their large batches.",
)
flags.DEFINE_integer("num_train_steps", 100000, "Total steps, over which the learning rate decays to 0.")
flags.DEFINE_integer(
    "num_warmup_steps",
    10000,
    "Steps over which the learning rate rises from 0 (not a share). If unset, 10000 for BERT, and for other "
    "families their authors' share of the steps, which is logged.",
)
flags.DEFINE_float(
    "lr_decay_power",
    1.0,
    "The learning rate decays as the share of steps left to this power; 1: linearly. Warm-up is always linear.",
)
flags.DEFINE_integer(
    "stop_at_step",
    None,
    "End at this step, with the learning rate of a run of --num_train_steps; a later command on the same output_dir "
    "goes on, e.g. with records of 512 tokens after those of 128, as in the paper.",
)
flags.DEFINE_integer("save_checkpoints_steps", 1000, "Steps between two checkpoints.", lower_bound=1)
flags.DEFINE_integer(
    "iterations_per_loop", 1000, "Maximum steps per call of the graph; fewer if they take over 5 s.", lower_bound=1
)
flags.DEFINE_integer("max_eval_steps", 100, "Maximum batches per evaluation.", lower_bound=1)
flags.DEFINE_integer(
    "shuffle_window",
    20000,
    "Records that are shuffled together; blocks of 1,024 records are shuffled over the whole data. Memory: this many "
    "records.",
    lower_bound=1,
)
flags.DEFINE_string(
    "vocab_file",
    None,
    "The vocabulary that the records were made with; it is copied to output_dir. Unmasked records "
    "(create_pretraining_data.py --masking=dynamic) and --bert_size need it. If unset, the one beside "
    "--init_checkpoint, else the one named in the summary beside the records.",
)
# For unmasked records.
flags.DEFINE_float(
    "masked_lm_prob",
    0.15,
    "For unmasked records: share of tokens to predict. For masked records, create_pretraining_data.py sets it.",
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
flags.DEFINE_float("random_rate", 0.1, "For unmasked records: share of the predicted tokens that become random ones.")
flags.DEFINE_float("keep_rate", 0.1, "For unmasked records: share of the predicted tokens that stay unchanged.")
# For --objective=electra; the defaults are those of its original.
flags.DEFINE_float(
    "generator_size",
    0.25,
    "For --objective=electra: width of the generator, as a share of the model's (more than 0, at most 1); it has as "
    "many layers. If unset, that of the generator in --init_checkpoint, if there is one.",
)
flags.DEFINE_string(
    "generator_config_file",
    None,
    "For --objective=electra: the generator's configuration (electra_config.json), instead of --generator_size.",
)
flags.DEFINE_bool(
    "untied_generator_embeddings",
    False,
    "For --objective=electra: the generator has embeddings of its own, of its own width.",
)
flags.DEFINE_float("gen_weight", 1.0, "For --objective=electra: factor of the generator's loss.")
flags.DEFINE_float("disc_weight", 50.0, "For --objective=electra: factor of the discriminator's loss.")
flags.DEFINE_bool("disallow_correct", False, "For --objective=electra: the generator never draws the original token.")
flags.DEFINE_float(
    "generator_temperature", 1.0, "For --objective=electra: the generator's logits are divided by it before it draws."
)
flags.DEFINE_float(
    "mask_smoothing",
    0.0,
    "For unmasked records: mask rare tokens more often, with odds of count ** -mask_smoothing, choosing from the whole "
    "batch, not row by row; DistilBERT's authors had 0.7.",
)
flags.DEFINE_enum(
    "mask_rule",
    None,
    MASK_RULES,
    "For unmasked records: how many tokens of a row are predicted, and which may be. bert: their number rounded, at "
    "least one, never [CLS] and [SEP]. roberta: rounded up or down at random, any token, as in fairseq. If unset, "
    "roberta for a RoBERTa, bert for all others. --objective=electra has a rule of its own.",
)
flags.DEFINE_bool("skip_corrupt_records", False, "Skip and count damaged records, instead of stopping.")
flags.DEFINE_bool(
    "verify_records",
    False,
    "Read all records at the start and verify their checksums, even if create_pretraining_data.py left an index beside "
    "each file; without this flag they are verified when they are used.",
)

# Distillation; the defaults are those of DistilBERT's authors.
training_flags.define_teacher_flags(
    "the student starts from the teacher's embeddings and these of its layers, counted from 0, as 0,2,4,7,9,11, "
    "instead of --init_checkpoint and a configuration of its own."
)
flags.DEFINE_enum(
    "student_family",
    None,
    ["distilbert", "same"],
    "With --student_layers: distilbert: without segments and pooler. same: of the teacher's family. If unset, "
    "distilbert where the teacher is a BERT.",
)
flags.DEFINE_bool(
    "vocab_transform", False, "With --student_layers: the masked-LM head's hidden layer also starts from the teacher's."
)
flags.DEFINE_float(
    "alpha_ce", 5.0, "With --teacher: weight of the divergence from the teacher's distribution over the vocabulary."
)
flags.DEFINE_float("alpha_mlm", 2.0, "With --teacher: weight of the masked-LM loss.")
flags.DEFINE_float("alpha_cos", 1.0, "With --teacher: weight of 1 - cos of the last hidden states of both models.")
flags.DEFINE_float("alpha_mse", 0.0, "With --teacher: weight of the squared difference of both models' scores.")
flags.DEFINE_bool(
    "restrict_ce_to_mask", False, "With --teacher: compare the distributions of masked tokens only, not of all."
)

training_flags.define_device_flags()
training_flags.define_training_flags()


def main(_):
    logging.set_verbosity(logging.INFO)
    values = FLAGS.flag_values_dict()
    given = {name for name in FLAGS if FLAGS[name].present}
    settings, training = (settings_of(kind, values, given) for kind in (PretrainingSettings, TrainingSettings))
    devices = settings_of(DeviceSettings, values)
    devices.check_arithmetic(training.dtype, training.use_xla)
    check_settings(settings, training.allow_unknown_config_keys)
    script.start_tensorflow(devices.num_virtual_cpus)
    from bert_tf.training import pretraining_run

    pretraining_run.pretrain(settings, training, devices)


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "output_dir"])
    script.run(main)
