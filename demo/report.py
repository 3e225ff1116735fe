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
    train_records: str, heldout_records: str, tokenizer, max_seq_length: int, max_predictions: int
) -> dict:
    """The scores of guessing by frequency on the held-out records, for comparison with a model.

    Args:
      train_records, heldout_records: with masks, or unmasked, where each token but special ones may be a target.

    Returns:
      `masked_lm_loss`: of the distribution of the training targets, with one added to each count; in nats.
      `masked_lm_accuracy`: of always guessing the most frequent target, whose id is `most_frequent_id`.
      `next_sentence_accuracy`, and by its other name `sentence_order_accuracy`: of always giving the more frequent
        answer.
    """
    import numpy as np

    from bert_tf.data import record_files, records

    size = max(tokenizer.vocab.values()) + 1
    special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id]

    def target_counts(path):
        index = records.index_records([path], None)
        features, pairs = record_files.features_of(index.first_payloads(), max_seq_length, max_predictions)
        counts, next_counts = np.zeros(size), np.zeros(2)
        for batch in records.evaluation_batches(index, features, batch_size=1024, repeat=False, max_steps=None):
            real = batch["example_weights"].numpy() > 0
            if pairs:
                ids = batch["input_ids"].numpy()[real]
                ids = ids[~np.isin(ids, special)]
            else:
                ids = batch["masked_lm_ids"].numpy()[batch["masked_lm_weights"].numpy() > 0]
            counts += np.bincount(ids.ravel(), minlength=size)
            next_counts += np.bincount(batch["next_sentence_labels"].numpy()[real].ravel(), minlength=2)
        return counts, next_counts

    train_counts, _ = target_counts(train_records)
    counts, next_counts = target_counts(heldout_records)
    log_probabilities = np.log((train_counts + 1) / (train_counts + 1).sum())
    same_answer = float(next_counts.max() / next_counts.sum())
    return {
        "masked_lm_loss": float(-(counts * log_probabilities).sum() / counts.sum()),
        "masked_lm_accuracy": float(counts[train_counts.argmax()] / counts.sum()),
        "next_sentence_accuracy": same_answer,
        "sentence_order_accuracy": same_answer,
        "most_frequent_id": int(train_counts.argmax()),
    }


def heldout_questions(train_file: str, heldout_file: str, tokenizer, count: int = 8) -> list[tuple[str, str]]:
    """(text with a [MASK], the masked word) for sentences of different held-out documents.

    The choice is independent of the model: documents at equal distances, in each the first sentence of suitable length,
    and in it the middle one of the words that are frequent in training, but not the most frequent.
    """
    with open(train_file, encoding="utf-8") as file:
        frequencies = collections.Counter(
            piece for line in file.read(1_500_000).split("\n") for piece in tokenizer.tokenize(" " + line)
        )
    frequent = {piece for piece, _ in frequencies.most_common(400)[15:]}
    with open(heldout_file, encoding="utf-8") as file:
        documents = [document.split("\n") for document in file.read().split("\n\n")]
    questions = []
    for document in documents:
        for sentence in document:
            if not 7 <= len(tokenizer.tokenize(sentence)) <= 25:
                continue
            # Words, or single Chinese characters, as the tokenizer separates them.
            words = [
                match
                for match in re.finditer(r"[\u3400-\u9fff]|[^\W\d_]+", sentence)
                if len(pieces := tokenizer.tokenize(" " + match[0])) == 1 and pieces[0] in frequent
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
        ("sentence order accuracy", "sentence_order_accuracy", "{:.1%}", "always the same answer"),
        ("replaced tokens: accuracy", "disc_accuracy", "{:.1%}", ""),
        ("replaced tokens: precision", "disc_precision", "{:.1%}", ""),
        ("replaced tokens: recall", "disc_recall", "{:.1%}", ""),
    ]
    lines = [f"  {'':<27}{'model':>8}  {'without a model':>16}"]
    for title, name, form, note in rows:
        if name in results:
            without = form.format(baselines[name]) if name in baselines else ""
            lines.append(f"  {title:<27}{form.format(results[name]):>8}  {without:>16}   {note}".rstrip())
    return "\n".join(lines)


def fill_questions(folder: str, model_directory: str, tokenizer, with_fixed: bool) -> list[dict]:
    """Lets the trained model fill [MASK] in held-out sentences and, for the built-in text, in a few fixed ones.

    Args:
      folder: has train.txt and heldout.txt. model_directory: has a model with a masked-LM head.
    """
    from bert_tf import BertForMaskedLM, fill_mask

    model = BertForMaskedLM.from_pretrained(model_directory)
    questions = [(sentence, None) for sentence in FIXED_SENTENCES] if with_fixed else []
    questions += heldout_questions(os.path.join(folder, "train.txt"), os.path.join(folder, "heldout.txt"), tokenizer)
    texts = [text.replace("[MASK]", tokenizer.mask_token) for text, _ in questions]
    guesses = fill_mask(model, tokenizer, texts, top_k=3)
    return [
        {"text": text, "answer": answer, "guesses": best[0]}
        for (text, answer), best in zip(questions, guesses, strict=True)
    ]


def find_replaced(model_directory: str, tokenizer, rows: list[dict]) -> list[dict]:
    """Asks a discriminator about sentences in which a word was put into the place of another.

    Args:
      rows: of `fill_questions`; the answer of each next one is put into a sentence.

    Returns:
      for each sentence its `text`, the `word` put there, and for each token, with its piece, the probability that it
      was `replaced`.
    """
    import numpy as np

    from bert_tf import ElectraDiscriminator

    model = ElectraDiscriminator.from_pretrained(model_directory)
    rows = [row for row in rows if row["answer"]]
    results = []
    for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
        text = row["text"].replace("[MASK]", other["answer"])
        inputs = tokenizer([text], max_length=model.config.max_length)
        probabilities = 1 / (1 + np.exp(-np.asarray(model(inputs))[0]))
        pieces = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
        replaced = [(piece, float(value)) for piece, value in zip(pieces, probabilities, strict=True)][1:-1]
        results.append({"text": text, "word": other["answer"], "replaced": replaced})
    return results


def replaced_table(rows: list[dict]) -> str:
    """Rows of `find_replaced`: the word put there, and the three tokens that the discriminator suspects most."""
    lines = []
    for row in rows:
        suspects = sorted(row["replaced"], key=lambda pair: -pair[1])[:3]
        shown = "  ".join(f"{piece} {probability:.0%}" for piece, probability in suspects)
        lines.append(f"  {row['word']:<16}  {shown}")
    return "\n".join([f"  {'word put there':<16}  suspected", f"  {'-' * 14:<16}  ---------", *lines])
