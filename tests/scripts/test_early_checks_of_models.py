"""What does not fit a model, or a run that is there, is said before TensorFlow is imported, and names the flag."""

import json

import pytest
from helpers.early_mistakes import (
    CONFIG,
    CSV,
    TOKENS,
    check_cases,
    checkpoint,
    model,
    models,
    without,
)

CONVERT = {"from": "whole", "to": "out", "format": "tf1"}
TEXTS = {"train.csv": CSV}
USE = {"text_a": "text", "task_name": "custom", "init_checkpoint": "whole", "max_seq_length": 9}
PREDICT = {"test_file": "train.csv", "do_predict": True, **USE}
EVALUATE = {"dev_file": "train.csv", "label": "label", "do_eval": True, **USE}
TRAIN = {"train_file": "train.csv", "label": "label", "do_train": True, "train_batch_size": 2, **USE}
KIND = {"architecture": "BertForSequenceClassification"}
CLASSIFIER = KIND | {"labels": ["up", "down"]}
REGRESSION = KIND | {"problem_type": "regression"}
TAGGER = {"architecture": "BertForTokenClassification", "labels": ["up", "down"]}
FINISHED = {
    **checkpoint("out", "model.ckpt-9"), "v.txt": "\n".join([*TOKENS, *map(str, range(194))]),
    "out/head_config.json": json.dumps(CLASSIFIER | {"labels": ["down", "up"]}),
}  # fmt: skip
FURTHER = TRAIN | {"init_checkpoint": None, "bert_config_file": "out/bert_config.json", "vocab_file": "v.txt"}
RUN = {"finished_step": 9, "task_name": "custom"}
WORDS = {"a.conll": "Ada B-PER\nruns O\n\nBo B-PER\n"}
TAGS = {**WORDS, "b.conll": "Ada O\nred B-Y\n", **model(3, TAGGER | {"labels": ["O", "PER-B", "PER-I"]})}
TAG = {"train_batch_size": 1, "init_checkpoint": "whole", "max_seq_length": 9}
PAIRS = {"pairs.csv": "one,two\na,b\nc,d\n"}
COMPARE = {"train_file": "pairs.csv", "text_a": "one", "text_b": "two", "do_train": True, "train_batch_size": 2,
           "init_checkpoint": "whole", "max_seq_length": 9}  # fmt: skip
PRETRAIN = {"input_file": "a.tfrecord", "do_train": True, "init_checkpoint": None,
            "bert_config_file": "whole/bert_config.json", "max_seq_length": 9}  # fmt: skip
CREATE = {"input_file": "text.txt", "output_file": "a.tfrecord", "vocab_file": "whole/vocab.txt"}
LOWER = {"whole/tokenizer_config.json": '{"do_lower_case": true}'}

# script -> see `check_cases`.
CASES = {
    "convert_checkpoint": [
        *models("from", {"to": "out", "format": "tf1"}, with_tokenizer=False),
        ("--report_file: *vocab.txt would overwrite a file that is read", model(),
         CONVERT | {"report_file": "whole/vocab.txt"}),
        ("--from=*nowhere: there is no such", {}, {"from": "nowhere", "to": "out", "format": "tf1"}),
        ("--to=*/model is --from: give another directory", {}, {"from": "model", "to": "model", "format": "tf1"}),
        ("--to=*is a file", {"file": "x"}, {"from": "model", "to": "file", "format": "tf1"}),
        ("--vocab_file=*nowhere", {}, {"from": "model", "to": "out", "format": "tf1", "vocab_file": "nowhere"}),
        ("*out already has files of a model (vocab.txt): give another target, or replace them all with overw",
         {**model(), "out/vocab.txt": "a"}, CONVERT),
        ("*out has the checkpoints of a training run (model.ckpt-5.index): give another target",
         {**model(), "out/model.ckpt-5.index": ""}, CONVERT | {"overwrite": True}),
        ("*whole would replace the source *whole/bert_model.safetensors", model(),
         CONVERT | {"from": "whole/bert_model.safetensors", "to": "whole", "overwrite": True}),
        ("--with_optimizer: *whole/bert_model.safetensors has no optimizer state (no global_step)", model(),
         CONVERT | {"with_optimizer": True}),
        ("--with_optimizer: the huggingface format can't store Adam moments", model(),
         CONVERT | {"with_optimizer": True, "format": "huggingface"}),
        ("format=tf1: this model has causal attention", model(attention="causal"), CONVERT),
        ("format=huggingface: *whole/bert_model.safetensors has the classifier of the original ELECTRA, one layer",
         model(3, family="electra"), CONVERT | {"format": "huggingface"}),
        ("do_lower_case=False contradicts *whole/tokenizer_config.json", {**model(), **LOWER},
         CONVERT | {"do_lower_case": False}),
        ("--from: *whole/bert_model.safetensors is a BERT, which has no generator", model(),
         CONVERT | {"part": "generator"}),
        ("--from: *whole has no bert_config.json (or config.json)", without(model(), "bert_config.json"), CONVERT),
        ("--bert_config_file: *c.json does not fit the weights of *whole",
         {**model(), "c.json": json.dumps(CONFIG | {"vocab_size": 9})}, CONVERT | {"bert_config_file": "c.json"}),
        ("--vocab_file: *v.txt has 7 lines, but vocab_size is 6: it belongs to another model",
         {**model(), "v.txt": "\n".join([*TOKENS, "b"])}, CONVERT | {"vocab_file": "v.txt"}),
        ("--vocab_file: *v.txt is not the vocabulary *, *whole/vocab.txt: 2 of its tokens have other ids there",
         {**model(), "v.txt": "\n".join(["a", *TOKENS[1:5], "[PAD]"])}, CONVERT | {"vocab_file": "v.txt"}),
        ("--vocab_file: *v.txt, line 1: not UTF-8", {**model(), "v.txt": b"\xff"}, CONVERT | {"vocab_file": "v.txt"}),
    ],
    "run_classifier": [
        ("--init_checkpoint: *whole is a BertForTokenClassification, and this run a BertForSequenceClassification"
         ". run_ner.py uses it.", TEXTS | model(2, TAGGER), PREDICT),
        ("--window_stride=9: a window of max_seq_length=9 has 7 tokens of the text", TEXTS | model(),
         TRAIN | {"long_texts": "windows", "window_stride": 9}),
        ("--long_texts=windows contradicts *whole, which was trained on texts that are cut",
         TEXTS | model(2, CLASSIFIER), PREDICT | {"long_texts": "windows"}),
        ("--teacher: *t is a BertForTokenClassification; this task has a BertForSequenceClassification",
         TEXTS | model() | model(2, TAGGER, "t"), TRAIN | {"teacher": "t"}),
        ("--student_layers=0,5: the teacher has the layers 0 to 1, and no 5.", TEXTS | model(2, CLASSIFIER, "t"),
         TRAIN | {"teacher": "t", "init_checkpoint": None, "student_layers": "0,5"}),
        ("--teacher: there is no student. Give --student_layers", TEXTS | model(2, CLASSIFIER, "t"),
         TRAIN | {"teacher": "t", "init_checkpoint": None}),
        ("--output_dir=*out holds a finished run with other settings (*--train_batch_size: 3 there, 2 now",
         {**TEXTS, **FINISHED, "out/run.json": json.dumps(RUN | {"train_batch_size": 3})}, FURTHER),
        ("--output_dir=*out holds a finished run with other settings (*; --text_a: None there, text now; --text_b: b "
         "there, None now;*--train_file: a.csv there, ",
         {**TEXTS, **FINISHED, "out/run.json": json.dumps(RUN | {"text_b": "b", "train_file": "a.csv"})}, FURTHER),
        ("--output_dir=*out holds a run without --lora_rank; this one is with --lora_rank=2 --lora_alpha=4.0",
         {**TEXTS, **FINISHED, "out/run.json": json.dumps(RUN)}, FURTHER | {"lora_rank": 2}),
        ("--output_dir=*out holds a run of its own: choose another one for --search",
         {**TEXTS, **FINISHED, "out/run.json": json.dumps(RUN)},
         FURTHER | {"dev_file": "train.csv", "do_eval": True, "search": "learning_rate=1e-5,2e-5"}),
        ("--output_dir=*out/seed-12346 holds a finished run with other settings (*--text_b: more there, None now",
         {**TEXTS, **model(), "out/seeds.json": "{}", **checkpoint("out/seed-12346", "model.ckpt-9"),
          "out/seed-12346/run.json": json.dumps(RUN | {"text_b": "more"})},
         TRAIN | {"num_seeds": 2, "dev_file": "train.csv", "do_eval": True}),
        ("--output_dir=*out holds a run of --task_name=mrpc, this one is custom",
         {**TEXTS, **FINISHED, "out/run.json": json.dumps(RUN | {"task_name": "mrpc"})}, FURTHER),
    ],
    "run_ner": [
        ("--init_checkpoint: *whole is a BertForSequenceClassification*. run_classifier.py uses it.",
         WORDS | model(2, CLASSIFIER),
         {"test_file": "a.conll", "do_predict": True, "init_checkpoint": "whole", "max_seq_length": 9}),
        ("--init_checkpoint: *whole does not know tags of --train_file: B-Y (*b.conll, line 2). --new_head trains",
         TAGS, TAG | {"train_file": "b.conll", "do_train": True}),
        ("--init_checkpoint: *whole does not know tags of --dev_file: B-Y (*b.conll, line 2). --new_head trains",
         TAGS, TAG | {"train_file": "a.conll", "dev_file": "b.conll", "do_train": True, "do_eval": True}),
        ("--init_checkpoint: *whole does not know tags of --test_file: Y (*b.conll, line 2). --do_train with --new",
         TAGS, TAG | {"test_file": "b.conll", "do_predict": True}),
        ("--init_checkpoint: *whole does not say which tags it has learned (labels in its head_config.json)",
         WORDS | model(3, TAGGER | {"labels": ["LABEL_0", "LABEL_1", "LABEL_2"]}),
         TAG | {"test_file": "a.conll", "do_predict": True}),
        ("--init_checkpoint: *whole has 5 outputs, and this run 3. --new_head trains",
         WORDS | model(5), TAG | {"train_file": "a.conll", "do_train": True}),
        ("--teacher: *t has other labels: only there up, down; only here B-PER, I-PER",
         WORDS | model() | model(3, TAGGER | {"labels": ["up", "down", "O"]}, "t"),
         TAG | {"train_file": "a.conll", "do_train": True, "teacher": "t"}),
        ("--test_file=* is 2 files; give one", TAGS, TAG | {"test_file": "*.conll", "do_predict": True}),
        ("--metric=klue scores characters: --dev_file must have a character a line, and has words", TAGS,
         TAG | {"train_file": "a.conll", "dev_file": "a.conll", "do_train": True, "do_eval": True, "metric": "klue"}),
    ],
    "run_similarity": [
        ("--loss=ranking needs other examples as negatives: --train_batch_size is too small", PAIRS | model(),
         COMPARE | {"train_batch_size": 1}),
        ("--negatives_batch_size=3: a device computes 2 examples at once", PAIRS | model(),
         COMPARE | {"negatives_batch_size": 3}),
        ("--negatives_batch_size is for --loss=ranking; this is --loss=cosine",
         {"pairs.csv": "one,two,score\na,b,1\nc,d,0\n", **model()},
         COMPARE | {"score": "score", "negatives_batch_size": 2}),
    ],
    "run_pretraining": [
        ("Nothing to evaluate: no checkpoint in --output_dir=*out, and no --init_checkpoint",
         {**model(), "a.tfrecord": "x"}, PRETRAIN | {"do_train": None, "do_eval": True}),
    ],
    "create_pretraining_data": [
        ("do_lower_case=False contradicts *whole/tokenizer_config.json", {"text.txt": "a\n", **model(), **LOWER},
         CREATE | {"do_lower_case": False}),
        ("--output_file=*: *vocab.txt would overwrite a file that is read", {"text.txt": "a\n", **model()},
         CREATE | {"output_file": "whole/vocab.txt"}),
        ("--output_file=*: *text.txt would overwrite a file that is read", {"text.txt": "a\n", **model()},
         CREATE | {"output_file": "whole/../text.txt", "input_file": "*.txt"}),
        ("--output_file: *other.txt is there, and not a file of records: choose another name",
         {"text.txt": "a\n", "other.txt": "A text.\n" * 9, **model()}, CREATE | {"output_file": "other.txt"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("script", CASES)
def test_what_does_not_fit_is_said_before_tensorflow_is_imported(script, tmp_path):
    check_cases(script, CASES[script], tmp_path)
