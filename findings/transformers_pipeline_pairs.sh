#!/usr/bin/env bash
# Guess: transformers' text-classification pipeline takes a tuple in a list as a pair of texts, or raises an error.
# Seen 2026-11-28, transformers 5.23.0, torch 2.13.0 (a random BERT with two classes):
#   {"text": a, "text_pair": b}, alone or in a list   the model's answer to the pair
#   [(a, b)], a and b of different lengths            ValueError: Unable to create tensor
#   [(a, b)], a and b of as many tokens               the answer to `a` alone, without an error or a warning
# The tuple becomes a batch of two texts, of which the pipeline gives one answer back. Whether that fails depends on
# the texts: a short trial with sentences of one length goes through. Give pairs as dicts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==5.23.0 torch==2.13.0
cd "$folder"
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" 2> errors.txt - <<'PYTHON' || { cat errors.txt; exit 1; }
import json
import pathlib
import sys
import warnings

import torch
import transformers

letters = [chr(number) for number in range(97, 123)]
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters)]
torch.manual_seed(0)
config = transformers.BertConfig(
    vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=64, initializer_range=0.5,
)  # fmt: skip
model = transformers.BertForSequenceClassification(config).eval()
model.save_pretrained("model")
pathlib.Path("model/vocab.txt").write_text("\n".join(vocabulary) + "\n")
pathlib.Path("model/tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
tokenizer = transformers.AutoTokenizer.from_pretrained("model")
pipeline = transformers.pipeline("text-classification", model="model", tokenizer=tokenizer)


def right(*texts: str) -> float:
    with torch.no_grad():
        return torch.softmax(model(**tokenizer(*texts, return_tensors="pt")).logits, -1).max().item()


first, alike, longer = "good film", "evil film", "a very evil film"
print(f"the model: {right(first):.4f} for the first text, {right(first, alike):.4f} for the pair")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    of_dict = pipeline([{"text": first, "text_pair": alike}])[0]["score"]
    of_tuple = pipeline([(first, alike)])[0]["score"]
try:
    pipeline([(first, longer)])
    raised = ""
except ValueError as error:
    raised = str(error)[:60]
print(f"the pipeline: {of_dict:.4f} for the dict, {of_tuple:.4f} for the tuple; warnings: {len(caught)}")
print("texts of different lengths:", raised)
holds = abs(of_dict - right(first, alike)) < 1e-4 and abs(of_tuple - right(first)) < 1e-4 and raised and not caught
sys.exit(0 if holds and abs(right(first) - right(first, alike)) > 1e-3 else "the behaviour has changed")
PYTHON
