#!/usr/bin/env bash
# Guess: the same pieces with the same scores give the same segmentation in sentencepiece and in tokenizers' Unigram.
# Seen 2026-11-28, sentencepiece 0.2.3, tokenizers 0.23.3, protobuf 7.36.2 (2,000 strings of the letters a to d):
#   letters of -1.0 each, pairs of -2.0    no string differs
#   letters of -3.3 each, pairs of -6.6    most strings differ: `ab` here, `a` `b` there
# A pair and its two letters score alike, and rounding decides: sentencepiece adds up in 32 bits, tokenizers in 64,
# of scores that a model's file holds in 32. Trained scores are hardly ever that close, but those of words that were
# added by hand are, when they get the sum of their parts or one round number: keep such scores apart by 0.001.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q sentencepiece==0.2.3 tokenizers==0.23.3 protobuf==7.36.2
"$folder/venv/bin/python" - <<'PYTHON'
import itertools
import random
import sys

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, models

LETTERS = "abcd"


def different(letter: float, pair: float) -> int:
    """How many of 2,000 strings the two libraries cut differently."""
    model = sentencepiece_model_pb2.ModelProto()
    model.trainer_spec.model_type = 1
    rules = model.normalizer_spec
    rules.name, rules.add_dummy_prefix, rules.remove_extra_whitespaces, rules.escape_whitespaces = "identity", False, False, False
    special = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pairs = [("".join(two), pair, 1) for two in itertools.product(LETTERS, repeat=2)]
    for piece, score, kind in [*special, *((one, letter, 1) for one in LETTERS), *pairs]:
        model.pieces.add(piece=piece, score=score, type=kind)
    ours = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    theirs = Tokenizer(models.Unigram([(piece.piece, piece.score) for piece in model.pieces], unk_id=0))
    draw = random.Random(0)
    strings = ["".join(draw.choices(LETTERS, k=draw.randint(2, 40))) for _ in range(2000)]
    return sum(ours.encode(string, out_type=str) != theirs.encode(string).tokens for string in strings)


exact, rounded = different(-1.0, -2.0), different(-3.3, -6.6)
print(f"-1.0 and -2.0: {exact} strings differ; -3.3 and -6.6: {rounded}")
sys.exit(0 if exact == 0 and rounded > 1000 else "the behaviour has changed")
PYTHON
