"""What earlier versions had: each is refused in one line that says what to do instead."""

# Flags, as they were called in any script.
FLAGS = {
    "beam_size": "every model has BERT's head for questions, whose candidates are --n_best_size",
    "question_head": "every model has BERT's head for questions, as in transformers; leave it out",
    "verify": "what is written is always read back, every bit compared",
}
# Names of the package, as in `from bert_tf import NAME`.
NAMES = {
    "AlbertForQuestionAnswering": "use BertForQuestionAnswering",
    "ElectraForQuestionAnswering": "use BertForQuestionAnswering",
}
# Models, as head_config.json names them.
_JOINT = "fine-tune its encoder again with run_squad.py, which has BERT's head for questions"
HEADS = {"AlbertForQuestionAnswering": _JOINT, "ElectraForQuestionAnswering": _JOINT}
