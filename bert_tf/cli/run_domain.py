"""Trains released weights further on your own texts, and shows what that brought: your domain in one command.

    python run_domain.py --init_checkpoint=$BERT_BASE_DIR --input_file='texts/*.txt' --output_dir=domain

It adds the domain's frequent words to the vocabulary, makes records, pre-trains, and evaluates before and after on
documents that it held out. With --other_text also on text of another kind, to show what was forgotten; with
--train_file and --dev_file it fine-tunes on your task, from the released weights and from the domain's model:

    python run_domain.py ... --other_text=news.txt --train_file=train.csv --dev_file=dev.csv --text_a=text --label=label

The texts: plain text in any form (sentences, paragraphs, broken lines), JSON lines, also compressed by gzip.
In output_dir: domain.md (the report), domain.json, pretrained/ (the model), words.txt, results/ (of each
step). After a crash, the same command goes on.
"""

from bert_tf.system import script
from bert_tf.system.declare import define_flags, settings_of
from bert_tf.tasks.domain.settings import DomainSettings

FLAGS = define_flags(DomainSettings)


def main(_):
    settings = settings_of(DomainSettings, FLAGS, DomainSettings.check)
    devices = settings.pretraining()
    script.start_tensorflow(devices.num_virtual_cpus, on_tpu=devices.strategy == "tpu")
    from bert_tf.tasks.domain.recipe import adapt, create_page

    print(create_page(adapt(settings)))
    print(f"This report: {settings.output_dir}/domain.md, with domain.json.")
