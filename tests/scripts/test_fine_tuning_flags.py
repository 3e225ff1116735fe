"""Flags of the fine-tuning scripts: mistakes are answered before TensorFlow is imported."""

import pytest
from helpers import early_mistakes
from helpers.script_cases import assert_in_order


@pytest.fixture
def files(tmp_path):
    (tmp_path / "two.csv").write_text("text,verdict\ngood film,up\n")
    (tmp_path / "two.jsonl").write_text('{"text": "good film"}\n')
    (tmp_path / "choice.csv").write_text("sent1,sent2,ending0,ending1\na,b,c,d\n")
    (tmp_path / "words.conll").write_text("\nw1 O\n")
    (tmp_path / "teacher.bin").write_text("")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text('{"task_name": "custom"}')
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "train.tsv").write_text("sentence\tlabel\na\t1\n")
    return tmp_path


CUSTOM = ["--do_train", "--task_name=custom", "--text_a=text", "--label=verdict"]
# Script -> (flags, error).
MISTAKES = {
    "run_classifier": [
        (["--do_train"], "ValueError: Which task? Give --task_name or --tfds_name."),
        (["--do_train", "--task_name=mprc"], "ValueError: --task_name=mprc is not one of *mrpc"),
        (["--do_train", "--task_name=MRPC", "--data_dir=nowhere"],
         "FileNotFoundError: nowhere/train.tsv does not exist: --task_name=mrpc needs it"),
        (["--do_train", "--task_name=mrpc", "--data_dir={}"],
         "FileNotFoundError: *train.tsv does not exist: --task_name=mrpc needs it. Give --data_dir=*/MRPC."),
        (["--do_predict", "--task_name=custom", "--text_a=text", "--test_file={}/two.csv", "--output_dir={}/begun"],
         "ValueError: Nothing to evaluate or predict with: *begun has no checkpoint * The run there ended"),
        (["--do_train", "--task_name=MRPC", "--data_dir={}/MRPC"],
         "ValueError: *MRPC/train.tsv, line 1: column 3 should be '#1 String'"),
        ([*CUSTOM, "--train_file=none.csv"], "FileNotFoundError: --train_file=none.csv"),
        ([*CUSTOM, "--train_file={}/two.jsonl"], "ValueError: *two.jsonl, line 1: no 'verdict'"),
        ([*CUSTOM, "--model_on_top=cnn"], "ValueError: --model_on_top is for the feature-based way"),
        ([*CUSTOM, "--features=last", "--lstm_on_top"],
         "ValueError: --lstm_on_top trains all of BERT, --features freezes it: give one."),
        ([*CUSTOM, "--features=last", "--model=cnn"],
         "ValueError: --features=last needs a BERT: give --model_on_top=cnn, not --model."),
        ([*CUSTOM, "--long_texts=windows", "--text_b=text"],
         "ValueError: --long_texts=windows is for single texts; leave out --text_b=text."),
        ([*CUSTOM, "--long_texts=windows", "--features=last"],
         "ValueError: --long_texts=windows combines the pooled outputs of BERT; leave out --features."),
        ([*CUSTOM, "--long_texts=windows", "--lstm_on_top"],
         "ValueError: --long_texts=windows combines the pooled outputs of BERT; leave out --lstm_on_top."),
        ([*CUSTOM, "--long_texts=windows", "--model=cnn"],
         "ValueError: --long_texts=windows is for --model=bert; this is a cnn."),
        ([*CUSTOM, "--long_texts=windows", "--teacher={}/teacher.bin"],
         "ValueError: --teacher reads a text as one row, so that --long_texts=windows can't learn from it."),
        ([*CUSTOM, "--long_texts=cut", "--max_windows=3"], "ValueError: --max_windows=3 is for --long_texts=windows."),
        ([*CUSTOM, "--learning_rate=-1"], "ValueError: --learning_rate=-1 must be more than 0, at"),
        ([*CUSTOM, "--learning_rate=0"], "ValueError: --learning_rate=0 must be more than 0, at"),
        ([*CUSTOM, "--train_file={}/two.csv", "--text_b=verdict"],
         "ValueError: --text_b and --label are both 'verdict'"),
        ([*CUSTOM, "--language=ko"], "ValueError: --language is for GLUE's tasks"),
        (["--do_train", "--tfds_name=glue/mrpc", "--text_b=sentence2"],
         "ValueError: --text_b=sentence2 is the second text: give --text_a, too."),
        (["--do_train", "--tfds_name=glue/mrpc", "--regression"],
         "ValueError: --regression is for files of your own, not for --tfds_name=glue/mrpc."),
        (["--do_predict", "--task_name=MRPC", "--search=learning_rate=2e-5,3e-5"],
         "ValueError: --search is for training: give --do_train"),
    ],
    "run_squad": [
        (["--do_train", "--train_file=none.json"], "ValueError: --train_file: no file matches 'none"),
        (["--do_predict", "--predict_file={}/two.csv", "--num_seeds=3"],
         "ValueError: --num_seeds is for training: give --do_train"),
        (["--do_eval", "--dev_file={}/two.csv", "--overwrite_output_dir"],
         "ValueError: --overwrite_output_dir is for training: give --do_train"),
        (["--do_train", "--search=learning_rate=2e-5,x"],
         "ValueError: --search: learning_rate=x is no number; write it as *"),
    ],
    "run_ner": [
        (["--do_train", "--train_file={}/words.conll", "--tag_column=4"],
         "ValueError: --train_file: *words.conll, line 2: no column --tag_column=4, there are 2"),
        (["--do_eval", "--dev_file=none.conll"], "ValueError: --dev_file: no file matches 'none"),
        (["--do_eval", "--warmup_proportion=1.5"], "ValueError: --warmup_proportion=1.5 must be from 0 to"),
        (["--do_train", "--train_file={}/words.conll", "--num_seeds=2"],
         "ValueError: --num_seeds chooses by the results on a dev set: give --do_eval"),
        (["--do_train", "--train_file={}/words.conll", "--search=learning_rate=1e-5,2e-5"],
         "ValueError: --search chooses by the results on a dev set: give --do_eval"),
    ],
    "run_swag": [
        (["--do_train", "--train_file={}/choice.csv"], "ValueError: --train_file: *choice.csv: which col"),
        (["--do_train", "--train_file={}/two.csv", "--context=text", "--choices=a,b"],
         "ValueError: --train_file: *two.csv, line *no 'a'"),
        (["--do_train", "--train_file={}/choice.csv", "--context=sent1", "--choices=ending0,sent1"],
         "ValueError: --context and --choices (2) are both 'sent1': give each its own column."),
        (["--do_train", "--search=max_seq_length=64,128"],
         "ValueError: --search: 'max_seq_length' can't be searched; learning_rate, *"),
        (["--do_train", "--search=num_train_epochs=2,3", "--num_train_epochs=3"],
         "ValueError: --num_train_epochs is also in --search: give it in one of the two."),
    ],
}  # fmt: skip


@pytest.mark.parametrize("script", MISTAKES)
def test_mistakes_are_answered_before_tensorflow_is_imported(files, script):
    cases = MISTAKES[script]
    commands = [
        [f"--output_dir={files}/out", *(flag.replace("{}", str(files)) for flag in flags)] for flags, _ in cases
    ]
    for (outcome, heavy), (_, message) in zip(early_mistakes.outcomes(script, commands), cases, strict=True):
        assert_in_order(message, outcome)
        assert outcome.startswith(message.split("*")[0]) and not heavy, outcome
    assert not (files / "out").exists()
