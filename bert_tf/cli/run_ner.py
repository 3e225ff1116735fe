"""Fine-tunes BERT to tag words: named entities (paper, section 5.3), or any other tags, in CoNLL-style files.

    python run_ner.py --do_train --do_eval --do_predict --train_file=train.conll --dev_file=dev.conll \\
      --test_file=test.conll --init_checkpoint=$BERT_BASE_DIR --output_dir=ner_output

One word per line, its columns separated by tabs or spaces, the word first and the tag last unless --word_column and
--tag_column say otherwise; a blank line after each sentence, and optionally -DOCSTART- before each document. The tags
are IOB2 unless --tag_scheme says otherwise. CoNLL-2003 as published:

    python run_ner.py ... --tag_scheme=iob1 --document_context --max_seq_length=512

The paper's feature-based approach, BiLSTMs on a frozen BERT: python -m experiments.feature_based --help

In output_dir: eval_results.txt, eval_report.txt (scores of each type), predictions.conll (--test_file with one more
column), predictions.jsonl (entities with scores), test_results.txt and test_report.txt if --test_file has tags,
confusion_matrix.png, best_model/, the weights of the last step, logs. After a crash, the same command resumes exactly
where it stopped. Exit code 143: stopped by SIGTERM, with a checkpoint.
"""

from bert_tf.system import script
from bert_tf.system.declare import define_flags
from bert_tf.tasks.ner.data import NerSettings
from bert_tf.training.settings import FineTuningSettings, checked_settings

FLAGS = define_flags(NerSettings, FineTuningSettings, without=("eval_batch_size",))


def main(_):
    run, task_settings = checked_settings(NerSettings, FLAGS)
    script.start_tensorflow(run.num_virtual_cpus, trains=run.do_train)
    from bert_tf.tasks.ner.task import NerTask
    from bert_tf.tasks.script import run_task

    run_task(NerTask(task_settings), run)
