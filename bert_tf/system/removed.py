"""What earlier versions had: each is refused in one line that says what to do instead."""

_ROWS = "docs/vocabulary.md has the lines of NumPy that add rows for words and positions"
# Flags, as they were called in any script.
FLAGS = {
    "add_tokens": _ROWS,
    "max_position_embeddings": _ROWS,
    "new_rows": _ROWS,
    "use_unused_slots": _ROWS,
    "beam_size": "every model has BERT's head for questions, whose candidates are --n_best_size",
    "question_head": "every model has BERT's head for questions, as in transformers; leave it out",
    "compression": "records are written uncompressed; --masking=dynamic takes less room than gzip did",
    "skip_corrupt_records": "write a damaged record file again, or leave it out of --input_file",
    "overwrite_output_dir": "rm -r the directory to begin anew",
    "verify": "what is written is always read back, every bit compared",
    "check_file": "ask the export and the model with Predictor, and compare their answers",
    "rest": "serve_client.py speaks REST alone, to the server's --rest_api_port (8501)",
}
# Values of flags.
VALUES = {
    "--format=tflite": "docs/serving.md has the lines of Python that make a file for LiteRT",
    "--format=tflite_int8": "docs/serving.md has the lines of Python that make a file for LiteRT",
}
# Names of the package, as in `from bert_tf import NAME`.
NAMES = {
    "AlbertForQuestionAnswering": "use BertForQuestionAnswering",
    "ElectraForQuestionAnswering": "use BertForQuestionAnswering",
}
# Keys of head_config.json.
_JOINT = "the joint head for questions is gone: train BERT's on this encoder, with run_squad.py"
HEADS = {"starts": _JOINT, "ends": _JOINT}
