"""What is wrong with files, columns, folders and flags is said before TensorFlow is imported, and names the flag."""

import json

import pytest
from absl import logging
from helpers.early_mistakes import (
    CSV,
    LFS,
    TOKENS,
    check_cases,
    checkpoint,
    model,
    models,
    outcomes,
    record,
    usual_flags,
    without,
)

from bert_tf.data.record_files import MASKED as MASKED_FEATURES
from bert_tf.system import example_bytes, messages

MEGABYTE = 1 << 20
TRAIN = {"train_file": "train.csv", "text_a": "text", "label": "label", "task_name": "custom", "do_train": True,
         "train_batch_size": 2}  # fmt: skip
WINDOWS = {"long_texts": "windows"}
CHOICES = "context,a,b,label\nx,y,z,0\nx,y,z,1\n"
CHOOSE = {"train_file": "choices.csv", "context": "context", "choices": "a,b", "label": "label", "do_train": True,
          "train_batch_size": 2}  # fmt: skip
PAIRS = "one,two,score\na,b,0.5\nc,d,1\n"
COMPARE = {"train_file": "pairs.csv", "text_a": "one", "text_b": "two", "score": "score", "do_train": True,
           "train_batch_size": 2}  # fmt: skip
QUESTION = '{"data": [{"paragraphs": [{"context": "a b", "qas": [%s]}]}]}'
ANSWERED = '{"id": "1", "question": "?", "answers": [{"text": "a", "answer_start": 0}]}'
UNANSWERED = '{"id": "2", "question": "?"}'
ANSWER = {"train_file": "a.json", "do_train": True, "train_batch_size": 1, "init_checkpoint": "whole",
          "max_seq_length": 128, "max_query_length": 9}  # fmt: skip
CREATE = {"input_file": "text.txt", "output_file": "out/a.tfrecord", "vocab_file": "model/vocab.txt"}
EXTRACT = {"input_file": "text.txt", "output_file": "f.jsonl", "init_checkpoint": "whole"}
PRETRAIN = {"input_file": "a.tfrecord", "do_train": True, "max_seq_length": 1}
SUMMARY = {
    "output_files": ["a.tfrecord"], "vocab_sha256": "0",
    "flags": {"vocab_file": "other.txt", "do_lower_case": True, "strip_accents": True},
}  # fmt: skip
NUMBERS = {
    name: example_bytes.int64_feature(name.encode(), b"\1") for name in ("input_ids", "input_mask", "segment_ids")
}


def beyond(row: str) -> str:
    """Many rows, and a wrong one as the last of those in the first megabyte."""
    return row * ((MEGABYTE - 50) // len(row))


ELECTRA = record(example_bytes.example(NUMBERS.values()))
MASKED = record(example_bytes.example([
    *(example_bytes.int64_feature(name.encode(), b"\0") for name in MASKED_FEATURES if name != "masked_lm_weights"),
    example_bytes.float_feature(b"masked_lm_weights", [1.0]),
]))  # fmt: skip


# script -> what it says, the files that are written, and the flags that are given beside or instead of the usual ones.
CASES = {
    "run_classifier": [
        ("Which task? Give --task_name.", {}, {"do_train": True}),
        ("--task_name=mprc is not one of *mrpc", {}, {"do_train": True, "task_name": "mprc"}),
        ("*train.tsv does not exist: --task_name=mrpc needs it. Give --data_dir=*/MRPC", {"MRPC/train.tsv": "x"},
         {"task_name": "mrpc", "data_dir": ".", "do_train": True}),
        ("Nothing to evaluate or predict with: *out has no checkpoint * The run there ended",
         {"new.csv": CSV, "out/run.json": '{"task_name": "custom"}'},
         {"task_name": "custom", "text_a": "text", "test_file": "new.csv", "do_predict": True,
          "init_checkpoint": None}),
        *((message, {"train.csv": CSV, "t/bert_model.safetensors": "x"}, TRAIN | given) for message, given in (
            ("--long_texts=windows is for single texts; leave out --text_b=more", WINDOWS | {"text_b": "more"}),
            ("--teacher reads a text as one row, so that --long_texts=windows can't learn", WINDOWS | {"teacher": "t"}),
            ("--max_windows=3 is for --long_texts=windows", {"long_texts": "cut", "max_windows": 3}),
            ("--learning_rate=0 must be more than 0, at", {"learning_rate": 0}),
            ("--text_b and --label are both 'label'", {"text_b": "label"}),
            ("--language is for GLUE's tasks", {"language": "ko"}),
        )),
        ("--train_file: *train.csv is empty", {"train.csv": ""}, TRAIN),
        ("--output_dir=*whole is the folder of --init_checkpoint: choose another", {"new.csv": CSV, **model(2)},
         {"test_file": "new.csv", "text_a": "text", "task_name": "custom", "do_predict": True,
          "init_checkpoint": "whole", "output_dir": "whole"}),
        ("--dev_file=*nowhere.csv", {"train.csv": CSV}, TRAIN | {"dev_file": "nowhere.csv"}),
        ("--init_checkpoint=*nowhere", {"train.csv": CSV}, TRAIN | {"init_checkpoint": "nowhere"}),
        ("--vocab_file=*nowhere", {"train.csv": CSV}, TRAIN | {"vocab_file": "nowhere"}),
        ("--vocab_file: *empty is empty", {"train.csv": CSV, "empty": ""}, TRAIN | {"vocab_file": "empty"}),
        ("--bert_config_file=*nowhere", {"train.csv": CSV}, TRAIN | {"bert_config_file": "nowhere"}),
        ("--vocab_file: *few.txt lacks [CLS], [SEP], [MASK]", {"train.csv": CSV, "few.txt": "[PAD]\n[UNK]"},
         TRAIN | {"vocab_file": "few.txt"}),
        ("--vocab_file: *v.txt is not the vocabulary *, *whole/vocab.txt: 2 of its tokens have other ids there, such "
         "as 'a', 5 there and 0 here. Leave --vocab_file out",
         {"train.csv": CSV, **model(), "v.txt": "\n".join(["a", *TOKENS[1:5], "[PAD]"])},
         TRAIN | {"vocab_file": "v.txt", "init_checkpoint": "whole"}),
        ("--bert_config_file: *bad.json, line 1, column 2: not JSON", {"train.csv": CSV, "bad.json": "{vocab"},
         TRAIN | {"bert_config_file": "bad.json"}),
        ("--bert_config_file: *bad.json: vocab_size is missing", {"train.csv": CSV, "bad.json": "{}"},
         TRAIN | {"bert_config_file": "bad.json"}),
        ("--init_checkpoint: *train.csv is not a known kind of weight file", {"train.csv": CSV},
         TRAIN | {"init_checkpoint": "train.csv"}),
        ("--init_checkpoint: *a.keras: a .keras file is for keras.models.load_model: give",
         {"train.csv": CSV, "a.keras": "PK"}, TRAIN | {"init_checkpoint": "a.keras"}),
        ("--teacher: *odd has no weights", {"train.csv": CSV, "odd/vocab.txt": "a"}, TRAIN | {"teacher": "odd"}),
        *models("init_checkpoint", TRAIN),
        ("--do_train needs --train_file", {}, TRAIN | {"train_file": None}),
        ("--do_eval needs --dev_file", {"train.csv": CSV}, TRAIN | {"do_eval": True}),
        ("--use_best_model chooses by the results on a dev set: give --dev_file", {"train.csv": CSV},
         TRAIN | {"use_best_model": True}),
        ("--text_a and --label are both 'text'", {"train.csv": CSV}, TRAIN | {"label": "text"}),
        ("--max_seq_length=129 is more than max_position_embeddings=128 of *whole/bert_config.json",
         {"train.csv": CSV, **model()}, TRAIN | {"init_checkpoint": "whole", "max_seq_length": 129}),
        ("freeze_layers=3: the model has 2 layers", {"train.csv": CSV, **model()},
         TRAIN | {"init_checkpoint": "whole", "freeze_layers": 3}),
        ("lora_rank=5: from 1 to the hidden_size of this BERT, 4", {"train.csv": CSV, **model()},
         TRAIN | {"init_checkpoint": "whole", "lora_rank": 5}),
        ("--window_stride=9 is for --long_texts=windows", {"train.csv": CSV, **model()},
         TRAIN | {"init_checkpoint": "whole", "window_stride": 9}),
        ("--max_seq_length=2 must be at least 3", {"train.csv": CSV}, TRAIN | {"max_seq_length": 2}),
        ("--seed=-1 must be at least 0", {"train.csv": CSV}, TRAIN | {"seed": -1}),
        ("--init_checkpoint: *whole has no tokenizer", {"train.csv": CSV, **without(model(), "vocab.txt")},
         TRAIN | {"init_checkpoint": "whole"}),
        ("--init_checkpoint: *whole has no configuration", {"train.csv": CSV, **without(model(), "bert_config.json")},
         TRAIN | {"init_checkpoint": "whole"}),
        ("--init_checkpoint: *bert_model.safetensors is a pointer of Git LFS, *: git lfs pull.",
         {"train.csv": CSV, **model(), "whole/bert_model.safetensors": LFS}, TRAIN | {"init_checkpoint": "whole"}),
        ("--init_checkpoint: *whole/bert_model.safetensors does not have the size of *bert_config.json; *position",
         {"train.csv": CSV, **model(max_position_embeddings=64)},
         TRAIN | {"init_checkpoint": "whole", "max_seq_length": 9}),
        ("--init_checkpoint: *c.ckpt: its values can't be read: *",
         {"train.csv": CSV, **checkpoint("whole", "c.ckpt", data=lambda content: content[:9])},
         TRAIN | {"init_checkpoint": "whole"}),
        ("--init_checkpoint: *pytorch_model.bin is not complete: its end is missing; download",
         {"train.csv": CSV, **without(model(), "safetensors"), "whole/pytorch_model.bin": b"PK\3\4" + b"x" * 99},
         TRAIN | {"init_checkpoint": "whole"}),
        ("--init_checkpoint: *one.bin is not complete: its end is missing; download",
         {"train.csv": CSV, **without(model(), "safetensors"), "whole/one.bin": b"PK\3\4" + b"x" * 99,
          "whole/pytorch_model.bin.index.json": '{"weight_map": {"a": "one.bin"}}'},
         TRAIN | {"init_checkpoint": "whole"}),
        ("--init_checkpoint: *bert_model.safetensors is not a complete safetensors file",
         {"train.csv": CSV, **model(), "whole/bert_model.safetensors": model()["whole/bert_model.safetensors"][:-4]},
         TRAIN | {"init_checkpoint": "whole"}),
        ("--init_checkpoint: *c.ckpt: can't be read as a TensorFlow checkpoint: *it is a pointer of Git LFS",
         {"train.csv": CSV, **checkpoint("whole", "c.ckpt", index=lambda _: LFS.encode())},
         TRAIN | {"init_checkpoint": "whole"}),
        ("--init_checkpoint: *c.ckpt has no output layer for this task (output_weights): run_squad.py uses this Bert",
         {"test.csv": "text\na\n", **checkpoint("whole", "c.ckpt"),
          "v.txt": "\n".join([*TOKENS, *map(str, range(194))])},
         {"test_file": "test.csv", "text_a": "text", "task_name": "custom", "do_predict": True,
          "init_checkpoint": "whole", "vocab_file": "v.txt", "max_seq_length": 9}),
        ("--output_dir=*out holds a run of run_ner.py: choose another directory",
         {"train.csv": CSV, "out/run.json": '{"tag_scheme": "iob2"}'}, TRAIN),
        ("--output_dir=*: *train.csv is a file; a directory is needed", {"train.csv": CSV},
         TRAIN | {"output_dir": "train.csv/deep/er"}),
        ("--output_dir=/proc/sys/x*", {"train.csv": CSV}, TRAIN | {"output_dir": "/proc/sys/x"}),
    ],
    "run_swag": [
        *models("init_checkpoint", CHOOSE)[:1],
        ("--train_file: *choices.csv has no example", {"choices.csv": "context,a,b,label\n"}, CHOOSE),
        ("--train_file: *line 4: *label*'7'*", {"choices.csv": CHOICES + "x,y,z,7\n"}, CHOOSE),
        ("--train_file: *line 4: 2 columns, but line 1 has 4", {"choices.csv": CHOICES + "x,y\n"}, CHOOSE),
        ("--do_predict needs --test_file", {"choices.csv": CHOICES}, CHOOSE | {"do_predict": True}),
        ("--context needs --choices beside it; without", {"choices.csv": CHOICES}, CHOOSE | {"choices": None}),
        ("--choices needs --context beside it; without", {"choices.csv": CHOICES}, CHOOSE | {"context": None}),
        ("--label needs --context and --choices", {"choices.csv": CHOICES},
         CHOOSE | {"context": None, "choices": None}),
        ("--context and --choices (1) are both 'a': give each its own column", {"choices.csv": CHOICES},
         CHOOSE | {"context": "a"}),
        ("--first_label=AB must be a number or one letter", {"choices.csv": CHOICES}, CHOOSE | {"first_label": "AB"}),
    ],
    "run_similarity": [
        *models("init_checkpoint", COMPARE)[:1],
        ("--train_file: *pairs.csv is empty", {"pairs.csv": ""}, COMPARE),
        ("--train_file: *line 4: a number is expected as score, found 'high'", {"pairs.csv": PAIRS + "e,f,high\n"},
         COMPARE),
    ],
    "run_ner": [
        *models("init_checkpoint", {"train_file": "words.conll", "do_train": True})[:1],
        ("--train_file: *words.conll has no words", {"words.conll": "\n\n"},
         {"train_file": "words.conll", "do_train": True}),
        ("--train_file: *words.conll, line *: *3*2", {"words.conll": beyond("Ada B-PER\nruns O\n\n") + "a b O\n"},
         {"train_file": "words.conll", "do_train": True}),
        ("--train_file: all words have the same tag, 'O'", {"a.conll": "Ada O\nruns O\n", "b.conll": "x O\n"},
         {"train_file": "*.conll", "do_train": True}),
        ("--train_file: *a.conll: no blank line ends a sentence, so that it is one sentence of 60 words",
         {"a.conll": "Ada B-PER\nruns O\n" * 30}, {"train_file": "a.conll", "do_train": True}),
        ("--dev_file: *b.conll has words only, and no column of tags",
         {"a.conll": "Ada O\nruns B-X\n", "b.conll": "x\n"},
         {"train_file": "a.conll", "dev_file": "b.conll", "do_train": True, "do_eval": True}),
        ("--train_file: *one.conll, line 2*", {"one.conll": "Ada B-PER\nruns\n", "two.conll": "Ada B-PER\n"},
         {"train_file": "*.conll", "do_train": True}),
        ("--num_seeds chooses by the results on a dev set: give --do_eval", {"a.conll": "Ada O\n"},
         {"train_file": "a.conll", "do_train": True, "num_seeds": 2}),
        ("--dev_file has tags that --train_file lacks, so that they can't be learned: Y",
         {"a.conll": "Ada O\nruns B-X\n", "b.conll": "Ada B-Y\n"},
         {"train_file": "a.conll", "dev_file": "b.conll", "do_train": True, "do_eval": True}),
    ],
    "run_squad": [
        ("--train_file: *a.json*", {"a.json": ""}, {"train_file": "a.json", "do_train": True}),
        *models("init_checkpoint", {"train_file": "a.json", "do_train": True})[:1],
        ("max_seq_length=384 must be greater than max_query_length=381 + 3", {"a.json": QUESTION % ANSWERED},
         {"train_file": "a.json", "do_train": True, "max_query_length": 381}),
        ("--num_seeds is for training: give --do_train", {"a.json": QUESTION % ANSWERED},
         {"predict_file": "a.json", "do_predict": True, "num_seeds": 3}),
        ("--train_file: no file matches *none", {}, {"train_file": "none.json", "do_train": True}),
        ("--teacher: *whole has no output layer for this task (cls/squad/output_weights)",
         {"a.json": QUESTION % ANSWERED, **model()}, ANSWER | {"teacher": "whole"}),
        ("--init_checkpoint: *bert_model.safetensors has no output layer for this task (cls/squad/output_weights): "
         "run_swag.py uses this BertForM",
         {"a.json": QUESTION % ANSWERED, **model(1, {"architecture": "BertForMultipleChoice"})},
         {"predict_file": "a.json", "do_predict": True, "init_checkpoint": "whole",
          "max_seq_length": 128}),
    ],
    "run_domain": [
        *models("init_checkpoint", {"input_file": "text.txt"})[:1],
        ("--train_file: *only one class", {"text.txt": "a\n", "train.csv": "text,label\na,up\nb,up\n", "dev.csv": CSV},
         {"input_file": "text.txt", "train_file": "train.csv", "dev_file": "dev.csv", "text_a": "text",
          "label": "label"}),
        ("--output_dir=*is a file", {"text.txt": "a\n"}, {"input_file": "text.txt", "output_dir": "text.txt"}),
    ],
    "run_pretraining": [
        ("--input_file: *a.tfrecord is empty", {"a.tfrecord": ""}, {"input_file": "a.tfrecord", "do_train": True}),
        ("--eval_input_file: no file matches *", {"a.tfrecord": ELECTRA}, PRETRAIN | {"eval_input_file": "nowhere"}),
        ("--input_file: *a.tfrecord: record 0 at byte 0 is truncated: *",
         {"a.tfrecord": "x"}, PRETRAIN),
        ("--input_file: *a.tfrecord is not a TFRecord file: it looks like JSON",
         {"a.tfrecord": '{"rows": 7}'}, PRETRAIN),
        ("--input_file: *a.tfrecord: the first record (byte 0) is not a tf.train.Example",
         {"a.tfrecord": record(b"text")}, PRETRAIN),
        ("--eval_input_file: *b.tfrecord: the first record (byte 0) has no feature 'input_mask'; it has input_ids",
         {"a.tfrecord": ELECTRA, "b.tfrecord": record(example_bytes.example([NUMBERS["input_ids"]]))},
         PRETRAIN | {"eval_input_file": "b.tfrecord"}),
        ("--input_file: *the first record (byte 0) has 1 values in feature 'input_ids', expected 128; give --max_seq",
         {"a.tfrecord": ELECTRA}, PRETRAIN | {"bert_size": "tiny", "init_checkpoint": None, "max_seq_length": 128}),
        ("--input_file: *has 9 in feature 'input_ids', expected 0 to 5 (vocab_size=6 in *whole: was the data",
         {"a.tfrecord": record(example_bytes.example(
             example_bytes.int64_feature(name.encode(), b"\x09") for name in NUMBERS)), **model()},
         PRETRAIN | {"init_checkpoint": "whole"}),
        ("--max_seq_length=129 is more than the 128 tokens that max_position_embeddings=128 of *whole allows",
         {"a.tfrecord": ELECTRA, **model()}, PRETRAIN | {"init_checkpoint": "whole", "max_seq_length": 129}),
        ("--do_whole_word_mask is for unmasked records; these were already masked",
         {"a.tfrecord": MASKED, **model()}, PRETRAIN | {"init_checkpoint": "whole", "max_predictions_per_seq": 1,
          "do_whole_word_mask": True}),
        ("--train_batch_size=3 can't be divided by --gradient_accumulation_steps=2", {"a.tfrecord": ELECTRA},
         PRETRAIN | {"train_batch_size": 3, "gradient_accumulation_steps": 2}),
        ("The records are unmasked *: give --vocab_file", {"a.tfrecord": ELECTRA},
         PRETRAIN | {"bert_size": "tiny", "init_checkpoint": None}),
        ("--input_file: masked records, but ELECTRA masks its texts", {"a.tfrecord": MASKED},
         PRETRAIN | {"bert_size": "tiny", "init_checkpoint": None, "objective": "electra"}),
        ("--init_checkpoint: *whole/bert_model.safetensors does not have the size of *; 42 variables differ",
         {"a.tfrecord": ELECTRA, **model(hidden_size=8)}, PRETRAIN | {"init_checkpoint": "whole"}),
        ("--init_checkpoint: *whole/bert_model.safetensors does not have the size of --bert_size=tiny; 44 variables",
         {"a.tfrecord": ELECTRA, **model()},
         PRETRAIN | {"init_checkpoint": "whole", "bert_size": "tiny", "vocab_file": "whole/vocab.txt"}),
        ("--vocab_file=*v.txt has token id 6, but the model's vocab_size is 6: it is the vocabulary of another model",
         {"a.tfrecord": ELECTRA, **model(), "v.txt": "\n".join([*TOKENS, "b"])},
         PRETRAIN | {"init_checkpoint": "whole", "vocab_file": "v.txt"}),
        ("--vocab_file=*whole/vocab.txt is not the vocabulary that the records were made with, other.txt (*pretraining",
         {"a.tfrecord": ELECTRA, **model(), "pretraining_data.a.json": json.dumps(SUMMARY)},
         PRETRAIN | {"init_checkpoint": "whole", "vocab_file": "whole/vocab.txt"}),
        ("--teacher: *t/c.ckpt has no output layer for this task (cls/predictions/output_bias): a teacher of a",
         {"a.tfrecord": ELECTRA, **model(), **checkpoint("t", "c.ckpt")},
         PRETRAIN | {"init_checkpoint": "whole", "teacher": "t/c.ckpt"}),
        ("--student_layers=0,5: the teacher has the layers 0 to 1, and no 5.", {"a.tfrecord": ELECTRA, **model()},
         PRETRAIN | {"init_checkpoint": None, "teacher": "whole", "student_layers": "0,5"}),
        ("--teacher: *t does not read the student's rows: its token 5 is 'b', the student's 'a'.",
         {"a.tfrecord": ELECTRA, **model(), **model(name="t"), "t/vocab.txt": "\n".join([*TOKENS[:5], "b"])},
         PRETRAIN | {"init_checkpoint": "whole", "vocab_file": "whole/vocab.txt", "teacher": "t"}),
        ("--output_dir=*out holds a run without --teacher; this one is with --teacher=*whole. Choose another",
         {"a.tfrecord": ELECTRA, **model(), **checkpoint("out", "model.ckpt-1"), "out/run.json": '{"seed": 1}'},
         PRETRAIN | {"init_checkpoint": None, "bert_config_file": "whole/bert_config.json", "teacher": "whole"}),
        ("--output_dir=*out holds a run of another configuration (*hidden_size: 32 there, 4 now",
         {"a.tfrecord": ELECTRA, **model(), **checkpoint("out", "model.ckpt-1")},
         PRETRAIN | {"init_checkpoint": None, "bert_config_file": "whole/bert_config.json",
                     "vocab_file": "whole/vocab.txt"}),
        ("--output_dir=*out holds a run of run_ner.py: choose another directory",
         {"a.tfrecord": ELECTRA, "out/run.json": '{"tag_scheme": "iob2"}', **model()},
         PRETRAIN | {"bert_config_file": "whole/bert_config.json"}),
        ("--vocab_file: *few.txt lacks [MASK]", {"a.tfrecord": "x", "few.txt": "\n".join(TOKENS[:4])},
         PRETRAIN | {"vocab_file": "few.txt", "bert_size": "tiny"}),
        ("--generator_config_file: *bad.json: vocab_size is missing", {"a.tfrecord": "x", "bad.json": "{}"},
         PRETRAIN | {"generator_config_file": "bad.json", "objective": "electra"}),
        *models("init_checkpoint", PRETRAIN | {"input_file": "*"}, with_tokenizer=False),
        ("--init_checkpoint=*nowhere", {"a.tfrecord": "x"},
         {"input_file": "a.tfrecord", "do_train": True, "init_checkpoint": "nowhere"}),
        ("--output_dir=*is a file", {"a.tfrecord": "x"},
         {"input_file": "a.tfrecord", "do_train": True, "output_dir": "a.tfrecord"}),
    ],
    "create_pretraining_data": [
        ("--input_file: *text.txt is empty", {"text.txt": ""}, CREATE),
        ("--vocab_file=*nowhere", {"text.txt": "a\n"}, CREATE | {"vocab_file": "nowhere"}),
        ("--output_file=*is a file; a directory is needed", {"text.txt": "a\n"},
         CREATE | {"output_file": "text.txt/a"}),
    ],
    "create_vocab": [
        ("--input_file: *text.txt is empty", {"text.txt": ""}, {"input_file": "text.txt", "output_file": "v.txt"}),
        ("--output_file=*is a directory", {"text.txt": "a\n"}, {"input_file": "text.txt", "output_file": "model"}),
        ("--output_file=*whole/vocab.txt is the vocabulary of a model", {"text.txt": "a\n", **model()},
         {"input_file": "text.txt", "output_file": "whole/vocab.txt"}),
        ("--vocab_size=104 is too small: --num_unused and the 5 special tokens take 104", {"text.txt": "a\n"},
         {"input_file": "text.txt", "output_file": "v.txt", "vocab_size": 104}),
        ("--vocab_size=110 is too small: * need at least 156. Raise it",
         {"text.txt": "abcdefghijklmnopqrstuvwxyz\n" * 5000},
         {"input_file": "text.txt", "output_file": "v.txt", "vocab_size": 110}),
    ],
    "extract_features": [
        *models("init_checkpoint", {"input_file": "text.txt", "output_file": "f.jsonl"})[:1],
        ("--input_file: *nowhere is not a file", {}, {"input_file": "nowhere", "output_file": "f.jsonl"}),
        ("--input_file: *text.txt is empty", {"text.txt": ""}, {"input_file": "text.txt", "output_file": "f.jsonl"}),
        ("--input_file: *text.txt, line 2: not UTF-8", {"text.txt": b"a\n\xff\n"},
         {"input_file": "text.txt", "output_file": "f.jsonl"}),
        ("--output_file=*", {"text.txt": "a\n"}, {"input_file": "text.txt", "output_file": "text.txt/f.jsonl"}),
        ("--layers=5: there is no layer 5, the model has 2: -2 to -1, or 0 to 1", {"text.txt": "a\n", **model()},
         EXTRACT | {"layers": "5"}),
        ("--max_seq_length=129 is more than max_position_embeddings=128", {"text.txt": "a\n", **model()},
         EXTRACT | {"max_seq_length": 129}),
    ],
    "export_saved_model": [
        *models("model_dir", {"export_dir": "out"}, with_tokenizer=False),
        ("--model_dir=*nowhere: there is no such", {}, {"model_dir": "nowhere", "export_dir": "out"}),
        ("--model_dir: *whole has no output layer for ner (output_weights): fine-tune it first (run_ner.py)", model(),
         {"model_dir": "whole", "export_dir": "out", "task": "ner"}),
        ("max_seq_length=129: the model takes 3 to 128", model(),
         {"model_dir": "whole", "export_dir": "out", "max_seq_length": 129}),
        ("--export_dir=*is a file", {"file": "x"}, {"model_dir": "model", "export_dir": "file"}),
    ],
    "serve_client": [
        ("--input_file=*nowhere", {}, {"model": "m", "input_file": "nowhere"}),
        ("--input_file: *rows.jsonl is empty", {"rows.jsonl": ""}, {"model": "m", "input_file": "rows.jsonl"}),
        ("*rows.jsonl, line 1, column 2: not JSON", {"rows.jsonl": "{x"}, {"model": "m", "input_file": "rows.jsonl"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("script", CASES)
def test_mistakes_in_files_are_named_before_tensorflow_is_imported(script, tmp_path):
    check_cases(script, CASES[script], tmp_path)


def test_addresses_in_the_web_are_refused_before_tensorflow_is_imported(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    (tmp_path / "bert_model.safetensors").write_text("x")
    flags = [
        f"--init_checkpoint={tmp_path}",
        "--input_file=https://example.org/a.txt",
        f"--output_file={tmp_path}/f.jsonl",
    ]
    [(outcome, is_heavy)] = outcomes("extract_features", [flags])
    assert outcome.startswith("ValueError: --input_file=https://example.org/a.txt is in the web: download it first")
    assert not is_heavy


WORKERS = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}
TF_CONFIGS = {
    "{not": [("run_classifier", "mirrored", "malformed (Expecting property name"),
             ("run_pretraining", "multi_worker_mirrored", "malformed (Expecting property name")],
    json.dumps({"cluster": WORKERS["cluster"]}): [("run_classifier", "multi_worker_mirrored", "in which 'task'")],
    json.dumps(WORKERS): [("run_pretraining", "multi_worker_mirrored", "task index 2, but 2 of type 'worker'")],
}  # fmt: skip


@pytest.mark.parametrize("value", TF_CONFIGS)
def test_a_wrong_description_of_the_machines_is_named_before_tensorflow_is_imported(value, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", value)
    for script, strategy, message in TF_CONFIGS[value]:
        given = {"run_classifier": TRAIN, "run_pretraining": PRETRAIN}[script]
        flags = usual_flags(script, given | {"distribution_strategy": strategy}, tmp_path)
        [(outcome, is_heavy)] = outcomes(script, [flags])
        assert f"--distribution_strategy={strategy} reads the environment variable TF_CONFIG" in outcome, outcome
        assert message in outcome and not is_heavy, outcome


# script -> a file in CP949, the flags beside the usual ones, and what is said of it with --encoding.
IN_KOREAN = {
    "run_classifier": ("a.csv", "문장,감정\n재미있어요,긍정\n느려요,부정\n",
                       TRAIN | {"train_file": "a.csv", "text_a": "문장", "label": "감정", "labels": "긍정,중립"},
                       "line 3: the label '부정' is not one of '긍정', '중립'"),
    "run_swag": ("a.csv", "문맥,가,나,답\n점심,밥,빵,0\n저녁,밥,빵,칠\n",
                 {"train_file": "a.csv", "context": "문맥", "choices": "가,나", "label": "답", "do_train": True},
                 "line 3: the label '칠' is not one of"),
    "run_similarity": ("a.csv", "하나,둘,점수\n밥,빵,높음\n",
                       {"train_file": "a.csv", "text_a": "하나", "text_b": "둘", "score": "점수", "do_train": True},
                       "line 2: a number is expected as score, found '높음'"),
    "run_ner": ("a.conll", "서울 지역\n부산 지역\n", {"train_file": "a.conll", "do_train": True, "tag_scheme": "plain"},
                "all words have the same tag, '지역'"),
    "run_squad": ("a.json", QUESTION % f"{ANSWERED}, {ANSWERED.replace('?', '누구')}",
                  {"predict_file": "a.json", "do_predict": True},
                  "the id '1' is used for two different questions ('?' and '누구')"),
    "create_vocab": ("a.txt", "좋아요\n",
                     {"input_file": "a.txt", "output_file": "v.txt", "do_lower_case": False, "vocab_size": 105},
                     "and 3 characters (3 of them also with ##) need 110"),
    "extract_features": ("a.txt", "좋아요\n", {"input_file": "a.txt", "output_file": "f.jsonl"},
                         "is not a complete safetensors file"),
    "serve_client": ("a.jsonl", '{"문장": "좋아요"}\n{"글": "좋아요"}\n', {"model": "m", "input_file": "a.jsonl"},
                     "line 2: expected an object with the same keys as line 1"),
}  # fmt: skip


@pytest.mark.parametrize("script", IN_KOREAN)
def test_encoding_of_every_script_that_reads_texts(script, tmp_path):
    name, content, given, message = IN_KOREAN[script]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (tmp_path / "model" / "bert_model.safetensors").write_text("")
    (tmp_path / name).write_bytes(content.encode("cp949"))
    flags = usual_flags(script, given, tmp_path)
    (without, _), (found, _) = outcomes(script, [flags, [*flags, "--encoding=cp949"]])
    assert "line 1: not UTF-8" in without and "--encoding=cp949 reads it" in without, without
    assert message in found, found


def test_what_a_check_reads_is_told_of_by_the_run():
    assert messages.is_first("test", 1) and not messages.is_first("test", 1)
    with messages.unheard():
        assert not messages.is_first("test", 2) and logging.get_absl_logger().disabled
    assert messages.is_first("test", 2) and not logging.get_absl_logger().disabled
