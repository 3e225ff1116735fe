"""Tiny taggers, and run_ner.py's results for sentences with them."""

import numpy as np

from bert_tf.models import task_models
from bert_tf.tasks.ner import encode as ner_encode
from bert_tf.tasks.ner import outputs as ner_outputs
from bert_tf.tasks.ner import tagging
from bert_tf.tasks.ner import tags as ner_tags
from bert_tf.tasks.ner.data import Sentence
from bert_tf.text.wordpiece import FullTokenizer
from helpers.exports import VOCAB, save

SENTENCES = [
    ["Ada", "Lovelace", "lived", "in", "London", "."],
    ["U.S.", "soldiers", "(1990)", "met", "Élodie", "and", "김철수"],
    ["\u200b\u0007", "one"],
    [f"word{number}" for number in range(150)],  # longer than the model
    ["x" * 300],
]


def tagger(folder, scheme) -> tuple[str, list[str]]:
    labels = ner_tags.tag_set(scheme, ["LOC", "PER"]) if scheme != "plain" else ["NOUN", "VERB", "X"]
    save(folder, task_models.BertForTokenClassification, num_labels=len(labels), labels=labels)
    (folder / tagging.SETTINGS_FILE).write_text(tagging.TaggingSettings(learned_scheme=scheme).to_json())
    return str(folder), labels


def tags_of_the_script(path, labels, scheme) -> tuple[list[list[str]], np.ndarray]:
    """The results of run_ner.py: tags, and the probability of the likeliest tag of each word."""
    sentences = [make_sentence(words) for words in SENTENCES]
    rows = ner_encode.encode_sentences(sentences, FullTokenizer(VOCAB), 64)
    model = task_models.BertForTokenClassification.from_pretrained(path)

    def predict(batches):
        for batch in batches:
            yield np.asarray(model(batch, training=False))

    logits = ner_outputs.predict_logits(predict, rows, batch_size=3, max_seq_length=64, static_padding=False)
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    return ner_outputs.predicted_tags(sentences, logits, labels, scheme), probabilities.max(-1)


def make_sentence(words) -> Sentence:
    return Sentence(words, ["O"] * len(words), [1] * len(words))
