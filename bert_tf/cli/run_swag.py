"""Fine-tunes BERT for multiple choice (paper, section 4.4): SWAG, or your own CSV, TSV or JSON lines with any number of
choices.

    python run_swag.py --do_train --do_eval --train_file=train.csv --dev_file=val.csv \\
      --init_checkpoint=$BERT_BASE_DIR --max_seq_length=80 --train_batch_size=16 --learning_rate=2e-5 \\
      --output_dir=swag_output

Each choice goes through BERT as `[CLS] context [SEP] question choice [SEP]`; its score is the dot product of a vector
and the output of [CLS], and a softmax over the choices turns scores into probabilities. SWAG's columns are recognised
(sent1 is the context, sent2 the beginning of every choice), and so are JSON lines with context, question, choices and
label. Name other columns:

    python run_swag.py ... --context=1 --choices=2,3,4,5 --label=6       # CODAH, which has no header
    python run_swag.py ... --context=goal --choices=sol1,sol2            # PIQA, with its labels added as label

In output_dir: eval_results.txt, predictions.jsonl, test_results.tsv, test_results.txt if --test_file has labels,
confusion_matrix.png, best_model/, the weights of the last step, logs. After a crash, the same command resumes exactly
where it stopped. Exit code 143: stopped by SIGTERM, with a checkpoint.
"""

from bert_tf.system import script
from bert_tf.system.declare import define_flags
from bert_tf.tasks.choice.data import ChoiceSettings
from bert_tf.training.settings import FineTuningSettings, checked_settings

FLAGS = define_flags(ChoiceSettings, FineTuningSettings, without=("eval_batch_size",))


def main(_):
    run, task_settings = checked_settings(ChoiceSettings, FLAGS)
    script.start_tensorflow(run.num_virtual_cpus, trains=run.do_train)
    from bert_tf.tasks.choice.task import ChoiceTask
    from bert_tf.tasks.script import run_task

    run_task(ChoiceTask(task_settings), run)
