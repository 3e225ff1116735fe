"""A random XLM-RoBERTa with the released vocabulary's size and a tokenizer learned from texts, as a folder that all
sides of a comparison open."""

import json
import os
import pathlib
import sys
from collections.abc import Iterable

from absl import flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
VOCAB_SIZE = 250_002

flags.DEFINE_string(
    "random", None, "Instead of --model: a random XLM-RoBERTa of so many layers and such a width, 12x768 for Base."
)


def write_model(folder: str, texts: Iterable[str], model_class: str) -> str:
    """Writes the model that --random describes, of a class of bert_tf, in Hugging Face's format; returns the folder."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import bert_tf
    from bert_tf.families import family_named

    layers, width = map(int, flags.FLAGS.random.split("x"))
    sizes = {"hidden_size": width, "num_attention_heads": width // min(width, 64), "intermediate_size": 4 * width}
    positions = {"max_position_embeddings": 514}
    config = family_named("xlm-roberta").config_class(VOCAB_SIZE, num_hidden_layers=layers, **sizes, **positions)
    model = getattr(bert_tf, model_class)(config)
    model.save_pretrained(folder, vocab_file=_write_tokenizer(pathlib.Path(folder), texts), format="huggingface")
    return folder


def _write_tokenizer(folder: pathlib.Path, texts: Iterable[str]) -> str:
    """Writes a tokenizer.json whose pieces are those of the texts and, up to the size, ones that no text has."""
    from helpers.texts import write_xlm_roberta_pieces
    from helpers.tiny import save_xlm_roberta_tokenizer

    learned = folder.with_name(f"{folder.name}_pieces")
    learned.mkdir(parents=True)
    save_xlm_roberta_tokenizer(pathlib.Path(write_xlm_roberta_pieces(learned, texts, 8000)), learned)
    file = learned / "tokenizer.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    *pieces, mask = values["model"]["vocab"]
    pieces += ([f"\u2581<{number}>", -30.0 - number * 1e-5] for number in range(VOCAB_SIZE - 1 - len(pieces)))
    values["model"]["vocab"] = [*pieces, mask]
    for token in values["added_tokens"]:
        token["id"] = VOCAB_SIZE - 1 if token["content"] == mask[0] else token["id"]
    file.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
    return str(file)
