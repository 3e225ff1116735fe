"""Fine-tunes BERT on sentences or pairs of sentences: GLUE, XNLI, or your own TSV, CSV or JSON lines.

The original's commands work unchanged:

    python run_classifier.py --task_name=MRPC --do_train=true --do_eval=true --data_dir=$GLUE_DIR/MRPC \\
      --vocab_file=$BERT_BASE_DIR/vocab.txt --bert_config_file=$BERT_BASE_DIR/bert_config.json \\
      --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --max_seq_length=128 --train_batch_size=32 \\
      --learning_rate=2e-5 --num_train_epochs=3.0 --output_dir=runs/mrpc_output/

--vocab_file and --bert_config_file may be left out if the files are next to --init_checkpoint, which takes weights of
any format. Your own data, without changing code:

    python run_classifier.py --task_name=custom --train_file=train.csv --dev_file=dev.csv --text_a=review \\
      --label=stars --do_train --do_eval --init_checkpoint=$BERT_BASE_DIR --output_dir=reviews

In output_dir: eval_results.txt, test_results.tsv, predictions.jsonl, best_model/, the weights of the last step, logs.
After a crash, the same command resumes exactly where it stopped. Exit code 143: stopped by SIGTERM, with a checkpoint.
"""

from bert_tf.system import script
from bert_tf.system.declare import define_flags
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.training.settings import FineTuningSettings, checked_settings

FLAGS = define_flags(ClassificationSettings, FineTuningSettings, eval_batch_size=8)


def main(_):
    run, task_settings = checked_settings(ClassificationSettings, FLAGS)
    script.start_tensorflow(run.num_virtual_cpus, trains=run.do_train)
    from bert_tf.tasks.classification.task import ClassificationTask
    from bert_tf.tasks.script import run_task

    run_task(ClassificationTask(task_settings), run)
