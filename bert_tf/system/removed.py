"""What earlier versions had: each is refused in one line that says what to do instead."""

# Flags, as they were called in any script.
FLAGS = {
    "beam_size": "every model has BERT's head for questions, whose candidates are --n_best_size",
    "question_head": "every model has BERT's head for questions, as in transformers; leave it out",
    "compression": "records are written uncompressed; --masking=dynamic takes less room than gzip did",
    "skip_corrupt_records": "write a damaged record file again, or leave it out of --input_file",
    "overwrite_output_dir": "rm -r the directory to begin anew",
    "verify": "what is written is always read back, every bit compared",
}
# Names of the package, as in `from bert_tf import NAME`.
NAMES = {
    "AlbertForQuestionAnswering": "use BertForQuestionAnswering",
    "ElectraForQuestionAnswering": "use BertForQuestionAnswering",
}
# Keys of head_config.json.
_JOINT = "the joint head for questions is gone: train BERT's on this encoder, with run_squad.py"
HEADS = {"starts": _JOINT, "ends": _JOINT}
