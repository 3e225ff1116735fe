"""Fine-tunes BERT so that the vectors of texts are near if the texts are alike (Sentence-BERT), on your own CSV, TSV or
JSON lines.

    python run_similarity.py --do_train --do_eval --train_file=train.tsv --dev_file=dev.tsv --score_range=0,5 \\
      --init_checkpoint=$BERT_BASE_DIR --output_dir=sts

What the file has decides what is learned:

* two texts and a score (STS-B's columns sentence1, sentence2, score): the cosine of the two is the score;
* two texts that belong together (anchor and positive, query and positive, question and answer): a text's partner is
  nearer than the partners of the other texts of the batch; larger batches are harder, and teach more;
* a third text, negative, that does not belong to the first: one more that the partner must be nearer than; or with
  --loss=triplet the only one.

Name other columns:

    python run_similarity.py ... --text_a=title --text_b=body --negative=other   # by name
    python run_similarity.py ... --text_a=0 --text_b=1 --score=2                 # a file without header

A dev set with scores is evaluated by Spearman's and Pearson's correlation, another by search: each first text among
all second and third ones (accuracy of the first 1, 5 and 10 found, MRR, nDCG). --do_eval without --do_train evaluates
the weights as they are.

In output_dir: eval_results.txt, predictions.jsonl and test_results.tsv (the cosines of --test_file), best_model/,
the weights of the last step, logs. After a crash, the same command resumes exactly where it stopped.
Embedder opens best_model/; convert_checkpoint.py --format=huggingface makes of it what sentence-transformers opens.
Exit code 143: stopped by SIGTERM, with a checkpoint.
"""

from bert_tf.system import script
from bert_tf.system.declare import define_flags, setting_group
from bert_tf.tasks.similarity.data import SimilaritySettings
from bert_tf.training.settings import FineTuningSettings, checked_settings
from bert_tf.training.teacher import DISTILLATION

_UNUSED = ("eval_batch_size", "classifier_dropout", "new_head", *setting_group(FineTuningSettings, DISTILLATION))
FLAGS = define_flags(SimilaritySettings, FineTuningSettings, without=_UNUSED)


def main(_):
    run, task_settings = checked_settings(SimilaritySettings, FLAGS)
    script.start_tensorflow(run.num_virtual_cpus, trains=run.do_train)
    from bert_tf.serving.embedder import Embedder
    from bert_tf.tasks.script import run_task
    from bert_tf.tasks.similarity.task import SimilarityTask

    run_task(SimilarityTask(task_settings, Embedder), run)
