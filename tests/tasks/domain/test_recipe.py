"""What run_domain.py does for each family, and how it goes on; the trainings are replaced here."""

import dataclasses
import json

import pytest
from helpers.tiny import save_model

from bert_tf import BertForMaskedLM, BertForPreTraining, BertModel, ElectraDiscriminator
from bert_tf.tasks.domain import recipe
from bert_tf.tasks.domain.recipe import adapt, find_new_words, make_texts, pieces_per_word
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.training import pretraining_run


@pytest.fixture
def done(monkeypatch) -> list:
    """The settings of each training and evaluation, in order; losses and scores show from which weights they come."""
    done = []

    def pretrain(settings):
        done.append(settings)
        if settings.do_train:
            settings.check()
            pretraining_run._resolve(settings)
            return {"global_step": settings.num_train_steps}
        loss = {"start": 4.0, "pretrained": 3.0}[settings.init_checkpoint.rpartition("/")[2]]
        results = {"masked_lm_loss": loss, "masked_lm_accuracy": 0.25, "loss": loss, "global_step": 7}
        return results | ({"disc_loss": loss / 10} if settings.objective == "electra" else {})

    def fine_tune(task, run):
        done.append(run)
        recipe.tf.io.gfile.makedirs(run.output_dir)
        best = 0.5 if run.init_checkpoint.endswith("model") else 0.7
        seeds = {str(seed): {"eval_accuracy": best + 0.1 * seed, "eval_loss": 1.0} for seed in range(run.num_seeds)}
        with open(f"{run.output_dir}/seeds.json", "w") as file:
            json.dump({"seeds": seeds}, file)
        return seeds["0"]

    monkeypatch.setattr(recipe, "pretrain", pretrain)
    monkeypatch.setattr(recipe, "fine_tune", fine_tune)
    return done


def job(folder, model, with_task=False, **changes) -> DomainSettings:
    text = "".join(f"The glorfindel of {number} was here. It sang.\n" for number in range(80))
    (folder / "text.txt").write_text(text)
    (folder / "task.csv").write_text("text,verdict\n" + "yes,up\nno,down\n" * 16)
    task = {"train_file": str(folder / "task.csv"), "dev_file": str(folder / "task.csv"), "text_a": "text"}
    task |= {"label": "verdict", "num_seeds": 2, "fine_tuning_flag": ("--num_train_epochs=5",)}
    values = {"init_checkpoint": model, "output_dir": str(folder / "out"), "max_seq_length": 32, "train_batch_size": 4}
    values |= dict.fromkeys(("input_file", "heldout_file"), str(folder / "text.txt"))
    return DomainSettings(**values | (task if with_task else {}) | changes)


@pytest.mark.parametrize(("family", "model_class", "flags", "nsp", "predicted"), [
    ("bert", BertForPreTraining, {"masking": "dynamic"}, None, 5),
    ("bert", BertModel, {"masking": "dynamic", "nsp": False}, False, 5),
    ("albert", BertForPreTraining, {"masking": "dynamic", "next_sentence": "order"}, None, 5),
    ("roberta", BertForMaskedLM, {"rows": "full_sentences"}, None, None),
    ("distilbert", BertForMaskedLM, {"masking": "dynamic", "nsp": False}, None, 5),
    ("electra", ElectraDiscriminator, {"rows": "electra"}, None, None),
])  # fmt: skip
def test_each_family_is_trained_in_its_way(tmp_path, done, family, model_class, flags, nsp, predicted):
    model = save_model(tmp_path / "model", family, model_class)
    out, is_electra, has_head = tmp_path / "out", family == "electra", model_class is not BertModel
    words = {} if has_head else {"new_words": 0}
    content = adapt(job(tmp_path, model, pretraining_flag=("--seed=7", "--nodeterministic"), **words))
    # There is nothing to evaluate before a head is trained.
    *before, training, after = done
    assert [one.init_checkpoint for one in before] == [f"{out}/start"] * has_head
    assert (training.init_checkpoint, after.init_checkpoint) == (f"{out}/start", f"{out}/pretrained")
    for run in done:
        assert (run.seed, run.deterministic) == (7, False)
        assert (run.objective, run.nsp) == ("electra" if is_electra else "mlm", nsp)
        assert (run.max_seq_length, run.max_predictions_per_seq) == (32, predicted)
    summary = json.loads((out / "records" / "pretraining_data.train.json").read_text())
    assert {name: summary["flags"].get(name) for name in flags} == flags
    # One pass over the records, in steps of four.
    assert training.num_train_steps == -(-summary["rows"] // 4) and training.num_warmup_steps >= 1
    assert (training.optimizer, training.learning_rate) == ("adamw", 5e-5)
    has_words = family in ("bert", "electra", "distilbert") and has_head
    assert [(new["word"], new["count"]) for new in content["new_words"]] == [("glorfindel", 80)] * has_words
    if has_words:
        assert (out / "start" / "vocab.txt").read_text().splitlines()[30522] == "glorfindel"
        assert (out / "words.txt").read_text() == "glorfindel\n"
    else:
        assert content["pieces_per_word"] == {"before": None, "after": None}
    assert content["model"] == f"{out}/pretrained" + "/discriminator" * is_electra
    page = (out / "domain.md").read_text()
    assert ("The weights have no masked-LM head, so that" in page) != has_head
    assert ("| | the domain, before | the domain, after |" in page) == has_head != ("| | the domain, after |" in page)
    assert f"| masked_lm_loss |{' 4.000 |' * has_head} 3.000 |" in page


def test_what_needs_no_training_comes_first_and_a_job_goes_on(tmp_path, done, monkeypatch):
    model = save_model(tmp_path / "model", "bert", BertForPreTraining)
    settings = job(tmp_path, model, with_task=True, other_text=str(tmp_path / "text.txt"))
    whole = recipe.pretrain

    def killed_in_training(settings):
        if settings.do_train:
            raise KeyboardInterrupt
        return whole(settings)

    monkeypatch.setattr(recipe, "pretrain", killed_in_training)
    with pytest.raises(KeyboardInterrupt):
        adapt(settings)
    before = ["evaluation/heldout-before", "evaluation/other-before", "fine_tuning/released"]
    out = str(tmp_path / "out")
    assert [run.output_dir.removeprefix(f"{out}/") for run in done] == before
    monkeypatch.setattr(recipe, "pretrain", whole)
    done.clear()
    content = adapt(settings)
    after = ["pretrained", "evaluation/heldout-after", "evaluation/other-after", "fine_tuning/domain"]
    assert [run.output_dir.removeprefix(f"{out}/") for run in done] == after
    assert (done[-1].init_checkpoint, done[-1].num_seeds, done[-1].num_train_epochs) == (f"{out}/pretrained", 2, 5)
    done.clear()
    assert adapt(settings) == content and done == []
    assert content["losses"]["other"]["before"]["masked_lm_loss"] == 4.0
    assert content["fine_tuning"]["released"]["eval_accuracy"] == pytest.approx([0.5, 0.6])
    assert json.loads((tmp_path / "out" / "domain.json").read_text()) == content
    page = (tmp_path / "out" / "domain.md").read_text()
    for line in (
        "| | the domain, before | the domain, after | the other text, before | the other text, after |",
        "| masked_lm_loss | 4.000 | 3.000 | 4.000 | 3.000 |",
        "| | eval_accuracy |",
        "| the domain's model | 0.7500 (0.7000 to 0.8000) |",
    ):
        assert line in page.splitlines(), page
    assert "glorfindel" in page and "can't" in page and not (tmp_path / "out" / "run.lock").exists()


def test_a_task_can_be_added_later_but_no_other_training(tmp_path, done):
    model = save_model(tmp_path / "model", "bert", BertForPreTraining)
    adapt(job(tmp_path, model))
    done.clear()
    content = adapt(job(tmp_path, model, with_task=True))
    assert len(done) == 2 and set(content["fine_tuning"]) == {"released", "domain"}
    (tmp_path / "more.txt").write_text("More text.\n")
    changed = {"learning_rate": 1e-4, "new_words": 7, "max_seq_length": 16, "input_file": f"{tmp_path}/*.txt"}
    for name, value in {**changed, "num_seeds": 3, "train_batch_size": 8}.items():
        with pytest.raises(ValueError, match=f"holds a job with another --{name} .*: choose another"):
            adapt(job(tmp_path, model, with_task=True, **{name: value}))
    assert len(done) == 2


def test_after_a_mistake_the_corrected_command_goes_on(tmp_path, done):
    model = save_model(tmp_path / "model", "bert", BertForPreTraining)
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    (tmp_path / "blank.txt").write_text("\n\n \n")
    cases = [
        ({"other_text": str(tmp_path / "bad.txt")}, "bad.txt, line 1: not UTF-8"),
        ({"other_text": str(tmp_path / "blank.txt")}, "--other_text=.*: there is no text in it"),
        ({"heldout_file": None}, "--input_file, without --heldout_file: 1 documents can't be split"),
        ({"max_seq_length": 65}, "--max_seq_length=65: .* takes 64 tokens"),
        ({"pretraining_flag": ("--nosuch",)}, "--pretraining_flag: .*Unknown command line flag 'nosuch'"),
    ]
    for changes, message in cases:
        with pytest.raises(ValueError, match=message):
            adapt(job(tmp_path, model, **changes))
    assert done == [] and adapt(job(tmp_path, model))["texts"]["train"]["sentences"] == 160
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "mine.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"has files that are not of run_domain.py \(mine.txt\)"):
        adapt(job(tmp_path, model, output_dir=str(tmp_path / "others")))
    (tmp_path / "model" / "vocab.txt").unlink()
    with pytest.raises(ValueError, match=r"--init_checkpoint: .*model has no vocab.txt and no tokenizer.json"):
        adapt(job(tmp_path, model))


_NO_TASK = dict.fromkeys(("train_file", "dev_file", "text_a", "label"))
_REJECTED = [
    ({"train_file": None}, "--train_file"),
    ({**_NO_TASK, "num_seeds": 2}, "--text_a"),
    ({"fine_tuning_flag": ("seed=1",)}, "--fine_tuning_flag: seed=1 is not a flag"),
    ({"fine_tuning_flag": ("--num_seeds=5",)}, "--fine_tuning_flag: --num_seeds: run_domain.py sets it"),
    ({"pretraining_flag": ("--learning_rate=1",)}, "--learning_rate: run_domain.py sets it"),
]


def test_domain_settings_reject_and_warn(tmp_path, caplog):
    model = save_model(tmp_path / "model", "bert", BertForPreTraining)
    unset = {"heldout_file": None, "num_seeds": None, "fine_tuning_flag": ()}
    right = job(tmp_path, model, with_task=True, input_file=f"{tmp_path}/t*.txt", **unset)
    right.check()
    for changes, message in _REJECTED:
        with pytest.raises((ValueError, OSError), match=message):
            dataclasses.replace(right, **changes).check()
    dataclasses.replace(right, **_NO_TASK).check()
    assert [dataclasses.replace(right, num_seeds=count).fine_tuning()[1].num_seeds for count in (None, 5)] == [3, 5]
    (tmp_path / "other.txt").write_text("Another sentence.\n")
    dataclasses.replace(right, heldout_file=f"{tmp_path}/other.txt").check()
    assert not caplog.text
    dataclasses.replace(right, heldout_file=f"{tmp_path}/*t.txt").check()
    assert f"--heldout_file: {tmp_path}/text.txt is trained on, too: results on it say nothing" in caplog.text


# Of the fixture `small`.
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "##b", "##c", "1", "##9", "##s"]


def settings_of(folder, **changes) -> DomainSettings:
    values = {"init_checkpoint": "model", "input_file": f"{folder}/in*", "output_dir": str(folder / "out"), **changes}
    return DomainSettings(**values)


def write_documents(path, count, first=0):
    texts = (f"Number {number} is here. It is the zyx of {number}." for number in range(first, first + count))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_texts_are_split(tmp_path):
    write_documents(tmp_path / "in.jsonl", 45)
    write_documents(tmp_path / "news.jsonl", 3, first=100)
    counts = make_texts(settings_of(tmp_path, other_text=f"{tmp_path}/news.jsonl"))
    assert {name: values["documents"] for name, values in counts.items()} == {"train": 43, "heldout": 2, "other": 3}
    text = tmp_path / "out" / "text"
    assert (text / "heldout.txt").read_text() == (
        "Number 19 is here.\nIt is the zyx of 19.\n\nNumber 39 is here.\nIt is the zyx of 39.\n\n"
    )
    assert sum((text / f"{name}.txt").stat().st_size for name in counts) == sum(one["bytes"] for one in counts.values())
    assert counts["train"]["sentences"] == 86
    (tmp_path / "own.txt").write_bytes("서울은 수도다. 부산은 항구다.\n".encode("cp949"))
    counts = make_texts(settings_of(tmp_path, heldout_file=f"{tmp_path}/own.txt", encoding="cp949"))
    assert {name: values["documents"] for name, values in counts.items()} == {"train": 45, "heldout": 1}
    assert (text / "heldout.txt").read_text() == "서울은 수도다.\n부산은 항구다.\n\n"


def test_the_words_that_save_most_come_first(small):
    counts = {
        "the": 500,  # is a piece already
        "abc": 30,  # three pieces: saves 60
        "ab": 50,  # saves 50
        "abs": 25,  # saves 50 as well: by name
        "µm": 45,  # unknown as a whole: counts as two pieces
        "19": 900,  # a number
        "ac": 4,  # too rare
    }
    words = find_new_words(counts, small, 10)
    expected = {"abc": "a ##b ##c", "ab": "a ##b", "abs": "a ##b ##s", "µm": "[UNK]"}
    assert {new["word"]: " ".join(new["pieces"]) for new in words} == expected
    assert [(new["word"], new["count"]) for new in words] == [(word, counts[word]) for word in expected]
    assert find_new_words(counts, small, 2) == words[:2]
    # What the tokenizer never gives.
    assert find_new_words(dict.fromkeys(["Ab", "a-b", "a b", "é", "a" * 61], 100), small, 10) == []
    # A new word also begins longer ones.
    assert pieces_per_word({"the": 6, "abc": 2, "abcs": 2}, small, ["abc"]) == (6 + 2 + 2 * 2) / 10
