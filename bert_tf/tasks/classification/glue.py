"""The tasks of the paper's Table 1 and of the original's run_classifier.py, each as one declaration.

The columns are those of the official downloads. A task of your own that you use often is one more entry of TASKS; for
one that you use once there is --task_name=custom.
"""

import dataclasses

from bert_tf.tasks.classification.data import Split, Task

NLI_LABELS = ("contradiction", "entailment", "neutral")
ENTAILMENT_LABELS = ("entailment", "not_entailment")
BINARY_LABELS = ("0", "1")


def _mnli(file: str, set_name: str, label: int | None = -1) -> Split:
    # Guids are made of the first column; the number of annotators' labels before the last column differs.
    names = {8: "sentence1", 9: "sentence2"}
    return Split(file, 8, 9, label, set_name, guid=0, header_names=names)


def _pairs(label_names: tuple, columns: tuple, names: tuple, task: str, label: int | None = None, **further) -> Task:
    """A task with two texts and a label, usually behind them, and a test file without label."""
    label, header = columns[1] + 1 if label is None else label, dict(zip(columns, names, strict=True))

    def split(name: str, label: int | None) -> Split:
        return Split(f"{name}.tsv", *columns, label, name, header_names=header)

    sets = split("train", label), {"dev": split("dev", label)}, {"test": split("test", None)}
    return Task(task, label_names, *sets, **further)


_MRPC = {"metrics": ("accuracy", "f1"), "other_names": ("not_equivalent", "equivalent")}
_QQP_NAMES = {3: "question1", 4: "question2"}
_SENTENCES = ("sentence1", "sentence2")
_XNLI_NAMES = {0: "language", 6: "sentence1", 7: "sentence2"}

TASKS = {
    "cola": Task(
        "cola",
        BINARY_LABELS,
        Split("train.tsv", 3, None, 1, "train", has_header=False),
        {"dev": Split("dev.tsv", 3, None, 1, "dev", has_header=False)},
        {"test": Split("test.tsv", 1, None, None, "test", header_names={1: "sentence"})},
        ("matthews", "accuracy"),
        other_names=("unacceptable", "acceptable"),
    ),
    "sst-2": Task(
        "sst-2",
        BINARY_LABELS,
        Split("train.tsv", 0, None, 1, "train", header_names={0: "sentence", 1: "label"}),
        {"dev": Split("dev.tsv", 0, None, 1, "dev", header_names={0: "sentence", 1: "label"})},
        {"test": Split("test.tsv", 1, None, None, "test", header_names={1: "sentence"})},
        other_names=("negative", "positive"),
    ),
    "mrpc": _pairs(BINARY_LABELS, (3, 4), ("#1 String", "#2 String"), "mrpc", 0, **_MRPC),
    "sts-b": _pairs(None, (7, 8), _SENTENCES, "sts-b", metrics=("pearson", "spearman")),
    "qqp": Task(
        "qqp",
        BINARY_LABELS,
        Split("train.tsv", 3, 4, 5, "train", header_names=_QQP_NAMES, skip_short_rows=True),
        {"dev": Split("dev.tsv", 3, 4, 5, "dev", header_names=_QQP_NAMES, skip_short_rows=True)},
        {"test": Split("test.tsv", 1, 2, None, "test", header_names={1: "question1", 2: "question2"})},
        ("accuracy", "f1"),
        other_names=("not_duplicate", "duplicate"),
    ),
    "mnli": Task(
        "mnli",
        NLI_LABELS,
        _mnli("train.tsv", "train"),
        {
            "dev_matched": _mnli("dev_matched.tsv", "dev_matched"),
            "dev_mismatched": _mnli("dev_mismatched.tsv", "dev_mismatched"),
        },
        {
            "test_matched": _mnli("test_matched.tsv", "test", None),
            "test_mismatched": _mnli("test_mismatched.tsv", "test_mismatched", None),
        },
    ),
    "qnli": _pairs(ENTAILMENT_LABELS, (1, 2), ("question", "sentence"), "qnli"),
    "rte": _pairs(ENTAILMENT_LABELS, (1, 2), _SENTENCES, "rte"),
    "wnli": _pairs(BINARY_LABELS, (1, 2), _SENTENCES, "wnli", other_names=("not_entailment", "entailment")),
    # Diagnostics for a model trained on MNLI: nothing to train on, no labels.
    "ax": Task(
        "ax",
        NLI_LABELS,
        None,
        {},
        {"test": Split("diagnostic.tsv", 1, 2, None, "test", header_names={1: "sentence1", 2: "sentence2"})},
    ),
    "xnli": Task(
        "xnli",
        NLI_LABELS,
        Split("multinli/multinli.train.{language}.tsv", 0, 1, 2, "train", header_names={0: "premise", 2: "label"}),
        {"dev": Split("xnli.dev.tsv", 6, 7, 1, "dev", header_names=_XNLI_NAMES, keep=(0, "{language}"))},
        {"test": Split("xnli.test.tsv", 6, 7, 1, "test", header_names=_XNLI_NAMES, keep=(0, "{language}"))},
        label_aliases={"contradictory": "contradiction"},
        language="zh",  # the only one of the original
    ),
}


def find_task(name: str, language: str = "") -> Task:
    """The task of a name, in any case; "sts_b" and "stsb" are "sts-b"."""
    wanted = name.lower().replace("_", "-")
    for key, task in TASKS.items():
        if wanted in (key, key.replace("-", "")):
            if language and not task.language:
                raise ValueError(f"--language={language}: --task_name={name} has one language only.")
            return dataclasses.replace(task, language=language or task.language)
    raise ValueError(f"--task_name={name} is not one of {', '.join(TASKS)}, custom.")
