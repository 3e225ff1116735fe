"""What does not fit a model, or a run that is there, is said before TensorFlow is imported, and names the flag."""

import json

import pytest
from helpers.early_mistakes import CONFIG, LFS, TOKENS, check_cases, checkpoint, model, models, without

CONVERT = {"from": "whole", "to": "out", "format": "tf1"}
LOWER = {"whole/tokenizer_config.json": '{"do_lower_case": true}'}

# script -> see `check_cases`.
CASES = {
    "convert_checkpoint": [
        *models("from", {"to": "out", "format": "tf1"}, with_tokenizer=False),
        ("--from=*nowhere: there is no such", {}, {"from": "nowhere", "to": "out", "format": "tf1"}),
        ("--from: *whole/bert_model.safetensors is a pointer of Git LFS, *: git lfs pull.",
         {**model(), "whole/bert_model.safetensors": LFS}, {"from": "whole", "to": "out", "format": "tf1"}),
        ("--to=*/model is --from: give another directory", {}, {"from": "model", "to": "model", "format": "tf1"}),
        ("--to=*is a file", {"file": "x"}, {"from": "model", "to": "file", "format": "tf1"}),
        ("--vocab_file=*nowhere", {}, {"from": "model", "to": "out", "format": "tf1", "vocab_file": "nowhere"}),
        ("--add_tokens=*nowhere", {}, {"from": "model", "to": "out", "format": "tf1", "add_tokens": "nowhere"}),
        ("*out already has files of a model (vocab.txt): give another target, or replace them all with --over",
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
         model(2, family="electra"), CONVERT | {"format": "huggingface"}),
        ("--add_tokens: *words, line 1: 'two words' has whitespace in it", {**model(), "words": "two words\n"},
         CONVERT | {"add_tokens": "words"}),
        ("--add_tokens: *words, line 2: not UTF-8", {**model(), "words": b"a\n\xff\n"},
         CONVERT | {"add_tokens": "words"}),
        ("--add_tokens: Token 'two-words' can never come out of the tokenizer", {**model(), "words": "two-words\n"},
         CONVERT | {"add_tokens": "words"}),
        ("--add_tokens: 1 tokens, but the vocabulary has only 0 [unused...] slots: *without --use_unused_slots",
         {**model(), "words": "b\n"}, CONVERT | {"add_tokens": "words", "use_unused_slots": True}),
        ("--add_tokens needs a vocabulary, and *whole has none: --vocab_file",
         {**without(model(), "vocab.txt"), "words": "b\n"}, CONVERT | {"add_tokens": "words"}),
        ("--use_unused_slots and --new_rows say how to add tokens: give --add_tokens, too", model(),
         CONVERT | {"use_unused_slots": True}),
        ("--max_position_embeddings=128: the model has 128 positions already", model(),
         CONVERT | {"max_position_embeddings": 128}),
        ("BertConfig: max_position_embeddings must be at most 1,048,576, not 1048577", model(),
         CONVERT | {"max_position_embeddings": 1048577}),
        ("do_lower_case=False contradicts *whole/tokenizer_config.json", {**model(), **LOWER},
         CONVERT | {"do_lower_case": False}),
        ("--from: *whole/bert_model.safetensors is a BERT, which has no generator", model(),
         CONVERT | {"part": "generator"}),
        ("--from: *whole has no bert_config.json (or config.json)", without(model(), "bert_config.json"), CONVERT),
        ("--bert_config_file: *c.json does not fit the weights of *whole",
         {**model(), "c.json": json.dumps(CONFIG | {"vocab_size": 9})}, CONVERT | {"bert_config_file": "c.json"}),
        ("--vocab_file: *v.txt has 7 lines, but vocab_size is 6: it belongs to another model",
         {**model(), "v.txt": "\n".join([*TOKENS, "b"])}, CONVERT | {"vocab_file": "v.txt"}),
        ("--vocab_file: *v.txt, line 1: not UTF-8", {**model(), "v.txt": b"\xff"}, CONVERT | {"vocab_file": "v.txt"}),
        ("--from: *c.ckpt: its values can't be read: *",
         checkpoint("whole", "c.ckpt", data=lambda content: content[:9]), CONVERT),
    ],
}  # fmt: skip


@pytest.mark.parametrize("script", CASES)
def test_what_does_not_fit_is_said_before_tensorflow_is_imported(script, tmp_path):
    check_cases(script, CASES[script], tmp_path)
