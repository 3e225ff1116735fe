"""What the trained model has learned: compared with guessing by frequency, and in sentences with [MASK]."""

import collections
import os
import re

FIXED_SENTENCES = [
    "Return the [MASK] of the list.",
    "If [MASK] is None, the default value is used.",
    "This function is deprecated and will be [MASK] in a future version.",
    "Raises an [MASK] if the argument is not valid.",
    "The number of [MASK] in the array.",
    "Returns [MASK] if the file exists.",
]


def frequency_baselines(
    train_records: str, heldout_records: str, vocab_size: int, max_seq_length: int, max_predictions: int
) -> dict:
    """The scores of guessing by frequency on the held-out records, for comparison with a model.

    Returns:
      `masked_lm_loss`: of the distribution of the training targets, with one added to each count; in nats.
      `masked_lm_accuracy`: of always guessing the most frequent target, whose id is `most_frequent_id`.
      `next_sentence_accuracy`: of always giving the more frequent answer.
    """
    import numpy as np
    import tensorflow as tf

    from bert_tf.data.records import pretraining_features

    features = pretraining_features(max_seq_length, max_predictions)
    features = {name: features[name] for name in ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels")}

    def target_counts(path):
        counts, next_counts = np.zeros(vocab_size), np.zeros(2)
        for batch in tf.data.TFRecordDataset(path).batch(1024).as_numpy_iterator():
            parsed = {name: value.numpy() for name, value in tf.io.parse_example(batch, features).items()}
            ids = parsed["masked_lm_ids"][parsed["masked_lm_weights"] > 0]
            counts += np.bincount(ids, minlength=vocab_size)
            next_counts += np.bincount(parsed["next_sentence_labels"][:, 0], minlength=2)
        return counts, next_counts

    train_counts, _ = target_counts(train_records)
    counts, next_counts = target_counts(heldout_records)
    log_probabilities = np.log((train_counts + 1) / (train_counts + 1).sum())
    return {
        "masked_lm_loss": float(-(counts * log_probabilities).sum() / counts.sum()),
        "masked_lm_accuracy": float(counts[train_counts.argmax()] / counts.sum()),
        "next_sentence_accuracy": float(next_counts.max() / next_counts.sum()),
        "most_frequent_id": int(train_counts.argmax()),
    }


def heldout_questions(train_file: str, heldout_file: str, tokenizer, count: int = 8) -> list[tuple[str, str]]:
    """(text with a [MASK], the masked word) for sentences of different held-out documents.

    The choice is independent of the model: documents at equal distances, in each the first sentence of suitable length,
    and in it the middle one of the words that are frequent in training, but not the most frequent.
    """
    with open(train_file, encoding="utf-8") as file:
        frequencies = collections.Counter(
            piece for line in file.read(1_500_000).splitlines() for piece in tokenizer.tokenize(line)
        )
    frequent = {piece for piece, _ in frequencies.most_common(400)[15:]}
    with open(heldout_file, encoding="utf-8") as file:
        documents = [document.splitlines() for document in file.read().split("\n\n")]
    questions = []
    for document in documents:
        for sentence in document:
            if not 7 <= len(tokenizer.tokenize(sentence)) <= 25:
                continue
            # Words, or single Chinese characters, as the tokenizer separates them.
            words = [
                match
                for match in re.finditer(r"[\u3400-\u9fff]|[^\W\d_]+", sentence)
                if len(pieces := tokenizer.tokenize(match[0])) == 1 and pieces[0] in frequent
            ]
            if words:
                word = words[len(words) // 2]
                questions.append((f"{sentence[: word.start()]}[MASK]{sentence[word.end() :]}", word[0]))
                break
    step = max(1, len(questions) // count)
    return questions[::step][:count]


def guesses_table(rows: list[dict]) -> str:
    """Rows {"text", "answer" or None, "guesses": [(token, probability)]} as an aligned table."""
    lines = []
    for row in rows:
        start = row["text"].index("[MASK]")
        before, after = row["text"][:start], row["text"][start + len("[MASK]") :]
        before = before if len(before) <= 40 else "..." + before[-37:]
        after = after if len(after) <= 40 else after[:37] + "..."
        guesses = "  ".join(f"{token} {probability:.0%}" for token, probability in row["guesses"])
        lines.append((f"{before}[MASK]{after}", row["answer"] or "", guesses))
    titles = ("sentence", "was", "guesses")
    widths = [max(len(line[column]) for line in (titles, *lines)) for column in range(2)]
    return "\n".join(
        f"  {text:<{widths[0]}}  {answer:<{widths[1]}}  {guesses}".rstrip()
        for text, answer, guesses in (titles, tuple("-" * width for width in (*widths, len(titles[2]))), *lines)
    )


def results_table(results: dict, baselines: dict, most_frequent: str) -> str:
    """The held-out results compared with those of guessing by frequency."""
    rows = [
        ("masked LM loss", "masked_lm_loss", "{:.3f}", "frequencies of the training text"),
        ("masked LM accuracy", "masked_lm_accuracy", "{:.1%}", f'always "{most_frequent}"'),
        ("next sentence accuracy", "next_sentence_accuracy", "{:.1%}", "always the same answer"),
    ]
    lines = [f"  {'':<24}{'model':>8}  {'without a model':>16}"]
    for title, name, form, note in rows:
        lines.append(f"  {title:<24}{form.format(results[name]):>8}  {form.format(baselines[name]):>16}   {note}")
    return "\n".join(lines)


def fill_questions(folder: str, tokenizer, with_fixed: bool) -> list[dict]:
    """Lets the trained model fill [MASK] in held-out sentences and, for the built-in text, in a few fixed ones."""
    from bert_tf import BertConfig, BertForPreTraining, fill_mask, load_weights
    from bert_tf.weights.find import latest_checkpoint

    model = BertForPreTraining(BertConfig.from_json_file(os.path.join(folder, "bert_config.json")))
    load_weights(model, latest_checkpoint(os.path.join(folder, "model")))
    questions = [(sentence, None) for sentence in FIXED_SENTENCES] if with_fixed else []
    questions += heldout_questions(os.path.join(folder, "train.txt"), os.path.join(folder, "heldout.txt"), tokenizer)
    guesses = fill_mask(model, tokenizer, [text for text, _ in questions], top_k=3)
    return [
        {"text": text, "answer": answer, "guesses": best[0]}
        for (text, answer), best in zip(questions, guesses, strict=True)
    ]
