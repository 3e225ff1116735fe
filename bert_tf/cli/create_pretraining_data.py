"""Creates pre-training records from text files: masked LM and next sentence, or what other families train on.

    python create_pretraining_data.py --input_file='corpus/*.txt' --output_file=tf_examples.tfrecord \\
        --vocab_file=vocab.txt --max_seq_length=128 --max_predictions_per_seq=20 --dupe_factor=5

--vocab_file decides the tokenizer, --rows what a record holds:

    BERT        --vocab_file=vocab.txt
    ALBERT      --vocab_file=spiece.model --next_sentence=order --ngram=3 --do_whole_word_mask
    ELECTRA     --vocab_file=vocab.txt --rows=electra
    RoBERTa     --vocab_file=vocab.json --rows=full_sentences --max_seq_length=512
    DistilBERT  --vocab_file=vocab.txt --rows=lines, or the records of its teacher with --masking=dynamic

The text: one sentence per line, a blank line between documents; the sentences need not be perfect. A file that does not
end with a blank line continues in the next one. JSON lines, raw paragraphs (--split_sentences) and files compressed by
gzip (.gz) are read as well.

The text may be larger than memory. All of it is one shard, as in the original, unless --num_shards divides it into
several, which are made on all cores (--num_workers) or on a cluster (--beam_runner); a killed run resumes with the
shards that are not finished. Next to the records, pretraining_data.<name of the first file>.json records their content
and how they were made.
"""

import shlex

from absl import logging

from bert_tf.families import BERT, FAMILIES
from bert_tf.pretraining import corpus
from bert_tf.pretraining.record_settings import InstanceSettings, RecordSettings, settings_of_records
from bert_tf.system import checks, script
from bert_tf.system.declare import declared_in, define_flags, flags_given, settings_of
from bert_tf.text import tokenizer_class_of

FLAGS = define_flags(RecordSettings, InstanceSettings, corpus.TextSettings)


def main(_):
    checks.check_extra("pretraining", "create_pretraining_data.py")
    text = settings_of(corpus.TextSettings, FLAGS)
    declared = {*declared_in(RecordSettings), *declared_in(InstanceSettings)}
    records, instances = settings_of_records(**{name: FLAGS[name].value for name in flags_given(FLAGS) & declared})
    checks.check_not_empty(checks.check_input_files(records.input_file, "--input_file"), "--input_file")
    checks.check_file(records.vocab_file, "--vocab_file")
    for path in records.output_files:
        checks.check_output_file(path, "--output_file")
    script.start_tensorflow()
    from bert_tf.pretraining import create

    create.create_records(records, instances, text)
    logging.info("Next:\n  %s", next_command(vars(records) | vars(instances)))


def next_command(values: dict) -> str:
    ending = "*" if values["num_shards"] > 1 else ""
    files = ",".join(path.strip() + ending for path in values["output_file"].split(","))
    words = (values["do_whole_word_mask"], values["word_boundaries"], values["segmenter"])
    of_tokenizer = {family.tokenizer_class: next(iter(family.config_class.sizes)) for family in FAMILIES}
    del of_tokenizer[BERT.tokenizer_class]  # which several have
    of_rows = {"electra": "electra_small", "lines": "distilbert_base"}
    size = of_tokenizer.get(tokenizer_class_of(values["vocab_file"])) or of_rows.get(values["rows"])
    predictions = {"max_predictions_per_seq": values["max_predictions_per_seq"]}
    flags_given = {
        "input_file": files,
        "vocab_file": values["vocab_file"],
        "max_seq_length": values["max_seq_length"],
        **({"objective": "electra"} if values["rows"] == "electra" else predictions),
        # Only BERT and ALBERT expect pairs.
        **({} if values["nsp"] or size not in (None, "albert_base_v2") else {"nsp": False}),
        **({"do_whole_word_mask": True} if values["masking"] == "dynamic" and any(words) else {}),
        "do_train": True,
    }
    given = " ".join(shlex.quote(f"--{name}={value}") for name, value in flags_given.items())
    model = f"--bert_size={size}" if size else "--bert_config_file=..."
    return f"python run_pretraining.py {given} {model} --output_dir=..."
