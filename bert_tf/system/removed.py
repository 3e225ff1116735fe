"""What earlier versions had: each gives one line that says what to do instead."""

_ROWS = "docs/vocabulary.md has the lines of NumPy that add rows for words and positions"
# Flags, as they were called in any script.
_FEATURES = "python -m experiments.feature_based trains models on a frozen BERT, and without one"
FLAGS = {
    **dict.fromkeys(("add_tokens", "max_position_embeddings", "new_rows", "use_unused_slots"), _ROWS),
    **dict.fromkeys(("features", "model_on_top", "lstm_on_top", "lstm_size", "lstm_layers"), _FEATURES),
    **dict.fromkeys(("model", "embedding_size", "hidden_size"), _FEATURES),
    "beam_size": "every model has BERT's head for questions, whose candidates are --n_best_size",
    "ensemble": "average the probabilities of several predictions.jsonl: docs/classification.md has the lines",
    "glue_submission": "the leaderboard takes an index and a label a line: make them of predictions.jsonl",
    "question_head": "every model has BERT's head for questions, as in transformers; leave it out",
    "compression": "records are written uncompressed; --masking=dynamic takes less room than gzip did",
    "skip_corrupt_records": "write a damaged record file again, or leave it out of --input_file",
    "overwrite_output_dir": "rm -r the directory to begin anew",
    "tfds_name": "--train_file=hf://datasets/OWNER/NAME/FILE reads data sets of the hub",
    "verify": "what is written is always read back, every bit compared",
    "check_file": "ask the export and the model with Predictor, and compare their answers",
    "num_gpus": "CUDA_VISIBLE_DEVICES=0,1 in the environment says which GPUs are seen",
    "gpu_memory_growth": "TF_FORCE_GPU_ALLOW_GROWTH=false in the environment takes all memory at the start",
    "resume_from_older": "a run goes on from its newest whole checkpoint, and says so",
    "allow_unknown_config_keys": "remove the unknown keys from the configuration, where they have no effect",
    "sum_loss": "losses are summed for ELECTRA, as its authors did, and averaged for all others",
    "id_column": "--copy_columns takes the column of ids, too",
    "predictions_csv": "pandas.read_json(path, lines=True).to_csv(...) makes a table of predictions.jsonl",
    "rest": "serve_client.py speaks REST alone, to the server's --rest_api_port (8501)",
}
# Values of flags.
_LITE_RT = "docs/serving.md has the lines of Python that make a file for LiteRT"
VALUES = dict.fromkeys(("--format=tflite", "--format=tflite_int8"), _LITE_RT)
# Names of the package, as in `from bert_tf import NAME`.
NAMES = dict.fromkeys(("AlbertForQuestionAnswering", "ElectraForQuestionAnswering"), "use BertForQuestionAnswering")
# Keys of head_config.json.
_JOINT = "the joint head for questions was removed: train BERT's on this encoder, with run_squad.py"
_ON_TOP = "a {} on top was removed: train BERT's own output layer on this encoder, or see experiments/feature_based.py"
HEADS = {
    "starts": _JOINT, "ends": _JOINT, "lstm_on_top": _ON_TOP.format("BiLSTM"),
    **dict.fromkeys(("features", "model_on_top", "size_on_top"), _ON_TOP.format("model of frozen features")),
}  # fmt: skip
