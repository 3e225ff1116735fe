"""Fine-tunes BERT to answer questions about texts, and answers them: SQuAD 1.1, SQuAD 2.0, and data in their format.

The original's commands work unchanged:

    python run_squad.py --vocab_file=$BERT_BASE_DIR/vocab.txt --bert_config_file=$BERT_BASE_DIR/bert_config.json \\
      --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --do_train=True --train_file=$SQUAD_DIR/train-v1.1.json \\
      --do_predict=True --predict_file=$SQUAD_DIR/dev-v1.1.json --train_batch_size=12 --learning_rate=3e-5 \\
      --num_train_epochs=2.0 --max_seq_length=384 --doc_stride=128 --output_dir=runs/squad_base/

--vocab_file and --bert_config_file may be left out if the files are next to --init_checkpoint, which takes weights of
any format. If --predict_file has answers, exact match and F1 are computed, too. For Chinese, Japanese, Korean and any
other language than English use --answer_from=offsets.

In output_dir: predictions.json, nbest_predictions.json, null_odds.json (2.0), eval_results.txt, best_model/ (with
--do_eval), question_answering.json, the weights of the last step, logs. After a crash, the same command resumes exactly
where it stopped. Exit code 143: stopped by SIGTERM, with a checkpoint.
"""

from bert_tf.system import script
from bert_tf.system.declare import define_flags
from bert_tf.tasks.squad.data import SquadSettings
from bert_tf.training.settings import FineTuningSettings, checked_settings

_UNUSED = ("eval_batch_size", "classifier_dropout", "new_head")
FLAGS = define_flags(SquadSettings, FineTuningSettings, without=_UNUSED, max_seq_length=384)


def main(_):
    run, task_settings = checked_settings(SquadSettings, FLAGS)
    script.start_tensorflow(run.num_virtual_cpus, trains=run.do_train)
    from bert_tf.tasks.script import run_task
    from bert_tf.tasks.squad.task import SquadTask

    run_task(SquadTask(task_settings), run)
