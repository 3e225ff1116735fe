"""What the demo does differently for each family of models."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class FamilyPlan:
    """How a family's demo differs from BERT's.

    Attributes:
      vocabulary: name of the vocabulary file. vocabulary_flags, record_flags, training_flags: further flags of
        create_vocab.py, create_pretraining_data.py and run_pretraining.py.
      config: further keys of the configuration.
      longer_rows: factor of the rows' length; the fewer of them are in a batch. Sentences are put in order only if
        several fit into a row.
      has_teacher: another BERT is trained first, and then taught from. share: of the plan's steps.
      trained: the directory of the model that fills masks, below the run's.
    """

    vocabulary: str = "vocab.txt"
    vocabulary_flags: Mapping[str, object] = dataclasses.field(default_factory=dict)
    record_flags: Mapping[str, object] = dataclasses.field(default_factory=dict)
    training_flags: Mapping[str, object] = dataclasses.field(default_factory=dict)
    config: Mapping[str, object] = dataclasses.field(default_factory=dict)
    longer_rows: int = 1
    has_teacher: bool = False
    share: float = 1.0
    trained: str = ""

    @property
    def is_unmasked(self) -> bool:
        """Whether the records leave the masks to the training."""
        return self.record_flags.get("masking") == "dynamic"


_SINGLE = {"masking": "dynamic", "nsp": False}

FAMILIES = {
    "bert": FamilyPlan(),
    "electra": FamilyPlan(
        record_flags=_SINGLE,
        training_flags={"objective": "electra", "generator_size": 0.5},
        trained="generator",
    ),
    "albert": FamilyPlan(
        vocabulary="spiece.model",
        vocabulary_flags={"kind": "sentencepiece"},
        record_flags={"next_sentence": "order", "ngram": 3, "do_whole_word_mask": True},
        longer_rows=2,
        # Small batches: LAMB is for thousands of rows.
        training_flags={"optimizer": "adamw"},
        config={"embedding_size": 128},
    ),
    "roberta": FamilyPlan(
        vocabulary="vocab.json",
        vocabulary_flags={"kind": "byte_bpe"},
        record_flags={"masking": "dynamic", "rows": "full_sentences"},
    ),
    "distilbert": FamilyPlan(record_flags=_SINGLE, has_teacher=True, share=0.5),
}
