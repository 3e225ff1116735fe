"""The grid of the paper's ablations, and comparisons of families, students, long texts and readers on a frozen BERT."""

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import pathlib
import random
import select
import signal
import sys
import types

import numpy as np
import pytest
from absl import flags
from helpers import warm
from helpers.basics import GOLDEN, ROOT, directory_of, slow
from helpers.script_cases import weights_of
from helpers.tiny import save_model

from bert_tf import BertForSequenceClassification, BertModel
from bert_tf.families import config_of_size
from experiments import ablation_grid, ablation_tables, distilled, families, feature_based, long_texts, script_runs
from experiments.ablation_grid import Pretraining, Settings
from experiments.domain_texts import pairs_of_lines, write_texts
from experiments.recipe_time import create_table, hours, phase_flops
from experiments.script_runs import Run

# Replacements of the scripts: they take no time, and count their starts.
SCRIPT = """
import os, sys
name, flags = os.path.basename(__file__), dict(part.lstrip("-").split("=", 1) for part in sys.argv[1:])
with open(os.path.join(os.path.dirname(__file__), "starts"), "a") as file:
    print(name, flags.get("output_dir", ""), file=file)
if os.environ.get("FAIL_IN", "nowhere") in flags.get("output_dir", ""):
    print("the last words")
    sys.exit(3)
if "output_dir" in flags:
    os.makedirs(flags["output_dir"], exist_ok=True)
    kind = "next_token" if flags.get("objective") == "ltr" else "masked_lm"
    lines = {
        "run_pretraining.py": {kind + "_loss": 2.0, kind + "_accuracy": 0.25, "loss": 2.5, "global_step": 7},
        "run_squad.py": {"eval_f1": 12.5, "global_step": 9},
        "run_classifier.py": {"eval_accuracy": 0.75 + 0.01 * ("no_nsp" in flags["output_dir"]), "global_step": 9},
    }[name]
    if kind == "masked_lm" and flags.get("nsp") == "True":
        lines["next_sentence_accuracy"] = 0.625
    with open(os.path.join(flags["output_dir"], "eval_results.txt"), "w") as file:
        file.writelines(f"{key} = {value}" + chr(10) for key, value in lines.items())
elif flags["output_file"].endswith("vocab.txt"):
    open(flags["output_file"], "w").write(chr(10).join("[PAD] [UNK] [CLS] [SEP] [MASK] a b".split()) + chr(10))
"""
NAMES = ("create_vocab.py", "create_pretraining_data.py", "run_pretraining.py", "run_classifier.py", "run_squad.py")


def starts(folder) -> list[str]:
    lines = (folder / "starts").read_text().splitlines() if (folder / "starts").exists() else []
    (folder / "starts").write_text("")
    return lines


def settings(output_dir, **changes) -> Settings:
    values = {
        "train_text": "train.txt", "heldout_text": "heldout.txt", "task_name": "MRPC", "data_dir": "glue/MRPC",
        "output_dir": str(output_dir), "vocab_file": None, "vocab_size": 600, "do_lower_case": True,
        "initializer_range": 0.05, "dropout": 0.0,
        "max_seq_length": 64, "num_train_steps": 50, "train_batch_size": 8, "learning_rate": 1e-3,
        "masked_lm_prob": 0.15, "max_eval_steps": 4, "fine_tuning_batch_size": 16, "fine_tuning_learning_rate": 1e-4,
        "num_train_epochs": 2.0, "num_pretraining_seeds": 1, "num_seeds": 1, "seed": 5,
    }  # fmt: skip
    return Settings(**values | changes)


def test_cells_are_those_of_the_paper():
    cells = ablation_grid.create_grid([5, 6, 8], "tiny", ["mini", "L-6_H-768_A-3"])
    assert "; ".join(cell.name for cell in cells) == (
        "BERT; No NSP; LTR & No NSP; no pre-training; mini; L-6_H-768_A-3; "
        "80 / 10 / 10; 100 / 0 / 0; 80 / 20 / 0; 80 / 0 / 20; 0 / 80 / 20; 0 / 100 / 0"
    )
    assert all(sum(cell.pretraining.rates) == 1 for cell in cells)
    assert cells[2].pretraining == Pretraining("tiny", "ltr", nsp=False)
    assert cells[0].pretraining == cells[3].pretraining == cells[6].pretraining == Pretraining("tiny")
    # Different things have different file names.
    assert len({cell.pretraining.name for cell in cells}) == len({cell.pretraining for cell in cells}) == 10
    assert len({cell.fine_tuning_name for cell in cells}) == 11


@pytest.fixture
def values(tmp_path):
    folder = str(tmp_path)
    return types.SimpleNamespace(
        train_text="train.txt", heldout_text="heldout.txt", glue_dir=folder, sst2_dir=folder, novels_dir=folder,
        output_dir=folder, init_checkpoint="minilm", vocab_size=500, max_seq_length=32, train_batch_size=8, passes=0.5,
        learning_rate=1e-3, fine_tuning_learning_rate=1e-3, words=5, num_train=6, num_dev=1, num_train_epochs=2.0,
        whole_length=512, window_stride=24, poolings=["mean", "max", "attention"],
        fine_tuning_flag=["--dtype=bfloat16"], pretraining_flag=["--dtype=bfloat16"],
    )  # fmt: skip


def check_flags(runs) -> None:
    known = json.loads((GOLDEN / "flags.json").read_text())
    assert all(run.flags.keys() <= known[run.script.removesuffix(".py")].keys() for run in runs)


def test_commands_are_those_of_the_golden_file(values, tmp_path):
    squad = {"squad_train_file": "train.json", "squad_dev_file": "dev.json", "squad_flag": ("--doc_stride=32",)}
    chosen = {"pretraining_flag": ("--dtype=bfloat16",), "vocab_file": "v.txt", "num_pretraining_seeds": 3}
    chosen = settings(tmp_path, **chosen, **squad, num_seeds=2)
    assert not ablation_grid.create_vocabulary_runs(chosen)
    students = {"taught": {"teacher": "t", "student_layers": "0,1"}, "alone": {"init_checkpoint": "t-layers"}}
    runs = {
        "ablations": ablation_grid.create_runs(ablation_grid.create_grid([5, 6], "tiny", ["mini"]), chosen),
        "families": [
            *families.data_runs(values, list(families.FAMILIES)), families.pretraining_run(values, "electra", 2, 500),
            *families.fine_tuning_runs(values, "electra", 2),
            *families.fine_tuning_runs(values, "bert", 2, from_scratch=True),
        ],
        "students": [distilled.fine_tuning_run(values, "MRPC", *student, 3) for student in students.items()],
        "long texts": long_texts.runs_of(values).values(),
    }  # fmt: skip
    check_flags(itertools.chain(*runs.values()))
    found = {
        name: {run.name: " ".join(run.command()).replace(str(tmp_path), "OUT") for run in some}
        for name, some in runs.items()
    }
    assert found == json.loads((GOLDEN / "experiments.json").read_text())


def test_configurations(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
    chosen = settings(tmp_path)
    ablation_grid.write_configurations(ablation_grid.create_grid([6], "tiny", ["mini"]), chosen)
    config = json.loads(pathlib.Path(chosen.configuration_file("mini")).read_text())
    sizes = {"vocab_size": 6, "hidden_size": 256, "initializer_range": 0.05, "hidden_dropout_prob": 0.0}
    assert (sizes | {"attention_probs_dropout_prob": 0.0}).items() <= config.items()


def test_a_grid_is_run_once_and_goes_on(tmp_path, monkeypatch):
    scripts = tmp_path / "scripts"
    directory_of(scripts, **{name.replace(".", "__"): SCRIPT for name in NAMES})
    monkeypatch.setattr(script_runs, "SCRIPTS", scripts)
    cells = ablation_grid.create_grid([5, 8], "tiny", [])
    chosen = settings(tmp_path / "out", squad_train_file="train.json", squad_dev_file="dev.json")
    runs = ablation_grid.create_vocabulary_runs(chosen) + ablation_grid.create_runs(cells, chosen)
    monkeypatch.setenv("FAIL_IN", "fine_tuning/tiny-mlm-no_nsp")
    with pytest.raises(ChildProcessError, match=r"(?s)run_classifier.py of .* failed with exit code 3; .*last words"):
        script_runs.do_runs(runs, chosen.output_dir)
    assert len(starts(scripts)) == 10
    monkeypatch.delenv("FAIL_IN")
    results = script_runs.do_runs(runs, chosen.output_dir)
    check_flags(runs)
    # Five runs of data, eight of pre-training, nine of fine-tuning, four of SQuAD; nine were done.
    started = starts(scripts)
    assert len(results) == 26 and len(started) == 17
    assert started[0] == f"run_classifier.py {tmp_path}/out/fine_tuning/tiny-mlm-no_nsp-seed_5"
    ltr = {"token_loss": 2.0, "token_accuracy": 0.25, "next_sentence_accuracy": None}
    assert results["pretraining-tiny-ltr-no_nsp-seed_5"]["results"] == ltr
    assert script_runs.do_runs(runs, chosen.output_dir) == results and starts(scripts) == []

    records = ablation_tables.create_records(cells, results, 7, ablation_grid.repetitions(chosen))
    assert [record["fine_tuning"]["eval_accuracy"]["mean"] for record in records[:4]] == [0.75, 0.76, 0.76, 0.75]
    table = ablation_tables.create_tables(records, "eval_accuracy", "MRPC accuracy, %")
    assert "| BERT | 2.000 | 7.4 | 62.5 | 75.0 | 12.5 |" in table
    assert "| LTR & No NSP | 2.000 | 7.4 |  | 76.0 | 12.5 |" in table
    assert "| no pre-training |  |  |  | 75.0 | 12.5 |" in table
    assert "| 0 / 80 / 20 | 2.000 | 7.4 | 75.0 |" in table
    assert table.count("\n## ") + table.startswith("## ") == 2
    assert table.endswith("Each cell is one run: differences may be chance.\n")

    other = ablation_grid.create_runs(cells, dataclasses.replace(chosen, num_train_steps=60))
    with pytest.raises(ValueError, match=r"has results for other flags \(pretraining-.*now --num_train_steps=60"):
        script_runs.do_runs(other, chosen.output_dir)
    assert starts(scripts) == []


def test_seeds_become_a_mean_with_its_standard_error():
    # Two seeds of fine-tuning: their standard deviation, 0.1414, divided by the root of 2.
    assert ablation_tables.estimate([[0.5, 0.7]]) == pytest.approx({"mean": 0.6, "standard_error": 0.1})
    # Two pre-trainings: only their means are independent.
    assert ablation_tables.estimate([[0.5, 0.7], [0.6, 0.64]]) == pytest.approx({"mean": 0.61, "standard_error": 0.01})
    assert ablation_tables.estimate([[0.5]]) == {"mean": 0.5, "standard_error": None}
    assert ablation_tables.parameters_of("tiny", 30522) == 4_433_468


BAR = "train:  40%|████      | 40/100 [00:10<00:15,  4.0step/s, loss=7.56]"
WARNS = """
import sys
sys.stderr.write("W1125 06:33:25.632243 140062272501440 script.py:343] Only 3 training steps.\\n")
sys.stderr.write("W0000 00:00:1795587920.719 4711 cpu.cc:12] Nothing that anyone can change.\\n")
sys.stderr.write("W1125 06:33:26.632243 140062272501440 script.py:343] Only 3 training steps.\\n")
sys.exit(len(sys.argv) - 1)
"""


def test_the_last_bar_of_a_log_is_its_progress():
    for log, progress in {
        "": "",
        f"{BAR}\r{BAR.replace('40', '41')}\nI1125 Saved\n": "train 41/100, 00:15 left",
        "train:   0%|          | 0/700 [00:00<?, ?step/s]": "",
        "write records: 100%|██████████| 8/8 [1:02:03<00:00]": "write records 8/8, 00:00 left",
    }.items():
        assert script_runs.progress_in(log) == progress


def test_warnings_and_the_end_of_this_starts_log_are_repeated_once(tmp_path, caplog, monkeypatch):
    (tmp_path / "warns.py").write_text(WARNS)
    monkeypatch.setattr(script_runs, "SCRIPTS", tmp_path)
    line = "W1125 06:33:25.6 140062272501440 old.py:1] Of an earlier start.\n"
    directory_of(tmp_path / "logs", one__log=line, two__log=line)
    with caplog.at_level(logging.WARNING):
        script_runs.do_runs([Run("one", "warns.py", {})], str(tmp_path))
    assert [record.getMessage() for record in caplog.records] == ["one: Only 3 training steps."]
    failing = Run("two", "warns.py", {"a": 1})
    with pytest.raises(ChildProcessError, match="of the run two failed with exit code 1") as raised:
        script_runs.do_run(failing, str(tmp_path))
    assert "Only 3" in str(raised.value) and "earlier" not in str(raised.value)
    assert script_runs.result_of(failing, str(tmp_path)) is None
    (tmp_path / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ChildProcessError, match="dies.py of the run three was killed, probably for memory; "):
        script_runs.do_run(Run("three", "dies.py", {}), str(tmp_path))


def test_a_script_ends_with_a_killed_starter(tmp_path):
    """What it held, such as the lock of its output, is free then: the same command can go on."""
    held, place = tmp_path / "held", str(tmp_path)
    os.mkfifo(held)
    (tmp_path / "hangs.py").write_text(
        "import os, signal\nfrom bert_tf.system import script\n"
        f"def main(_):\n    os.write(os.open({str(held)!r}, os.O_WRONLY), b'%d' % os.getpid())\n    signal.pause()\n"
        "script.run(main)\n"
    )
    program = f"""
import pathlib
from experiments import script_runs
script_runs.SCRIPTS = pathlib.Path({place!r})
script_runs.do_run(script_runs.Run("hanging", "hangs.py", {{}}), {place!r})
"""
    reader, events = os.open(held, os.O_RDONLY | os.O_NONBLOCK), select.poll()
    events.register(reader)
    starter = warm.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert events.poll(1000 * warm.HANG_SECONDS)
    child = int(os.read(reader, 20))
    try:
        starter.kill()
        assert starter.wait() == -signal.SIGKILL
        assert events.poll(1000 * warm.HANG_SECONDS) == [(reader, select.POLLHUP)]  # nobody holds it any more
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_table_of_families():
    row = {"steps": 1200, "masked_lm_loss": {"mean": 4.25, "standard_error": 0.125}}
    tasks = {task: {"mean": 0.5, "standard_error": 0.01} for task in families.TASKS}
    content = {"minutes": 10, "num_seeds": 3, "rows": {"BERT": {**row, **tasks}, "none": {"steps": 0, **tasks}}}
    lines = families.create_table(content).splitlines()
    assert lines[2] == "| BERT | 1,200 | 4.250 ± 0.125 | 50.0 ± 1.0 | 50.0 ± 1.0 | 50.0 ± 1.0 |"
    assert lines[3].startswith("| none |  |  | 50.0")


def test_the_layers_are_the_teachers(tmp_path):
    teacher = save_model(tmp_path / "teacher", "bert", BertForSequenceClassification, num_labels=2)
    distilled.write_layers(teacher, [1], str(tmp_path / "layers"))
    there, chosen = weights_of(tmp_path / "teacher"), weights_of(tmp_path / "layers")
    assert not any(name.startswith(("classifier", "output_")) or "layer_1" in name for name in chosen)
    for name, value in chosen.items():
        np.testing.assert_array_equal(value, there[name.replace("layer_0", "layer_1")], err_msg=name)
    assert distilled.sentences_per_second(teacher, ["A text.", "Another one."]) > 0


def test_examples_of_the_dev_set(values, tmp_path):
    pairs = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tA text.\tIts pair.\n"
    directory_of(tmp_path / "MRPC", dev__tsv=pairs)
    directory_of(tmp_path / "SST-2", dev__tsv="sentence\tlabel\nA text.\t1\n")
    assert distilled.dev_set(values, "MRPC") == [("A text.", "Its pair.")]
    assert distilled.dev_set(values, "SST-2") == ["A text."]


def test_long_texts_are_passages_of_one_document_with_a_review(values, tmp_path):
    novel = "One two three.\nFour five.\n\nSix seven eight nine.\nTen.\nEleven twelve.\nThirteen.\n"
    (tmp_path / "train-00.txt").write_text(novel * 20)
    (tmp_path / "heldout.txt").write_text(novel)
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "".join(f"a b c d e f{k} \t{k % 2}\n" for k in range(9)))
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nfine \t1\n")
    found = list(long_texts.passages([f"{values.novels_dir}/heldout.txt"], 5))
    assert found == [["One two three.", "Four five."], ["Six seven eight nine.", "Ten."]]
    long_texts.write_task(values)
    written = [(tmp_path / name).read_bytes() for name in ("train.csv", "dev.csv")]
    long_texts.write_task(values)
    assert written == [(tmp_path / name).read_bytes() for name in ("train.csv", "dev.csv")]
    lines = written[0].decode().splitlines()
    assert lines[0] == "text,label,place" and len(lines) == 7
    places = set()
    for line in lines[1:]:
        text, label, place = line.rsplit(",", 2)
        *review, last = text.split()[int(place) : int(place) + 6]
        assert review == list("abcde") and int(last[1:]) % 2 == int(label)
        places.add(int(place))
    assert len(places) > 1 and "fine" in (tmp_path / "dev.csv").read_text()


def test_half_of_the_rows_follow():
    lines = [f"{number} " * 15 for number in range(300)]
    pairs, again = (pairs_of_lines(lines, 200, random.Random(1), "novel.txt") for _ in range(2))
    assert pairs == again
    assert all(lines.index(other) == lines.index(text) + 1 for text, other, label in pairs if label == "follows")
    assert 70 < sum(label == "follows" for *_, label in pairs) < 130


def test_texts_of_the_domain(values, tmp_path):
    articles = [{"paragraphs": [{"context": f"{name}{k}", "qas": []} for k in range(2)]} for name in "ab"]
    (tmp_path / "squad.json").write_text(json.dumps({"data": articles}))
    for name in ("train-06.txt", "train-07.txt", "heldout.txt"):
        (tmp_path / name).write_text("".join(f"{name}, {number}, " * 8 + "\n" for number in range(100)))
    values.squad_train_file = values.squad_dev_file = str(tmp_path / "squad.json")
    values.output_dir, values.num_train, values.num_dev = str(tmp_path / "out"), 20, 10
    write_texts(values)
    texts = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert set(texts) == {"wiki.txt", "wiki_other.txt", "train.csv", "dev.csv"}
    assert texts["wiki.txt"] == texts["wiki_other.txt"] == "a0\na1\n\nb0\nb1\n\n"
    assert texts["train.csv"].startswith("text,other,label\n") and texts["train.csv"].count("\n") == 21
    assert "heldout" not in texts["train.csv"] and "train-0" not in texts["dev.csv"]


def test_operations_are_about_six_per_parameter_and_token():
    """The usual estimate; attention, which it leaves out, adds a tenth at 128 tokens and more at 512. Of the last layer
    only keys and values are needed for all tokens."""
    config = config_of_size("base")
    matrices = 11 * (4 * 768**2 + 2 * 768 * 3072) + 2 * 768**2
    short, long = phase_flops(config)
    assert 1.0 < short / (6 * matrices * 900_000 * 256 * 128) < 1.15
    assert 1.1 < long / (6 * matrices * 100_000 * 256 * 512) < 1.25
    assert hours(3600 * 400e12, 1000e12, 0.4) == pytest.approx(1.0)
    first, total = (create_table(["base"], rate).splitlines()[2].split(" | ") for rate in (0.25, 0.5))
    assert first[:4] == total[:4]  # operations do not depend on the utilisation; hours do
    assert float(first[4]) == pytest.approx(2 * float(total[4]), rel=0.02)


# Readers on a frozen BERT.
TRAIN = "".join(f"w{k % 9} O\n{name} B-PER\n\n" for k in range(24) for name in ("good", "bad"))
TEXTS = "text,label\n" + "".join(
    f"w{k % 9} {word},{label}\n" for k in range(24) for word, label in (("good", "up"), ("bad", "down"))
)


@pytest.mark.parametrize(("features", "reader"), slow(("sum_last_four", "bilstm"), ("none", "cnn")))
def test_a_reader_learns_and_bert_does_not(tmp_path, monkeypatch, capsys, features, reader):
    of_texts = reader == "cnn"
    path = save_model(tmp_path / "bert", "bert", BertModel)
    (tmp_path / "train").write_text(TEXTS if of_texts else TRAIN)
    values = types.SimpleNamespace(
        init_checkpoint=path, train_file=str(tmp_path / "train"), dev_file=str(tmp_path / "train"),
        text_column="text" if of_texts else None, label_column="label", features=features, reader=reader, width=12,
        learning_rate=3e-2, epochs=8, batch_size=8, max_seq_length=12, seed=1,
    )  # fmt: skip
    models, made = [], feature_based.Reader
    monkeypatch.setattr(feature_based, "Reader", lambda *given: models.append(made(*given)) or models[0])
    monkeypatch.setattr(flags, "FLAGS", values)
    feature_based.main(None)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(lines) == 8 and float(lines[-1].split()[-1]) > 0.95  # accuracy
    for variable, before in zip(models[0].bert.weights, BertModel.from_pretrained(path).weights, strict=True):
        np.testing.assert_array_equal(variable, before, err_msg=variable.path)


def test_padding_has_no_influence_and_only_first_pieces_have_labels(tmp_path):
    path = save_model(tmp_path / "bert", "bert", BertModel)
    sentences = [(["w1", "good", "w2"], ["O", "B-PER", "O"]), (["bad"], ["O"])]
    tokenizer = feature_based.read_tokenizer(path)
    for reader in ("bilstm", "cnn"):
        model = feature_based.Reader(BertModel.from_pretrained(path), "last", reader, 12, 2, True)
        short, long = (feature_based.encode(sentences, tokenizer, ["B-PER", "O"], length) for length in (8, 16))
        np.testing.assert_allclose(model(short[0]), model(long[0]), atol=1e-5)
        assert short[1].tolist()[0][:6] == [-1, 1, -1, 0, 1, -1] and (short[1] >= 0).sum() == 4  # w1 has two pieces
