"""Sizes of the golden SQuAD windows, and questions to score."""

# Token windows of the original's golden SQuAD outputs: max_seq_length, doc_stride, max_query_length.
SQUAD_SIZES = {"S64": (64, 32, 16), "S384": (384, 128, 64)}


def articles_of(questions: dict[str, list[str]]) -> list[dict]:
    """Of {id: gold answers}."""
    qas = [
        {"id": key, "question": "?", "is_impossible": not answers, "answers": [{"text": text} for text in answers]}
        for key, answers in questions.items()
    ]
    return [{"paragraphs": [{"context": "x", "qas": qas}]}]
