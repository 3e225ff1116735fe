"""Data sets on the hub: what is downloaded and told, globs, revisions, without connection, and what does not exist."""

import pathlib

import pytest
from helpers.hub_server import COMMIT, hub_of
from helpers.parquet import parquet_of

from bert_tf.data.tables import read_rows
from bert_tf.pretraining import corpus
from bert_tf.system import checks, hub, text_files

SET = "hf://datasets/owner/name"
FILES = {
    "nli/train-00000-of-00002.parquet": parquet_of([{"text": "a"}, {"text": "b"}]),
    "nli/train-00001-of-00002.parquet": parquet_of([{"text": "c"}]),
    "nli/deep/train-2.parquet": parquet_of([{"text": "d"}]),
    "ratings.txt": b"id\tdocument\n1\tgood\n",
    "README.md": b"about",
}


@pytest.fixture
def server(monkeypatch, tmp_path):
    with hub_of(monkeypatch, tmp_path, {"owner/name": FILES, "owner/empty": {".gitattributes": b""}}) as server:
        yield server


def test_a_glob_is_one_table(server, caplog):
    with caplog.at_level("INFO"):
        checks.check_file(f"{SET}/nli/train-*.parquet", "--train_file")
    size = sum(len(FILES[name]) for name in FILES if name.startswith("nli/train-")) / 1e6
    told = f"Downloading owner/name@main, commit {COMMIT}: {size:.1f} MB in 2 files from {server.address}"
    assert caplog.text.count(told) == 1
    asked = len(server.requests)
    rows = [(1, {"text": "a"}), (2, {"text": "b"}), (3, {"text": "c"})]
    assert list(read_rows(f"{SET}/nli/train-*.parquet")) == rows
    assert len(server.requests) == asked  # the hub is asked once in a process
    assert not any("README" in path or "deep" in path for _, path, _ in server.requests)
    server.forget()
    assert list(read_rows(f"{SET}/nli/train-*.parquet")) == rows and caplog.text.count("Downloading") == 1
    # A damaged file is fetched again.
    file = pathlib.Path(hub.matching(f"{SET}/nli/train-*1-of-*.parquet")[f"{SET}/nli/train-00001-of-00002.parquet"])
    file.write_bytes(file.read_bytes()[:99])
    server.forget()
    assert list(read_rows(f"{SET}/nli/train-*.parquet")) == rows and caplog.text.count("Downloading") == 2


def test_files_of_text(server):
    path = f"{SET}@refs/convert/parquet/ratings.txt"
    for same in (path, path.replace("refs/convert/parquet", "~parquet")):
        assert list(read_rows(same)) == [(1, ["id", "document"]), (2, ["1", "good"])]
    assert any("/revision/refs%2Fconvert%2Fparquet" in path for _, path, _ in server.requests)
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
    ("hf://datasets/name/a.txt", "an address on the hub is hf://datasets/OWNER/NAME/FILE, or hf://datasets/OWNER/NAM"),
])  # fmt: skip
def test_data_sets_that_are_not_there(server, address, message):
    for check in (checks.check_file, checks.check_input_files):
        with pytest.raises((OSError, ValueError), match=f"--train_file: {address.replace('*', '.')}: {message}"):
            check(address, "--train_file")
    with pytest.raises(ValueError, match=r"--output_dir=hf:.*: data sets on the hub are read, not written"):
        checks.check_output_dir(f"{SET}/out", "--output_dir")


def test_without_connection_the_cache_is_read(server, monkeypatch):
    list(read_rows(f"{SET}/nli/train-*.parquet"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    server.forget()
    server.requests.clear()
    assert len(list(read_rows(f"{SET}/nli/train-*.parquet"))) == 3 and server.requests == []
    for address in (f"{SET}/ratings.txt", "hf://datasets/owner/other/a.txt"):
        with pytest.raises(OSError, match="is not, with all its files, in the cache .*: HF_HUB_OFFLINE is set"):
            list(read_rows(address))
