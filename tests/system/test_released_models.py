"""bert_tf.download from a local server: complete downloads, broken transfers, errors."""

import base64
import contextlib
import functools
import hashlib
import http.server
import io
import os
import shutil
import tarfile
import zipfile

import pytest
from helpers.hub_server import LocalServer, serving
from helpers.record_files import contents
from huggingface_hub import constants, file_download

import bert_tf
from bert_tf.models.task_models import BertForSequenceClassification
from bert_tf.system import released_models
from bert_tf.system.text_files import Folder
from bert_tf.text.tokenizer_files import casing_of, read_facts
from bert_tf.text.wordpiece import FullTokenizer

NAME = "uncased_L-4_H-256_A-4"
FILES = {"bert_config.json": b"{}", "vocab.txt": b"[PAD]\n", "bert_model.ckpt.index": b"index"}
FILES |= {"bert_model.ckpt.data-00000-of-00001": bytes(range(256)) * 400}


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


class Server(LocalServer):
    """One archive at every address that ends in .zip, with the headers of Google Cloud Storage.

    break_after: bytes after which the next transfers break off, first first. requests: (path, Range) of each.
    """

    def __init__(self):
        super().__init__(Handler)
        self.archive, self.etag, self.md5, self.has_ranges = zipped(FILES), '"one"', None, True
        self.break_after, self.status, self.requests = [], 200, []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.requests.append((self.path, wanted))
        if server.status == 302:
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname")
            return self.end_headers()
        if server.status != 200:
            return self.send_error(server.status)
        content, start = server.archive, 0
        # Before the headers are sent: the client's next request may come as soon as it has them.
        sent = server.break_after.pop(0) if server.break_after else None
        if wanted and server.has_ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if server.etag:
            self.send_header("ETag", server.etag)
        md5 = server.md5 or base64.b64encode(hashlib.md5(content).digest()).decode()
        self.send_header("x-goog-hash", "crc32c=AAAAAA==")
        self.send_header("x-goog-hash", f"md5={md5}")
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # who wants the headers only does not wait for the rest
            self.wfile.write(content[start:][:sent])


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what arrives is written in such pieces
    monkeypatch.setattr(file_download.time, "sleep", lambda _: None)
    with serving(Server()) as server:
        monkeypatch.setattr(released_models, "ADDRESS", server.address)
        yield server


@pytest.fixture
def fetch(tmp_path):
    return functools.partial(bert_tf.download, cache_dir=str(tmp_path / "cache"))


def test_the_small_models_and_the_first_ones(server, fetch, tmp_path, caplog, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}"))))
    left = tmp_path / "cache" / "bert_tf_private_of_a_killed_process"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    caplog.set_level("INFO", "httpx2")
    folder = fetch(NAME)
    assert folder == str(tmp_path / "cache" / NAME) and not caplog.records and contents(folder) == FILES
    assert server.requests == [(f"/bert_models/2020_02_20/{NAME}.zip", None)] * 2  # headers, then the file
    assert {*synced} >= {*FILES}  # before the folder has its name
    # In the archives of the first models, the files are in a folder.
    name = "cased_L-12_H-768_A-12"
    server.archive = zipped({f"{name}/{file}": content for file, content in FILES.items()})
    assert contents(fetch(name)) == FILES
    assert server.requests[-1] == (f"/bert_models/2018_10_18/{name}.zip", None)
    assert sorted(os.listdir(tmp_path / "cache")) == sorted([name, NAME])
    # The descendants'.
    server.archive = zipped({f"electra_small/{file}": content for file, content in FILES.items()})
    assert contents(fetch("electra_small")) == FILES
    server.archive = tarred({f"albert_base/{name}": content for name, content in FILES.items()})
    assert contents(fetch("albert_base_v2")) == FILES
    addresses = ["/electra-data/electra_small.zip", "/albert_models/albert_base_v2.tar.gz"]
    assert [path for path, _ in server.requests[4::2]] == addresses
    # A second call needs no network.
    server.status = 503
    assert fetch(NAME) == folder and len(server.requests) == 8


@pytest.mark.parametrize(("length", "has_ranges"), [(1000, True), (50_000, True), (50_000, False)])
def test_a_broken_transfer_is_continued(server, fetch, length, has_ranges):
    server.has_ranges = has_ranges  # a whole file that comes instead takes the place of its beginning
    server.break_after = [0, length]  # the first request of each call is for the headers
    assert contents(fetch(NAME)) == FILES
    assert [wanted for _, wanted in server.requests] == [None, None, f"bytes={length}-"]


@pytest.mark.parametrize("has_ranges", [True, False])
def test_what_arrived_is_kept_for_the_next_call(server, fetch, tmp_path, has_ranges):
    server.break_after = [0, 3000, *[0] * 20]
    with pytest.raises(OSError, match=r"2020_02_20/uncased_L-4_H-256_A-4.zip could not be downloaded: \w+: peer closed "
                       r"connection .*\. What has arrived is kept: the same call continues"):  # fmt: skip
        fetch(NAME)
    assert not (tmp_path / "cache" / NAME).exists()
    server.requests.clear()
    server.break_after, server.has_ranges = [], has_ranges
    assert contents(fetch(NAME)) == FILES and [wanted for _, wanted in server.requests] == [None, "bytes=3000-"]
    server.has_ranges = True
    # Another file under the same address is not continued, nor is what is longer than the file.
    for changed in (True, False):
        shutil.rmtree(tmp_path / "cache")
        server.break_after = [0, 1000, *[0] * 20]
        with pytest.raises(OSError, match="could not be downloaded"):
            fetch(NAME)
        if changed:
            server.archive, server.etag = zipped({**FILES, "vocab.txt": b"[UNK]\n"}), '"two"'
        else:
            (part,) = (tmp_path / "cache").rglob(".*.part")
            part.write_bytes(bytes(1 + len(server.archive)))
        server.break_after = []
        assert contents(fetch(NAME))["vocab.txt"] == b"[UNK]\n"


def test_without_an_etag_nothing_is_kept_for_the_next_call(server, fetch, tmp_path):
    server.etag, server.break_after = None, [0, 1000, *[0] * 20]
    with pytest.raises(OSError, match="could not be downloaded: .*peer closed"):
        fetch(NAME)
    assert not list((tmp_path / "cache").glob("*"))
    server.break_after = [0, 1000, 2000]
    server.requests.clear()
    assert contents(fetch(NAME)) == FILES
    assert [wanted for _, wanted in server.requests] == [None, None, "bytes=1000-", "bytes=3000-"]
    assert os.listdir(tmp_path / "cache") == [NAME]


# What the server has or does, and how the message goes on after the address.
FAILURES = [
    ({"md5": base64.b64encode(bytes(16)).decode()}, f"the download has the checksum .* publishes md5={'00' * 16}"),
    *(({"status": status}, f"{NAME}.zip could .* the server answered {status}") for status in (404, 503)),
    ({"status": 302}, f"{NAME}.zip could not be downloaded: .*protocol"),  # it leads to a local file
    ({"archive": tarred({**FILES, "../outside.txt": b"x"})}, "entries outside of its folder: "),
    ({"archive": b"no zip"}, "not a complete zip or tar file"),
    ({"archive": zipped({"readme.txt": b""})}, "holds no checkpoint and no saved_model.pb: it is not a model"),
    ({"archive": zipped(FILES).replace(bytes(range(256)), bytes(256), 1)}, "not a complete zip .* Bad CRC-32"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "message"), FAILURES)
def test_failed_downloads_leave_nothing_behind(server, fetch, tmp_path, changed, message):
    before = {name: getattr(server, name) for name in changed}
    vars(server).update(changed)
    with pytest.raises(OSError, match=message):
        fetch(NAME)
    assert not list((tmp_path / "cache").glob("*")) and set(os.listdir(tmp_path)) <= {"cache"}
    vars(server).update(before)
    assert contents(fetch(NAME)) == FILES


def test_entries_of_a_zip_file_stay_in_its_folder(server, fetch, tmp_path):
    outside = ("../outside.txt", "/outside.txt", "a/../../outside.txt", "..\\outside.txt", "C:x")
    server.archive = zipped({**FILES, **dict.fromkeys(outside, b"x")})
    folder = fetch(NAME)
    assert os.listdir(tmp_path) == ["cache"] and os.listdir(tmp_path / "cache") == [os.path.basename(folder)]


def test_damage_and_sizes_of_archives(tmp_path, monkeypatch):
    file, packed = tmp_path / "model.tar.gz", tarred(FILES)
    file.write_bytes(packed)
    released_models._unpack(str(file), str(tmp_path / "whole"))
    assert contents(tmp_path / "whole") == FILES
    for place in range(25, len(packed), 7):  # behind gzip's header, where are the date and the name
        file.write_bytes(packed[:place] + bytes([packed[place] ^ 4]) + packed[place + 1 :])
        with contextlib.suppress(OSError):
            released_models._unpack(str(file), str(tmp_path / str(place)))
            assert contents(tmp_path / str(place)) == FILES, place  # a bit without a meaning
    monkeypatch.setattr(released_models, "_MOST_UNPACKED", 1000)
    for content in (packed, zipped(FILES)):
        file.write_bytes(content)
        with pytest.raises(OSError, match="holds more than .* it is not a released model"):
            released_models._unpack(str(file), str(tmp_path / "large"))


def test_the_cache_folder(server, tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_TF_CACHE", str(tmp_path / "variable"))
    assert released_models.download(NAME) == str(tmp_path / "variable" / NAME)
    monkeypatch.delenv("BERT_TF_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert released_models.download(NAME) == str(tmp_path / "home" / ".cache" / "bert_tf" / NAME)
    with pytest.raises(ValueError, match="cache_dir=gs://bucket must be a local folder"):
        released_models.download(NAME, "gs://bucket")


def test_the_names():
    assert len(released_models.MODELS) == 4 + 2 + 1 + 2 + 24 + 3 + 3 * 4
    name = "uncased_L-12_H-768_A-12"
    assert released_models.MODELS[name] == f"bert_models/2018_10_18/{name}.zip"
    assert released_models.MODELS[f"2020_02_20/{name}"] == f"bert_models/2020_02_20/{name}.zip"
    assert released_models.MODELS["albert_xxlarge_v1"] == "albert_models/albert_xxlarge_v1.tar.gz"
    # The folder's name implies the casing; ALBERT has no word pieces.
    for name in released_models.MODELS:
        if name.startswith("albert"):
            continue
        uncased = "uncased" in name or name.startswith(("chinese", "multilingual", "electra"))
        assert casing_of(read_facts(Folder(f"cache/{name}", ()))).do_lower_case is uncased, name


def test_a_name_in_the_place_of_a_path_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = r"""python -c "import bert_tf; print\(bert_tf.download\('uncased_L-4_H-256_A-4'\)\)" downloads it"""
    for path in (NAME, f"{NAME}/bert_model.ckpt"):
        for reader in (FullTokenizer, BertForSequenceClassification):
            with pytest.raises(FileNotFoundError, match=line):
                reader.from_pretrained(path)
