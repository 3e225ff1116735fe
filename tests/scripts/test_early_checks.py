"""What is wrong with files, columns, folders and flags is said before TensorFlow is imported, and names the flag."""

import re

import pytest
from absl import logging
from helpers.early_mistakes import outcomes

from bert_tf.system import messages

MEGABYTE = 1 << 20
CSV = "text,label\n" + "good film,up\nbad film,down\n" * 3
TRAIN = {"train_file": "train.csv", "text_a": "text", "label": "label", "task_name": "custom", "do_train": True}
CHOICES = "context,a,b,label\nx,y,z,0\nx,y,z,1\n"
CHOOSE = {"train_file": "choices.csv", "context": "context", "choices": "a,b", "label": "label", "do_train": True}
PAIRS = "one,two,score\na,b,0.5\nc,d,1\n"
COMPARE = {"train_file": "pairs.csv", "text_a": "one", "text_b": "two", "score": "score", "do_train": True}
QUESTION = '{"data": [{"paragraphs": [{"context": "a b", "qas": [%s]}]}]}'
ANSWERED = '{"id": "1", "question": "?", "answers": [{"text": "a", "answer_start": 0}]}'
GIVEN = {"init_checkpoint": "model", "output_dir": "out"}
CREATE = {"input_file": "text.txt", "output_file": "out/a.tfrecord", "vocab_file": "model/vocab.txt"}


def beyond(row: str) -> str:
    """Many rows, and a wrong one as the last of those in the first megabyte."""
    return row * ((MEGABYTE - 50) // len(row))


# script -> what it says, the files that are written, and the flags that are given beside or instead of the usual ones.
CASES = {
    "run_classifier": [
        ("--train_file: *train.csv is empty", {"train.csv": ""}, TRAIN),
        ("--train_file: *train.csv has no example", {"train.csv": "text,label\n"}, TRAIN),
        ("--train_file: *only one class, 'up', in the column 'label'", {"train.csv": "text,label\na,up\nb,up\n"},
         TRAIN),
        ("--train_file: *only one class, 'up'", {"train.csv": "text,label\n" + beyond("film,up\n") * 2}, TRAIN),
        ("--train_file: *, line 1: no column 'stars'", {"train.csv": CSV}, TRAIN | {"label": "stars"}),
        ("--train_file: *, line 8: 3 columns, but line 1 has 2", {"train.csv": CSV + "a,b,c\n"}, TRAIN),
        ("--train_file: *: 3 columns, but line 1 has 2",
         {"train.csv": "text,label\n" + beyond("film,up\nbook,down\n") + "a,b,c\n" + CSV * 9}, TRAIN),
        ("--train_file: *train.jsonl, line 2, column 2: not JSON",
         {"train.jsonl": '{"text": "a", "label": "b"}\n{text\n'}, TRAIN | {"train_file": "train.jsonl"}),
        ("--train_file: *, line 3: the label 'down' is not one of 'up', 'none'",
         {"train.csv": CSV}, TRAIN | {"labels": "up,none"}),
        ("--dev_file: *dev.csv, line 2: the label 'sideways' is not one of 'down', 'up'; if it is a class, list it in",
         {"train.csv": CSV, "dev.csv": "text,label\na,sideways\n"}, TRAIN | {"dev_file": "dev.csv"}),
        ("--train_file: *, line 2: a number is expected as label, found 'up'", {"train.csv": CSV},
         TRAIN | {"regression": True}),
        ("--dev_file=*nowhere.csv", {"train.csv": CSV}, TRAIN | {"dev_file": "nowhere.csv"}),
        ("--test_file: *test.csv, line 1: no column 'text'", {"test.csv": "words\na\n"},
         {"test_file": "test.csv", "text_a": "text", "task_name": "custom", "do_predict": True}),
        ("--data_dir: *train.tsv, line 3: the label '7' is not one of '0', '1'",
         {"train.tsv": "sentence\tlabel\ngood film\t1\nbad film\t7\n"},
         {"task_name": "sst-2", "data_dir": ".", "do_train": True}),
        ("--init_checkpoint=*nowhere", {"train.csv": CSV}, TRAIN | {"init_checkpoint": "nowhere"}),
        ("--vocab_file=*nowhere", {"train.csv": CSV}, TRAIN | {"vocab_file": "nowhere"}),
        ("--vocab_file: *empty is empty", {"train.csv": CSV, "empty": ""}, TRAIN | {"vocab_file": "empty"}),
        ("--bert_config_file=*nowhere", {"train.csv": CSV}, TRAIN | {"bert_config_file": "nowhere"}),
        ("--bert_config_file: *bad.json, line 1, column 2: not JSON", {"train.csv": CSV, "bad.json": "{vocab"},
         TRAIN | {"bert_config_file": "bad.json"}),
        ("--init_checkpoint: *model/config.json is not a JSON object but list",
         {"train.csv": CSV, "model/config.json": "[]"}, TRAIN | {"init_checkpoint": "model"}),
        ("--output_dir=*: *train.csv is a file; a directory is needed", {"train.csv": CSV},
         TRAIN | {"output_dir": "train.csv"}),
        ("--output_dir=*: *train.csv is a file; a directory is needed", {"train.csv": CSV},
         TRAIN | {"output_dir": "train.csv/deep/er"}),
        ("--output_dir=/proc/sys/x*", {"train.csv": CSV}, TRAIN | {"output_dir": "/proc/sys/x"}),
    ],
    "run_swag": [
        ("--train_file: *choices.csv has no example", {"choices.csv": "context,a,b,label\n"}, CHOOSE),
        ("--train_file: *line 4: *label*'7'*", {"choices.csv": CHOICES + "x,y,z,7\n"}, CHOOSE),
        ("--train_file: *line 4: 2 columns, but line 1 has 4", {"choices.csv": CHOICES + "x,y\n"}, CHOOSE),
        ("--output_dir=*is a file", {"choices.csv": CHOICES}, CHOOSE | {"output_dir": "choices.csv"}),
    ],
    "run_similarity": [
        ("--train_file: *pairs.csv is empty", {"pairs.csv": ""}, COMPARE),
        ("--train_file: *line 4: a number is expected as score, found 'high'", {"pairs.csv": PAIRS + "e,f,high\n"},
         COMPARE),
        ("--output_dir=*is a file", {"pairs.csv": PAIRS}, COMPARE | {"output_dir": "pairs.csv"}),
    ],
    "run_ner": [
        ("--train_file: *words.conll has no words", {"words.conll": "\n\n"},
         {"train_file": "words.conll", "do_train": True}),
        ("--train_file: *words.conll, line *: *3*2", {"words.conll": beyond("Ada B-PER\nruns O\n\n") + "a b O\n"},
         {"train_file": "words.conll", "do_train": True}),
        ("--train_file: all words have the same tag, 'O'", {"a.conll": "Ada O\nruns O\n", "b.conll": "x O\n"},
         {"train_file": "*.conll", "do_train": True}),
        ("--dev_file: *b.conll has words only, and no column of tags",
         {"a.conll": "Ada O\nruns B-X\n", "b.conll": "x\n"},
         {"train_file": "a.conll", "dev_file": "b.conll", "do_train": True, "do_eval": True}),
        ("--train_file: *one.conll, line 2*", {"one.conll": "Ada B-PER\nruns\n", "two.conll": "Ada B-PER\n"},
         {"train_file": "*.conll", "do_train": True}),
        ("--output_dir=*is a file", {"a.conll": "Ada O\n"},
         {"train_file": "a.conll", "do_train": True, "output_dir": "a.conll"}),
    ],
    "run_squad": [
        ("--train_file: *a.json*", {"a.json": ""}, {"train_file": "a.json", "do_train": True}),
        ('--train_file: *a.json: the file has no "data"', {"a.json": "{}"}, {"train_file": "a.json", "do_train": True}),
        ("--train_file: *a.json has no question", {"a.json": '{"data": []}'},
         {"train_file": "a.json", "do_train": True}),
        ("--predict_file: *a.json, line 1, column *: not JSON", {"a.json": '{"data": [,'},
         {"predict_file": "a.json", "do_predict": True}),
        ("--train_file: *a.json does not begin with an object", {"a.json": "[" + "1," * MEGABYTE},
         {"train_file": "a.json", "do_train": True}),
        ("--output_dir=*is a file", {"a.json": QUESTION % ANSWERED},
         {"train_file": "a.json", "do_train": True, "output_dir": "a.json"}),
    ],
    "run_domain": [
        ("--input_file: *text.txt is empty", {"text.txt": ""}, {"input_file": "text.txt"}),
        ("--heldout_file: *more.txt, line 1: not UTF-8", {"text.txt": "a\n", "more.txt": b"\xff\xfea\n"},
         {"input_file": "text.txt", "heldout_file": "more.txt"}),
        ("--train_file: *only one class", {"text.txt": "a\n", "train.csv": "text,label\na,up\nb,up\n", "dev.csv": CSV},
         {"input_file": "text.txt", "train_file": "train.csv", "dev_file": "dev.csv", "text_a": "text",
          "label": "label"}),
        ("--output_dir=*is a file", {"text.txt": "a\n"}, {"input_file": "text.txt", "output_dir": "text.txt"}),
    ],
    "run_pretraining": [
        ("--input_file: *a.tfrecord is empty", {"a.tfrecord": ""}, {"input_file": "a.tfrecord", "do_train": True}),
        ("--eval_input_file: no file matches *", {"a.tfrecord": "x"},
         {"input_file": "a.tfrecord", "eval_input_file": "nowhere", "do_train": True}),
        ("--init_checkpoint=*nowhere", {"a.tfrecord": "x"},
         {"input_file": "a.tfrecord", "do_train": True, "init_checkpoint": "nowhere"}),
        ("--output_dir=*is a file", {"a.tfrecord": "x"},
         {"input_file": "a.tfrecord", "do_train": True, "output_dir": "a.tfrecord"}),
    ],
    "create_pretraining_data": [
        ("--input_file: *text.txt is empty", {"text.txt": ""}, CREATE),
        ("--input_file: no text in *text.txt: every line is blank", {"text.txt": "\n \n\n"}, CREATE),
        ("--input_file: *text.txt, line 2: not UTF-8", {"text.txt": b"a\n\xff\n"}, CREATE),
        ("--input_file: *text.jsonl, line 2*", {"text.jsonl": '{"text": "a"}\n{broken\n'},
         CREATE | {"input_file": "text.jsonl"}),
        ("--vocab_file=*nowhere", {"text.txt": "a\n"}, CREATE | {"vocab_file": "nowhere"}),
        ("--output_file=*is a file; a directory is needed", {"text.txt": "a\n"},
         CREATE | {"output_file": "text.txt/a"}),
    ],
    "create_vocab": [
        ("--input_file: *text.txt is empty", {"text.txt": ""}, {"input_file": "text.txt", "output_file": "v.txt"}),
        ("--input_file: *text.txt, line 1: not UTF-8", {"text.txt": b"\xff\n"},
         {"input_file": "text.txt", "output_file": "v.txt"}),
        ("--output_file=*is a directory", {"text.txt": "a\n"}, {"input_file": "text.txt", "output_file": "model"}),
    ],
    "extract_features": [
        ("--input_file: *nowhere is not a file", {}, {"input_file": "nowhere", "output_file": "f.jsonl"}),
        ("--input_file: *text.txt is empty", {"text.txt": ""}, {"input_file": "text.txt", "output_file": "f.jsonl"}),
        ("--input_file: *text.txt, line 2: not UTF-8", {"text.txt": b"a\n\xff\n"},
         {"input_file": "text.txt", "output_file": "f.jsonl"}),
        ("--output_file=*", {"text.txt": "a\n"}, {"input_file": "text.txt", "output_file": "text.txt/f.jsonl"}),
    ],
    "convert_checkpoint": [
        ("--from=*nowhere: there is no such", {}, {"from": "nowhere", "to": "out", "format": "tf1"}),
        ("--to=*is a file", {"file": "x"}, {"from": "model", "to": "file", "format": "tf1"}),
        ("--vocab_file=*nowhere", {}, {"from": "model", "to": "out", "format": "tf1", "vocab_file": "nowhere"}),
        ("--add_tokens=*nowhere", {}, {"from": "model", "to": "out", "format": "tf1", "add_tokens": "nowhere"}),
    ],
    "export_saved_model": [
        ("--model_dir=*nowhere: there is no such", {}, {"model_dir": "nowhere", "export_dir": "out"}),
        ("--export_dir=*is a file", {"file": "x"}, {"model_dir": "model", "export_dir": "file"}),
        ("--check_file=*nowhere", {}, {"model_dir": "model", "export_dir": "out", "check_file": "nowhere"}),
    ],
    "serve_client": [
        ("--input_file=*nowhere", {}, {"model": "m", "input_file": "nowhere"}),
        ("--input_file: *rows.jsonl is empty", {"rows.jsonl": ""}, {"model": "m", "input_file": "rows.jsonl"}),
        ("*rows.jsonl, line 1, column 2: not JSON", {"rows.jsonl": "{x"}, {"model": "m", "input_file": "rows.jsonl"}),
    ],
}  # fmt: skip
FILES = ("_file", "_dir", "_checkpoint", "from", "to", "add_tokens")
WITH_A_MODEL = ("run_classifier", "run_swag", "run_similarity", "run_ner", "run_squad", "run_domain", "run_pretraining")


@pytest.mark.parametrize("script", CASES)
def test_mistakes_in_files_are_named_before_tensorflow_is_imported(script, tmp_path):
    commands = []
    for number, (_, files, given) in enumerate(CASES[script]):
        folder = tmp_path / str(number)
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
        for name, content in files.items():
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        usual = (
            GIVEN if script in WITH_A_MODEL else {"init_checkpoint": "model"} if script == "extract_features" else {}
        )
        values = {name: folder / value if name.endswith(FILES) else value for name, value in {**usual, **given}.items()}
        commands.append([f"--{name}={value}" for name, value in values.items()])
    found = outcomes(script, commands)
    assert len(found) == len(CASES[script])
    for number, ((message, files, _), (outcome, heavy)) in enumerate(zip(CASES[script], found, strict=True)):
        pattern = r"(ValueError|\w*NotFoundError|OSError|NotADirectoryError|PermissionError): " + ".*".join(
            map(re.escape, message.split("*"))
        )
        assert re.match(pattern, outcome) and not heavy, (message, outcome, heavy)
        there = {path.name for path in (tmp_path / str(number)).iterdir()}
        assert there == {"model", *(name.split("/")[0] for name in files)}


def test_what_a_check_reads_is_told_of_by_the_run():
    assert messages.is_first("test", 1) and not messages.is_first("test", 1)
    with messages.unheard():
        assert not messages.is_first("test", 2) and logging.get_absl_logger().disabled
    assert messages.is_first("test", 2) and not logging.get_absl_logger().disabled
