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

from bert_tf.system import script
from bert_tf.system.declare import define_flags, settings_of
from bert_tf.training.pretraining_settings import PretrainingSettings

FLAGS = define_flags(PretrainingSettings)


def main(_):
    settings = settings_of(PretrainingSettings, FLAGS, PretrainingSettings.check)
    script.start_tensorflow(settings.num_virtual_cpus)
    from bert_tf.training import pretraining_run

    pretraining_run.run(settings)
