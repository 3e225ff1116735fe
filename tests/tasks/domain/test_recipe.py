"""The scripts that run_domain.py starts for each family, and how it goes on; the scripts are replaced here."""

import json
import os

import pytest
from helpers.descendants import save_model

from bert_tf import BertForMaskedLM, BertForPreTraining, BertModel
from bert_tf.models.electra import ElectraDiscriminator
from bert_tf.system import script_runs
from bert_tf.tasks.domain.recipe import adapt
from bert_tf.tasks.domain.report import closing_lines
from bert_tf.tasks.domain.settings import DomainSettings

# Replacements of the scripts: they write what the recipe reads, and note their start.
SCRIPT = """
import json, os, shutil, sys
if "--only_check_args" in sys.argv:
    sys.exit("script.py: error: Unknown command line flag 'nosuch'" if "--nosuch" in sys.argv else 0)
flags = dict(part.lstrip("-").split("=", 1) for part in sys.argv[1:])
with open(os.path.join(os.path.dirname(__file__), "starts"), "a") as file:
    file.write(os.path.basename(__file__) + chr(10))
if os.environ.get("FAIL_IN", "nowhere") in flags.get("output_dir", ""):
    sys.exit("the last words")
def write(folder, name, content):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "w") as file:
        file.write(content)
kind, out = os.path.basename(__file__), flags.get("output_dir")
if kind == "convert_checkpoint.py":
    shutil.copytree(flags["from"], flags["to"], dirs_exist_ok=True)
elif kind == "create_pretraining_data.py":
    folder, name = os.path.split(flags["output_file"])
    write(folder, "pretraining_data." + name.split(".")[0] + ".json", json.dumps({"rows": 70}))
elif kind == "run_classifier.py":
    seeds = {str(seed): {"eval_accuracy": 0.5 + 0.1 * seed, "eval_loss": 1.0, "global_step": 9} for seed in range(2)}
    write(out, "seeds.json", json.dumps({"seeds": seeds}))
elif flags.get("do_train"):
    write(out, "run.json", json.dumps({"seed": 1}))
    lines = [{"kind": "train", "step": step, "masked_lm_loss": 9.0 / step, "disc_loss": 0.5} for step in (1, 2)]
    write(out, "train_log.jsonl", "".join(json.dumps(line) + chr(10) for line in lines))
else:
    loss = 4.0 if out.endswith("before") else 3.0
    found = {"masked_lm_loss": loss, "masked_lm_accuracy": 0.25, "loss": loss, "global_step": 7}
    found |= {"disc_loss": 0.4} if flags.get("objective") == "electra" else {}
    write(out, "eval_results.txt", "".join(f"{key} = {value}" + chr(10) for key, value in found.items()))
"""
NAMES = ("convert_checkpoint", "create_pretraining_data", "run_pretraining", "run_classifier")
TASK = {"text_a": "text", "label": "verdict", "num_seeds": 2}


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    folder = tmp_path / "scripts"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(SCRIPT)
    monkeypatch.setattr(script_runs, "SCRIPTS", folder)
    return folder


def starts(folder) -> list[str]:
    """The scripts started since the last call."""
    path = folder / "starts"
    lines = path.read_text().split() if path.exists() else []
    path.write_text("")
    return lines


def job(folder, model, **changes) -> DomainSettings:
    text = "".join(f"The glorfindel of {number} was here. It sang.\n" for number in range(300))
    (folder / "text.txt").write_text(text)
    (folder / "task.csv").write_text("text,verdict\n" + "yes,up\nno,down\n" * 16)
    values = {
        "init_checkpoint": model, "input_file": str(folder / "text.txt"), "output_dir": str(folder / "out"),
        "heldout_file": str(folder / "text.txt"), "max_seq_length": 32, "train_batch_size": 8, **changes,
    }  # fmt: skip
    return DomainSettings(**values)


def with_task(folder) -> dict:
    return {"train_file": str(folder / "task.csv"), "dev_file": str(folder / "task.csv"), **TASK}


def commands(folder) -> dict[str, list[str]]:
    return {path.stem: json.loads(path.read_text())["command"] for path in (folder / "out" / "results").iterdir()}


@pytest.mark.parametrize(
    ("family", "model_class", "of_records", "of_training", "predicted"),
    [
        ("bert", BertForPreTraining, {"--masking=dynamic", "--next_sentence=random"}, set(), 5),
        ("bert", BertModel, {"--masking=dynamic", "--nsp=False"}, {"--nsp=False"}, 5),
        ("albert", BertForPreTraining, {"--masking=dynamic", "--next_sentence=order"}, set(), 5),
        ("roberta", BertForMaskedLM, {"--rows=full_sentences"}, set(), None),
        ("electra", ElectraDiscriminator, {"--rows=electra"}, {"--objective=electra"}, None),
    ],
)
def test_each_family_is_trained_in_its_way(tmp_path, scripts, family, model_class, of_records, of_training, predicted):
    model = save_model(tmp_path / "model", family, model_class)
    further = ("--seed=7", "--deterministic=false")
    settings = job(tmp_path, model, pretraining_flag=further)
    settings.check()
    content, made = adapt(settings), commands(tmp_path)
    assert {name for name, command in made.items() if {*further} <= {*command}} == {*made} & {
        "evaluation-heldout-before", "pretraining", "evaluation-heldout-after"}  # fmt: skip
    # There is nothing to evaluate before a head is trained.
    before = ["evaluation-heldout-before"] if model_class is not BertModel else []
    after = ["pretraining", "evaluation-heldout-after"]
    assert set(made) == {"start", "records-train", "records-heldout", *before, *after}
    chosen = ("--masking", "--next_sentence", "--nsp", "--rows", "--objective")
    for name, expected in (("records-train", of_records), ("pretraining", of_training)):
        assert {part for part in made[name] if part.startswith(chosen)} == expected
    for name in (*before, *after):
        numbers = [part for part in made[name] if "max_predictions" in part]
        assert numbers == ([f"--max_predictions_per_seq={predicted}"] if predicted else [])
    # 70 records are one pass of nine steps.
    assert {"--num_train_steps=9", "--num_warmup_steps=1", "--learning_rate=5e-05", "--optimizer=adamw"} < set(
        made["pretraining"]
    )
    has_words = family in ("bert", "distilbert", "electra")
    assert [new["word"] for new in content["new_words"]][:1] == ["glorfindel"] * has_words
    assert (f"--add_tokens={tmp_path}/out/words.txt" in made["start"]) == has_words
    assert content["model"] == f"{tmp_path}/out/pretrained" + "/discriminator" * (family == "electra")
    page, ending = (tmp_path / "out" / "domain.md").read_text(), closing_lines(str(tmp_path / "out"), content)
    head = {"electra": "head for replaced tokens"}.get(family, "masked-LM head")
    for text in (page, ending):
        assert (f"The weights have no {head}, so that" in text) == (model_class is BertModel)
    assert ("| | the domain, before | after |" in page) == bool(before) != ("| | the domain, after |" in page)
    assert f"masked_lm_loss: {'4.000 -> ' * len(before)}3.000" in ending


def test_what_needs_no_training_comes_first_and_a_job_goes_on(tmp_path, scripts, monkeypatch):
    model = save_model(tmp_path / "model", "bert", BertForPreTraining)
    settings = job(tmp_path, model, other_text=str(tmp_path / "text.txt"), **with_task(tmp_path))
    monkeypatch.setenv("FAIL_IN", "/pretrained")
    with pytest.raises(ChildProcessError, match="(?s)run_pretraining.py failed .*the last words"):
        adapt(settings)
    assert starts(scripts) == [
        "convert_checkpoint.py", *["create_pretraining_data.py"] * 3, *["run_pretraining.py"] * 2, "run_classifier.py",
        "run_pretraining.py",
    ]  # fmt: skip
    monkeypatch.delenv("FAIL_IN")
    content = adapt(settings)
    assert starts(scripts) == [*["run_pretraining.py"] * 3, "run_classifier.py"]
    assert adapt(settings) == content and starts(scripts) == []
    assert content["losses"]["other"]["before"]["masked_lm_loss"] == 4.0
    assert content["fine_tuning"]["domain"]["eval_accuracy"] == [0.5, 0.6]
    assert json.loads((tmp_path / "out" / "domain.json").read_text()) == json.loads(json.dumps(content))
    page = (tmp_path / "out" / "domain.md").read_text()
    for line in (
        "## What lies where",
        "| | the domain, before | after | the other text, before | after |",
        "| masked_lm_loss | 4.000 | 3.000 | 4.000 | 3.000 |",
        "| | eval_accuracy |",
        "| the domain's model | 0.5500 (0.5000 to 0.6000) |",
    ):
        assert line in page.splitlines(), page
    assert "glorfindel" in page and "can't" in page
    assert not os.path.exists(tmp_path / "out" / "run.lock")
    ending = closing_lines(settings.output_dir, content)
    assert "the domain, masked_lm_loss: 4.000 -> 3.000" in ending and f"--init_checkpoint={content['model']}" in ending


def test_a_task_can_be_added_later_but_no_other_training(tmp_path, scripts):
    model = save_model(tmp_path / "model", "bert", BertForPreTraining)
    adapt(job(tmp_path, model))
    starts(scripts)
    content = adapt(job(tmp_path, model, **with_task(tmp_path)))
    assert starts(scripts) == ["run_classifier.py"] * 2 and set(content["fine_tuning"]) == {"released", "domain"}
    for changes, named in (({"learning_rate": 1e-4}, "--learning_rate"), ({"new_words": 7}, "--new_words")):
        with pytest.raises(ValueError, match=f"holds a job with another {named}: choose another"):
            adapt(job(tmp_path, model, **changes))
    (tmp_path / "more.txt").write_text("More text.\n")
    with pytest.raises(ValueError, match="holds a job with another --input_file"):
        adapt(job(tmp_path, model, input_file=str(tmp_path / "*.txt")))
    assert starts(scripts) == []


def test_what_is_refused_leaves_nothing(tmp_path, scripts):
    model = save_model(tmp_path / "model", "bert", BertForPreTraining)
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    cases = [
        ({"other_text": str(tmp_path / "bad.txt")}, "bad.txt, line 1: not UTF-8"),
        ({"max_seq_length": 65}, "--max_seq_length=65 is more than the 64 tokens of --init_checkpoint"),
        ({"pretraining_flag": ("--nosuch",)}, "--pretraining_flag: .*Unknown command line flag 'nosuch'"),
    ]
    for changes, message in cases:
        with pytest.raises(ValueError, match=message):
            adapt(job(tmp_path, model, **changes))
        assert not (tmp_path / "out").exists()
    (tmp_path / "out" / "text").mkdir(parents=True)
    (tmp_path / "out" / "text" / "mine.txt").write_text("precious")
    with pytest.raises(ValueError, match="has files that are not of run_domain.py"):
        adapt(job(tmp_path, model))
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["text", "mine.txt"]
    for settings in ("{}", '{"texts": 1, "pretraining": {}}'):  # as an editor may keep it
        (tmp_path / "out" / "settings.json").write_text(settings)
        with pytest.raises(ValueError, match="has files that are not of run_domain.py"):
            adapt(job(tmp_path, model))
        assert (tmp_path / "out" / "text" / "mine.txt").exists()
        assert (tmp_path / "out" / "settings.json").read_text() == settings
    assert starts(scripts) == []


def test_weights_without_a_vocabulary(tmp_path, scripts):
    model = save_model(tmp_path / "model", "bert", BertForPreTraining)
    (tmp_path / "model" / "vocab.txt").unlink()
    with pytest.raises(ValueError, match=r"--init_checkpoint=.* has no vocab.txt beside it"):
        adapt(job(tmp_path, model))
