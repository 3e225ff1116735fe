"""Models and files of data sets on the hub, against one on the loopback interface: files, cache, errors."""

import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from helpers.basics import ROOT
from helpers.hub_server import COMMIT, HubServer, hub_of, parquet_of, serving
from helpers.remote import add_file_system
from huggingface_hub import constants, file_download

import bert_tf
from bert_tf.data.tables import read_rows
from bert_tf.pretraining import corpus
from bert_tf.store.open import HUGGINGFACE
from bert_tf.store.tensor_files import open_tensors
from bert_tf.system import checks, hub, text_files

NAME, NEWER = "owner/tiny-bert.1", "0b" * 20
DESCRIPTION = {
    "config.json", "vocab.txt", "tokenizer_config.json", "modules.json", "1_Pooling/config.json", "README.md",
    "lora.safetensors", "texts.jsonl", "vectors.npy",
}  # fmt: skip
OTHERS = {"tf_model.h5", "pytorch_model.bin", "training_args.bin", "onnx/model.onnx", "onnx/vocab.txt", "optimizer.pt"}


def write(folder: pathlib.Path, names, content: bytes = b"{}") -> pathlib.Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content + name.encode() * (name != "config.json"))
    return folder


def files_in(folder) -> set[str]:
    return {str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_file()}


@pytest.fixture
def server(tmp_path, monkeypatch):
    with serving(HubServer()) as server:
        server.put(NAME, write(tmp_path / "repository", DESCRIPTION | OTHERS | {"model.safetensors"}))
        server.use_here(monkeypatch, tmp_path / "home")
        monkeypatch.chdir(tmp_path)
        yield server


def test_the_files_that_are_needed_come_once(server, tmp_path, caplog):
    caplog.set_level("INFO", "absl")
    caplog.set_level("INFO", "httpx2")
    folder = hub.local(NAME, "--init_checkpoint")
    assert folder == str(tmp_path / f"home/hub/models--owner--tiny-bert.1/snapshots/{COMMIT}")
    assert files_in(folder) == DESCRIPTION | {"model.safetensors"}
    assert (pathlib.Path(folder) / "model.safetensors").read_bytes() == b"{}model.safetensors"
    assert hub.name_of(folder) == hub.name_of(f"{folder}/model.safetensors") == f"{NAME}@{COMMIT}"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (f"Downloading {NAME}@main, commit {COMMIT}: 0.0 MB in 7 files from {server.address} to {folder}.")
    trees = [path for _, path, _ in server.requests if "/tree/" in path]
    assert len(trees) == 1 and not any(name in path for _, path, _ in server.requests for name in OTHERS)
    # Another process asks only whether there is a newer commit; this one does not ask again.
    server.requests.clear()
    assert hub.local(f"hf://{NAME}") == hub.local(f"https://huggingface.co/{NAME}") == folder
    assert hub.local(pathlib.PurePath(folder).as_posix()) == folder and not server.requests
    server.forget()
    assert hub.local(NAME) == folder and server.requests == [("GET", f"/api/models/{NAME}", None)]
    # A newer one is taken, and the other one by its revision.
    server.put(NAME, write(tmp_path / "newer", {"config.json", "pytorch_model.bin"}, b"{ }"), NEWER)
    server.forget()
    assert files_in(hub.local(NAME)) == {"config.json", "pytorch_model.bin"}
    assert hub.local(f"{NAME}@{COMMIT}") == folder and hub.local(f"{NAME}@main").endswith(NEWER)
    assert bert_tf.download(NAME, cache_dir=str(tmp_path / "other")) == folder.replace("home/hub", "other").replace(
        COMMIT, NEWER
    )


@pytest.mark.parametrize(("there", "chosen"), [
    ({"bert_model.safetensors", "model.safetensors"}, {"bert_model.safetensors"}),
    ({"model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
      "pytorch_model.bin"}, None),
    ({"pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin", "tf_model.h5"}, None),
    ({"bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.meta"}, None),
])  # fmt: skip
def test_one_kind_of_weights_comes(server, tmp_path, there, chosen):
    server.put("owner/kinds", write(tmp_path / "kinds", there | {"config.json"}))
    chosen = chosen or there - {"pytorch_model.bin", "tf_model.h5", "bert_model.ckpt.meta"}
    assert files_in(hub.local("owner/kinds")) == chosen | {"config.json"}
    assert all(any(re.fullmatch(kind, name) for kind in hub._WEIGHTS) for name in HUGGINGFACE.looked_for)


def test_a_tokenizer_needs_no_weights(server, tmp_path):
    (tmp_path / "repository" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (tmp_path / "repository" / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    (tmp_path / "repository" / "config.json").unlink()
    tokenizer = bert_tf.FullTokenizer.from_pretrained(NAME)
    assert tokenizer.tokenize("a A") == ["a", "[UNK]"]
    assert not any("model.safetensors" in path for _, path, _ in server.requests)


def test_names_of_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name in ("klue/bert-base", "klue/bert-base@v1", "a/b@refs/pr/1", "hf://models/bert", "hf://x"):
        assert hub.is_name(name), name
    paths = (
        "", "bert-base", "models/bert", "models/bert@main", "./klue/bert-base", "../a/b", "/a/b", "~/a", "a/b/c",
        "a/b/", "runs/model.ckpt", "runs/model.ckpt-100", "run/model.safetensors", "gs://a/b", "a/b@",
        "a\\b/c",
    )  # fmt: skip
    for path in paths:
        assert not hub.is_name(path) and hub.local(path) == path and hub.name_of(path) == path, path
    # A slip in the name of a folder is not asked of the hub.
    (tmp_path / "models" / "bert").mkdir()
    with pytest.raises(FileNotFoundError, match=r"^--x=modles/bert: did you mean models/bert\?"):
        hub.local("modles/bert", "--x")


def test_names_without_owner_are_those_of_their_owners_today(server, tmp_path, monkeypatch):
    owners = {"bert-large-cased-whole-word-masking-finetuned-squad": "google-bert", "roberta-large-mnli": "FacebookAI"}
    owners |= {"distilroberta-base": "distilbert", "albert-xxlarge-v2": "albert", "electra-small-generator": "google"}
    for name, owner in owners.items():
        assert hub.full_name(f"{name}@v1") == f"{owner}/{name}@v1" and hub.is_name(name)
        assert hub.full_name(f"someone/{name}") == f"someone/{name}"
    for path in ("bert-base", "all-MiniLM-L6-v2", "albert-base", "roberta-base-mine"):
        assert not hub.is_name(path) and hub.full_name(path) == path
    server.put("google-bert/bert-base-uncased", tmp_path / "repository")
    folder = hub.local("bert-base-uncased", "--init_checkpoint")
    assert folder == hub.local(f"hf://bert-base-uncased@{COMMIT}") == bert_tf.download("bert-base-uncased")
    assert hub.name_of(folder) == f"google-bert/bert-base-uncased@{COMMIT}"
    (tmp_path / "bert-base-uncased").mkdir()
    assert hub.local("bert-base-uncased") == "bert-base-uncased"


def changed_bytes(file: str):
    return lambda path, content, headers: (b"4444" + content[4:] if path.endswith(file) else content, headers)


def header(name: str, value: str, of: str):
    return lambda path, content, headers: (content, headers | ({name: value} if of in path else {}))


def commit(sha: str):
    def tamper(path, content, headers):
        return json.dumps({**json.loads(content), "sha": sha}).encode() if path.endswith(NAME) else content, headers

    return tamper


def many(path, content, headers):
    if not path.endswith(COMMIT):
        return content, headers
    entry = {"type": "file", "size": 2, "oid": "0" * 40}
    entries = [*json.loads(content), *(entry | {"path": f"{k}/config.json"} for k in range(20_000))]
    return json.dumps(entries).encode(), headers


@pytest.mark.parametrize(("tamper", "message"), [
    (changed_bytes("model.safetensors"), "model.safetensors arrived with the checksum [0-9a-f]{64}, the hub announces"),
    (changed_bytes("/vocab.txt"), "vocab.txt arrived with the checksum [0-9a-f]{40}, the hub announces [0-9a-f]{40}"),
    (header("ETag", '"../../../out"', "/resolve/"), r"the ETag of /owner/tiny-bert.1/resolve/.* is '\"../../../out\"'"),
    (header("X-Linked-Etag", '"/elsewhere/out"', "/resolve/"), "the X-Linked-Etag of "),
    (header("X-Repo-Commit", NEWER, "/resolve/"), f"the X-Repo-Commit of /owner/tiny-bert.1/resolve/.* is {NEWER!r}"),
    (many, f"^{NAME} has 20,00[0-9] configurations and vocabularies: it is not one model"),
    (commit("../../../out"), "the commit '../../../out' is not a hash"),
    (commit("\x1b[2J"), r"the commit '\\x1b\[2J'"),
    (header("Location", "file:///etc/passwd", "/resolve/"), r"UnsupportedProtocol|can't be fetched from http.*: \w+"),
])  # fmt: skip
def test_answers_of_a_mirror_that_must_not_be_taken(server, tmp_path, monkeypatch, tamper, message):
    monkeypatch.setattr(file_download.time, "sleep", lambda _: None)
    before = files_in(tmp_path)
    server.tamper = tamper
    with pytest.raises((OSError, ValueError), match=message) as error:
        hub.local(NAME)
    assert str(error.value).isprintable() and str(error.value).startswith(NAME)
    new = files_in(tmp_path) - before
    assert all(path.startswith("home/hub/") for path in new)
    server.tamper = lambda path, content, headers: (content, headers)
    server.put(NAME, tmp_path / "repository", NEWER)
    server.forget()
    assert (pathlib.Path(hub.local(NAME)) / "model.safetensors").read_bytes() == b"{}model.safetensors"


def denied(path):
    raise PermissionError(13, "Permission denied", path)


def half_zeros(path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2].ljust(len(content), b"\0"))


@pytest.mark.parametrize("is_offline", [False, True])
@pytest.mark.parametrize("file", ["model.safetensors", "vocab.txt", "config.json"])
def test_a_download_is_verified_again_if_that_was_killed(server, monkeypatch, file, is_offline):
    download = hub._download

    def killed(repo, files, is_silent):
        folder = download(repo, files, is_silent)
        if file in files:
            raise KeyboardInterrupt
        return folder

    server.tamper = changed_bytes(f"/{file}")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hub, "_download", killed)
        hub.local(NAME)
    server.tamper = lambda path, content, headers: (content, headers)
    server.forget()
    if is_offline:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(OSError, match=f"^{NAME} is not, with all its files, in the cache.*HF_HUB_OFFLINE is set"):
            hub.local(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    server.forget()
    content = (pathlib.Path(hub.local(NAME)) / file).read_bytes()
    assert content == b"{}" + file.encode() * (file != "config.json")


def test_files_of_the_cache_are_checked_once_and_when_they_change(server, tmp_path, monkeypatch, caplog):
    checked, compute = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, digest: checked.append(file) or compute(file, digest))

    def checks_of(action) -> int:
        checked.clear()
        hub._wrong_checksum.cache_clear()
        server.forget()
        action()
        return len(checked)

    weights = pathlib.Path(hub.local(NAME)) / "model.safetensors"
    assert checks_of(lambda: hub.local(NAME)) == 0
    half_zeros(weights)
    with pytest.raises(ValueError, match=r"model.safetensors is damaged: it has the checksum [0-9a-f]{64}, the hub "):
        open_tensors(str(weights))
    assert checks_of(lambda: hub.local(NAME)) == 2 and weights.read_bytes() == b"{}model.safetensors"
    assert "model.safetensors is removed: it has the checksum" in caplog.text
    # A note of another time is not trusted; where none can be written, each process checks.
    note = weights.resolve().with_name(f"{weights.resolve().name}.verified")
    note.write_bytes(b"\xff")
    assert [checks_of(lambda: hub.local(NAME)) for _ in range(2)] == [1, 0]
    note.unlink()
    note.mkdir()
    assert [checks_of(lambda: [hub.local(NAME), hub.wrong_checksum(str(weights))]) for _ in range(2)] == [1, 1]
    # A damaged file in a cache that can only be read is not used.
    half_zeros(weights)
    with monkeypatch.context() as patch, pytest.raises(OSError, match=f"^{NAME} is not, with all its.*PermissionError"):
        patch.setattr(hub.os, "remove", denied)
        hub.local(NAME)
    # Models may share a file, whose name there is another hash.
    shared, blob = tmp_path / ("f" * 64), weights.parent / os.readlink(weights)
    blob.rename(shared)
    blob.symlink_to(shared)
    weights.rename(tmp_path / "link")
    (tmp_path / "again").symlink_to(weights)
    weights.symlink_to(blob)
    assert hub.wrong_checksum(str(tmp_path / "again")).endswith(f"the hub announces {blob.name}")


OTHER_FAMILIES = ("camembert", "damaged")


@pytest.mark.parametrize(("name", "kind", "message"), [
    ("nobody/none", FileNotFoundError, "no such directory, weight file or checkpoint, and no such model on http://"),
    ("owner/private", FileNotFoundError, "or gated, accept its terms there, and set HF_TOKEN"),
    ("owner/gated", FileNotFoundError, "or gated, accept"),
    (f"{NAME}@v9", FileNotFoundError, "or not in this revision"),
    ("owner/flax", ValueError, r"has no weights in a format that is read .*It has config.json, flax_model.msgpack"),
    ("owner/camembert", ValueError, "config.json: model_type is 'camembert'; the "),
    ("owner/damaged", ValueError, "config.json"),
    ("https://huggingface.co/a/b/tree/main", ValueError, "a model on the hub is hf://OWNER/NAME"),
    ("http://example.com/model.zip", ValueError, "a model on the hub is .*; download others"),
    ("a--b/c", OSError, "Cannot have -- or .. in repo_id"),
])  # fmt: skip
def test_wrong_names_give_one_line(server, tmp_path, name, kind, message):
    for other in ("owner/private", "owner/gated"):
        server.put(other, tmp_path / "repository")
    server.private, server.gated = {"owner/private"}, {"owner/gated"}
    server.put("owner/flax", write(tmp_path / "flax", {"config.json", "flax_model.msgpack"}))
    for other in OTHER_FAMILIES:
        config = f'{{"model_type": "{other}"' + "}" * (other != "damaged")
        files = {"config.json", "model.safetensors", "tokenizer.json"}
        server.put(f"owner/{other}", write(tmp_path / other, files, config.encode()))
    of_flag = functools.partial(hub.local, flag="--teacher")
    for entrance in (bert_tf.download, of_flag):  # others: test_fine_tuning_runs.py
        with pytest.raises(kind, match=f"^{'--teacher=' * (entrance is of_flag)}{name}.*{message}") as error:
            entrance(name)
        assert type(error.value) is kind and "\n" not in str(error.value)
    if name.removeprefix("owner/") in OTHER_FAMILIES:
        fetched = {path.rpartition("/")[2] for _, path, _ in server.requests if "/resolve/" in path}
        assert fetched == {"config.json"}


def test_without_an_answer_the_cache_is_used(server, tmp_path, monkeypatch, caplog):
    server.failures = [429]
    with pytest.raises(OSError, match="429 Too Many Requests") as error:
        hub.local(NAME)
    assert "\n" not in str(error.value)
    folder = hub.local(NAME)
    server.forget()
    server.failures = [429]
    assert hub.local(NAME) == folder and "429 Too Many Requests" in caplog.text
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    server.forget()
    server.requests.clear()
    assert hub.local(NAME) == folder == hub.local(f"{NAME}@{COMMIT}")
    # What another program has put there has no list.
    shutil.rmtree(tmp_path / "home/hub/models--owner--tiny-bert.1/trees")
    assert hub.local(NAME) == folder
    for name in ("owner/other", f"{NAME}@{NEWER}"):
        with pytest.raises(OSError, match=f"^{name} is not, .*can't be fetched from http.*: HF_HUB_OFFLINE is set"):
            hub.local(name)
    os.remove(f"{folder}/model.safetensors")
    with pytest.raises((OSError, ValueError), match=f"^{NAME} "):
        hub.local(NAME)
    assert not server.requests


def test_a_run_goes_on_with_its_commit(server, tmp_path):
    add_file_system(tmp_path)
    (tmp_path / "newer").mkdir()
    server.put(NAME, write(tmp_path / "newer", {"config.json", "model.safetensors"}), NEWER)
    run = tmp_path / "output" / "seed-0"
    run.mkdir(parents=True)
    assert hub.local(NAME, output_dir=str(tmp_path / "output")).endswith(NEWER)
    (run / "run.json").write_text(f'{{"init_checkpoint": "{NAME}@{COMMIT}"}}')
    for output_dir in (str(tmp_path / "output"), "remote://output"):
        assert hub.local(NAME, output_dir=output_dir).endswith(COMMIT)
    assert hub.local(NAME, output_dir="remote://none").endswith(NEWER)
    assert hub.local(f"{NAME}@main", output_dir=str(tmp_path / "output")).endswith(NEWER)


def test_the_environment_counts_and_the_library_is_imported_for_names_only(server, tmp_path):
    code = "import sys, bert_tf.families; from bert_tf.system import hub; print(hub.local('runs/model.ckpt'), "
    code += "'huggingface_hub' in sys.modules); print(hub.local(sys.argv[1]), 'tensorflow' in sys.modules)"
    command, environment = [sys.executable, "-c", code, NAME], server.environment(tmp_path / "elsewhere")
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    folder = tmp_path / f"elsewhere/hub/models--owner--tiny-bert.1/snapshots/{COMMIT}"
    assert ran.stdout.split() == ["runs/model.ckpt", "False", str(folder), "False"], ran.stderr


# --- files of data sets -----------------------------------------------------------------------------------------------

SET = "hf://datasets/owner/name"
FILES = {
    "nli/train-00000-of-00002.parquet": parquet_of([{"text": "a"}, {"text": "b"}]),
    "nli/train-00001-of-00002.parquet": parquet_of([{"text": "c"}]),
    "nli/deep/train-2.parquet": parquet_of([{"text": "d"}]),
    "ratings.txt": b"id\tdocument\n1\tgood\n",
    "README.md": b"about",
}


@pytest.fixture
def data_sets(monkeypatch, tmp_path):
    with hub_of(monkeypatch, tmp_path, {"owner/name": FILES, "owner/empty": {".gitattributes": b""}}) as data_sets:
        yield data_sets


def test_a_glob_is_one_table(data_sets, caplog):
    with caplog.at_level("INFO"):
        checks.check_file(f"{SET}/nli/train-*.parquet", "--train_file")
    size = sum(len(FILES[name]) for name in FILES if name.startswith("nli/train-")) / 1e6
    told = f"Downloading owner/name@main, commit {COMMIT}: {size:.1f} MB in 2 files from {data_sets.address}"
    assert caplog.text.count(told) == 1
    asked = len(data_sets.requests)
    rows = [(1, {"text": "a"}), (2, {"text": "b"}), (3, {"text": "c"})]
    assert list(read_rows(f"{SET}/nli/train-*.parquet")) == rows
    assert len(data_sets.requests) == asked  # the hub is asked once in a process
    assert not any("README" in path or "deep" in path for _, path, _ in data_sets.requests)
    data_sets.forget()
    assert list(read_rows(f"{SET}/nli/train-*.parquet")) == rows and caplog.text.count("Downloading") == 1


def test_files_of_text(data_sets):
    path = f"{SET}@refs/convert/parquet/ratings.txt"
    for same in (path, path.replace("refs/convert/parquet", "~parquet")):
        assert list(read_rows(same)) == [(1, ["id", "document"]), (2, ["1", "good"])]
    assert any("/revision/refs%2Fconvert%2Fparquet" in path for _, path, _ in data_sets.requests)
    assert "".join(corpus.Corpus([f"{SET}/ratings.txt"], corpus.TextSettings()).blocks()) == "id\tdocument\n1\tgood\n"
    assert text_files.list_files(f"{SET}/*.txt,{SET}/README.md") == [f"{SET}/ratings.txt", f"{SET}/README.md"]
    assert checks.check_input_files(f"{SET}/*.txt", "--train_file") == [f"{SET}/ratings.txt"]
    page = f"{SET}/ratings.txt".replace("hf://", "https://huggingface.co/").replace("name/", "name/resolve/main/")
    checks.check_file(f"{page}?download=true", "--train_file")
    assert list(read_rows(f"{page}?download=true")) == list(read_rows(page)) == list(read_rows(path))
    assert text_files.size_of(f"{SET}/ratings.txt") == len(FILES["ratings.txt"])
    with pytest.raises(ValueError, match=r"\* matches 2 files: .*README.md, .*ratings.txt; name one"):
        list(read_rows(f"{SET}/*"))


@pytest.mark.parametrize(("address", "message"), [
    (f"{SET}s/a.txt", "there is no such data set on http://.* set HF_TOKEN"),
    (f"{SET}@v1/a.txt", "there is no such data set on http://.* or not in this revision"),
    (f"{SET}/nli/dev-*.parquet", "no file matches; there are .*, nli/train-00000-of-00002.parquet, nli/train-00001"),
    ("hf://datasets/owner/empty/train-*.parquet", "no file matches; there are none$"),
    ("hf://owner/name/a.txt", "an address on the hub is hf://datasets/OWNER/NAME/FILE, or"),
])  # fmt: skip
def test_data_sets_that_are_not_there(data_sets, address, message):
    for check in (checks.check_file, checks.check_input_files):
        with pytest.raises((OSError, ValueError), match=f"--train_file: {address.replace('*', '.')}: {message}"):
            check(address, "--train_file")
    with pytest.raises(ValueError, match=r"--output_dir=hf:.*: data sets on the hub are read, not written"):
        checks.check_output_dir(f"{SET}/out", "--output_dir")
