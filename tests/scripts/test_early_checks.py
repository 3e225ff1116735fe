"""What is wrong with files, columns, folders and flags is said before TensorFlow is imported, and names the flag."""

import json

import pytest
from helpers.early_mistakes import CONFIG, TOKENS, check_cases, model, models, outcomes, usual_flags

CREATE = {"input_file": "text.txt", "output_file": "out/a.tfrecord", "vocab_file": "model/vocab.txt"}
WHOLE = {"input_file": "text.txt", "output_file": "a.tfrecord", "vocab_file": "whole/vocab.txt"}
CONVERT = {"from": "whole", "to": "out", "format": "tf1"}
LOWER = {"whole/tokenizer_config.json": '{"do_lower_case": true}'}


# script -> what it says, the files that are written, and the flags that are given beside or instead of the usual ones.
CASES = {
    "run_domain": [
        *models("init_checkpoint", {"input_file": "text.txt"})[:1],
        ("--output_dir=*is a file", {"text.txt": "a\n"}, {"input_file": "text.txt", "output_dir": "text.txt"}),
    ],
    "convert_checkpoint": [
        *models("from", {"to": "out", "format": "tf1"}, with_tokenizer=False),
        ("--report_file: *vocab.txt would overwrite a file that is read", model(),
         CONVERT | {"report_file": "whole/vocab.txt"}),
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
        ("--bert_config_file: *c.json does not fit the weights of *whole",
         {**model(), "c.json": json.dumps(CONFIG | {"vocab_size": 9})}, CONVERT | {"bert_config_file": "c.json"}),
        ("--vocab_file: *v.txt has 7 lines, but vocab_size is 6: it belongs to another model",
         {**model(), "v.txt": "\n".join([*TOKENS, "b"])}, CONVERT | {"vocab_file": "v.txt"}),
        ("--vocab_file: *v.txt is not the vocabulary *, *whole/vocab.txt: 2 of its tokens have other ids there",
         {**model(), "v.txt": "\n".join(["a", *TOKENS[1:5], "[PAD]"])}, CONVERT | {"vocab_file": "v.txt"}),
    ],
    "create_pretraining_data": [
        ("--input_file: *text.txt is empty", {"text.txt": ""}, CREATE),
        ("--vocab_file=*nowhere", {"text.txt": "a\n"}, CREATE | {"vocab_file": "nowhere"}),
    ],
    "create_vocab": [
        ("--input_file: *text.txt is empty", {"text.txt": ""}, {"input_file": "text.txt", "output_file": "v.txt"}),
        ("--output_file=*whole/vocab.txt is the vocabulary of a model", {"text.txt": "a\n", **model()},
         {"input_file": "text.txt", "output_file": "whole/vocab.txt"}),
        ("--vocab_size=110 is too small: * need at least 156. Raise it",
         {"text.txt": "abcdefghijklmnopqrstuvwxyz\n" * 5000},
         {"input_file": "text.txt", "output_file": "v.txt", "vocab_size": 110}),
    ],
    "extract_features": [
        ("--input_file: *nowhere is not a file", {}, {"input_file": "nowhere", "output_file": "f.jsonl"}),
    ],
    "export_saved_model": [
        *models("model_dir", {"export_dir": "out"}, with_tokenizer=False),
    ],
    "serve_client": [
        ("--input_file=*nowhere", {}, {"model": "m", "input_file": "nowhere"}),
        ("*rows.jsonl, line 1, column 2: not JSON", {"rows.jsonl": "{x"}, {"model": "m", "input_file": "rows.jsonl"}),
    ],
}  # fmt: skip


OF_A_MODEL = [
    ("do_lower_case=False contradicts *whole/tokenizer_config.json", {"text.txt": "a\n", **model(), **LOWER},
     WHOLE | {"do_lower_case": False}),
    ("--output_file=*: *vocab.txt would overwrite a file that is read", {"text.txt": "a\n", **model()},
     WHOLE | {"output_file": "whole/vocab.txt"}),
    ("--output_file: *other.txt is there, and not a file of records: choose another name",
     {"text.txt": "a\n", "other.txt": "A text.\n" * 9, **model()}, WHOLE | {"output_file": "other.txt"}),
]  # fmt: skip


@pytest.mark.parametrize("script", CASES)
def test_mistakes_in_files_are_named_before_tensorflow_is_imported(script, tmp_path):
    check_cases(script, CASES[script], tmp_path)


def test_what_does_not_fit_a_vocabulary_is_named(tmp_path):
    check_cases("create_pretraining_data", OF_A_MODEL, tmp_path, "bert_tf.pretraining.create")


# script -> a file in CP949, the flags beside the usual ones, and what is said of it with --encoding.
IN_KOREAN = {
    "create_vocab": ("a.txt", "좋아요\n",
                     {"input_file": "a.txt", "output_file": "v.txt", "do_lower_case": False, "vocab_size": 105},
                     "and 3 characters (3 of them also with ##) need 110"),
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
