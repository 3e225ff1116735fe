#!/usr/bin/env bash
# Guess: KerasHub reads the output layer of a classifier that transformers has saved, or says that it does not.
# Seen 2026-11-28, keras-hub 0.32.0, keras 3.15.1, tensorflow 2.20.0, transformers 5.23.0:
#   BertTextClassifier.from_preset(folder of BertForSequenceClassification, num_classes=3) is made without an error or
#   a warning; its encoder is the folder's (5e-4 off, by the epsilon of its norms), its output layer random: another one for each seed.
#   BertMaskedLM.from_preset(folder of BertForMaskedLM) raises: the file has no pooler.
# A fine-tuned classifier that is moved this way answers at chance. Its output layer has to be assigned by hand.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q keras-hub==0.32.0 keras==3.15.1 tensorflow==2.20.0 tensorflow-text==2.20.1 transformers==5.23.0 torch==2.13.0
cd "$folder"
KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES='' HF_HUB_OFFLINE=1 "$folder/venv/bin/python" 2> errors.txt - <<'PYTHON' || { cat errors.txt; exit 1; }
import json
import pathlib
import sys
import warnings

import keras
import keras_hub
import numpy as np
import torch
import transformers

warnings.simplefilter("always")
letters = [chr(number) for number in range(97, 123)]
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters)]
torch.manual_seed(0)
config = transformers.BertConfig(
    vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=64, initializer_range=0.3, num_labels=3,
)  # fmt: skip
ids = np.array([[2, 5, 6, 7, 8, 3]])


def saved(model, name: str) -> str:
    model.eval().save_pretrained(name)
    pathlib.Path(name, "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    pathlib.Path(name, "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return name


original = transformers.BertForSequenceClassification(config)
folder = saved(original, "classifier")
with torch.no_grad():
    hidden = original.bert(torch.tensor(ids)).last_hidden_state.numpy()
    logits = original(torch.tensor(ids)).logits.numpy()
inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": np.ones_like(ids)}
found = []
with warnings.catch_warnings(record=True) as caught:
    for seed in (1, 2):
        keras.utils.set_random_seed(seed)
        model = keras_hub.models.BertTextClassifier.from_preset(folder, num_classes=3, preprocessor=None)
        found.append(np.array(model(inputs)))
        encoder = np.abs(np.array(model.backbone(inputs)["sequence_output"]) - hidden).max()
        print(f"seed {seed}: encoder differs by {encoder:.1e}; logits {found[-1][0].round(3)}, the folder's {logits[0].round(3)}")
named = [str(warning.message) for warning in caught if "head" in str(warning.message) or "logits" in str(warning.message)]
print("warnings about the output layer:", named)
try:
    keras_hub.models.BertMaskedLM.from_preset(saved(transformers.BertForMaskedLM(config), "masked"), preprocessor=None)
    raised = ""
except Exception as error:
    raised = str(error)
print("masked LM:", raised)
random = np.abs(found[0] - found[1]).max() > 1e-3 and min(np.abs(logits - one).max() for one in found) > 1e-2
sys.exit(0 if random and encoder < 1e-3 and not named and "pooler" in raised else "the behaviour has changed")
PYTHON
