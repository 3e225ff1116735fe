"""What does not fit a model, or a run that is there, is said before TensorFlow is imported, and names the flag."""

import json

import pytest
from helpers.early_mistakes import (
    CONFIG,
    TOKENS,
    check_cases,
    model,
    models,
)

CONVERT = {"from": "whole", "to": "out", "format": "tf1"}
KIND = {"architecture": "BertForSequenceClassification"}
CLASSIFIER = KIND | {"labels": ["up", "down"]}
TAGGER = {"architecture": "BertForTokenClassification", "labels": ["up", "down"]}
CREATE = {"input_file": "text.txt", "output_file": "a.tfrecord", "vocab_file": "whole/vocab.txt"}
LOWER = {"whole/tokenizer_config.json": '{"do_lower_case": true}'}

# script -> see `check_cases`.
CASES = {
    "convert_checkpoint": [
        *models("from", {"to": "out", "format": "tf1"}, with_tokenizer=False),
        ("--report_file: *vocab.txt would overwrite a file that is read", model(),
         CONVERT | {"report_file": "whole/vocab.txt"}),
        ("--to=*/model is --from: give another directory", {}, {"from": "model", "to": "model", "format": "tf1"}),
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
        ("do_lower_case=False contradicts *whole/tokenizer_config.json", {"text.txt": "a\n", **model(), **LOWER},
         CREATE | {"do_lower_case": False}),
        ("--output_file=*: *vocab.txt would overwrite a file that is read", {"text.txt": "a\n", **model()},
         CREATE | {"output_file": "whole/vocab.txt"}),
        ("--output_file: *other.txt is there, and not a file of records: choose another name",
         {"text.txt": "a\n", "other.txt": "A text.\n" * 9, **model()}, CREATE | {"output_file": "other.txt"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("script", CASES)
def test_what_does_not_fit_is_said_before_tensorflow_is_imported(script, tmp_path):
    check_cases(script, CASES[script], tmp_path)
