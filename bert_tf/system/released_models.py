"""The models that Google released, by name: their addresses, and a cache of downloads.

Source: README.md and multilingual.md of github.com/google-research/bert, README.md of google-research/electra and
google-research/albert; the models are under the Apache License 2.0.
"""

import base64
import hashlib
import os
import posixpath
import re
import tarfile
import uuid
import zipfile
import zlib

from bert_tf.system import hub
from bert_tf.system.messages import without_logging
from bert_tf.system.storage import batch_fsync, names_in, private_folder, remove_left_behind
from bert_tf.system.text_files import anything_at

_READ_BYTES = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte
_MOST_UNPACKED = 1 << 34  # bytes of an archive; the largest released model has 3 GB

ADDRESS = "https://storage.googleapis.com"
CACHE_VARIABLE = "BERT_TF_CACHE"

_BERTS = {
    "2018_10_18": tuple(
        f"{case}_{size}" for case in ("uncased", "cased") for size in ("L-12_H-768_A-12", "L-24_H-1024_A-16")
    ),
    "2018_11_03": ("multilingual_L-12_H-768_A-12", "chinese_L-12_H-768_A-12"),
    "2018_11_23": ("multi_cased_L-12_H-768_A-12",),
    "2019_05_30": ("wwm_uncased_L-24_H-1024_A-16", "wwm_cased_L-24_H-1024_A-16"),
    "2020_02_20": tuple(
        f"uncased_L-{layers}_H-{hidden}_A-{hidden // 64}"
        for layers in (2, 4, 6, 8, 10, 12)
        for hidden in (128, 256, 512, 768)
    ),
}

MODELS: dict[str, str] = {}  # name -> path below ADDRESS
for _date, _names in _BERTS.items():
    for _name in _names:  # one was used twice: the later model, a retrained BERT-Base, is listed under its date
        MODELS[f"{_date}/{_name}" if _name in MODELS else _name] = f"bert_models/{_date}/{_name}.zip"
MODELS |= {f"electra_{size}": f"electra-data/electra_{size}.zip" for size in ("small", "base", "large")}
MODELS |= {
    f"albert_{size}_{version}": f"albert_models/albert_{size}_{version}.tar.gz"
    for size in ("base", "large", "xlarge", "xxlarge")
    for version in ("v2", "v1", "zh")
}

_OF_A_MODEL = re.compile(r".+\.index|saved_model\.pb")


def hint(path: str) -> str:
    """How to get the model that `path` names, for the end of a "not found" message; "" if it names none."""
    path = path.rstrip("/")
    name = next((name for name in (path, posixpath.dirname(path)) if name in MODELS), None)
    if not name:
        return ""
    command = f"""python -c "import bert_tf; print(bert_tf.download('{name}'))\""""
    return f" Google released a model of this name; {command} downloads it and prints its folder: use that."


def check_there(path: str) -> None:
    if not anything_at(path):
        raise FileNotFoundError(f"{path} does not exist.{hint(path)}")


def download(name: str, cache_dir: str | None = None) -> str:
    """The folder of a released model, downloaded unless it is in the cache: one of Google's, or of huggingface.co's.

        folder = bert_tf.download("uncased_L-4_H-256_A-4")
        model = bert_tf.BertForSequenceClassification.from_pretrained(folder, num_labels=2)

    The folder has the files as released: of a BERT of Google's vocab.txt, bert_config.json and bert_model.ckpt.*; of a
    model of huggingface.co those that are needed. The next call resumes a broken transfer, and the checksum that the
    server publishes is verified.

    Args:
      name: one of `MODELS` in this module: "uncased_L-12_H-768_A-12" (BERT-Base), "uncased_L-24_H-1024_A-16"
        (BERT-Large), "cased_...", "multi_cased_L-12_H-768_A-12", "chinese_L-12_H-768_A-12", "wwm_...", and the 24 small
        models, beginning with "uncased_L-2_H-128_A-2" (BERT-Tiny). The last of these has the name of BERT-Base:
        "2020_02_20/uncased_L-12_H-768_A-12". ELECTRA: "electra_small", "electra_base", "electra_large". ALBERT:
        "albert_base_v2" and so on: base, large, xlarge or xxlarge, with _v1, _v2 or, for Chinese, _zh. Or the name of a
        model of huggingface.co: "klue/bert-base", or "klue/bert-base@REVISION".
      cache_dir: a local folder; by default the environment variable BERT_TF_CACHE, or ~/.cache/bert_tf; for models of
        huggingface.co its own cache, see HF_HOME.

    Returns:
      cache_dir/name, or the folder of the model's commit in the cache of huggingface.co.

    Raises:
      ValueError: no such model (the message lists them), one of another family, or no local cache_dir.
      OSError: it could not be downloaded or written; the message has the address. cache_dir/name does not exist then.
    """
    if name not in MODELS and isinstance(name, str) and hub.is_name(name):
        return hub.local(name, cache_dir=cache_dir)
    if name not in MODELS:
        raise ValueError(f"{name!r} is not the name of a released model; the names are {', '.join(MODELS)}.")
    return _unpacked(f"{ADDRESS}/{MODELS[name]}", cache_dir, name)


def download_hub_module(address: str) -> str:
    """The directory of a module of TensorFlow Hub at an https:// address, downloaded unless it is in the cache.

    Hub addresses can give the module as a tar file. Kaggle's own pages can't.
    """
    name = f"tfhub/{hashlib.sha256(address.encode()).hexdigest()[:16]}"
    return _unpacked(f"{address}{'&' if '?' in address else '?'}tf-hub-format=compressed", None, name)


def _unpacked(address: str, cache_dir: str | None, name: str) -> str:
    """cache_dir/name, with the contents of the archive at an address, downloaded and unpacked unless it is there."""
    cache_dir = cache_dir or os.environ.get(CACHE_VARIABLE) or os.path.join("~", ".cache", "bert_tf")
    if "://" in cache_dir:
        raise ValueError(f"cache_dir={cache_dir} must be a local folder.")
    target = os.path.join(os.path.expanduser(cache_dir), *name.split("/"))
    if os.path.isdir(target):
        return target

    archive, parent = f"{target}.archive", os.path.dirname(target)
    remove_left_behind(parent)
    download_file(address, archive)
    with private_folder(parent) as temporary:
        try:
            unpacked = os.path.join(temporary, "model")
            with batch_fsync(temporary):
                _unpack(archive, unpacked)
            # The model is in a folder of its own, or, as the small models are, at the top.
            folders = [unpacked, *(os.path.join(unpacked, name) for name in names_in(unpacked))]
            models = [folder for folder in folders if any(map(_OF_A_MODEL.fullmatch, names_in(folder)))]
            if not models:
                raise OSError(f"{address} holds no checkpoint and no saved_model.pb: it is not a model.")
            os.rename(models[0], target)
        except OSError:
            if not os.path.isdir(target):  # unless another process has just downloaded it
                raise
        finally:
            os.remove(archive)
    return target


# --- archives: downloaded by `huggingface_hub`, complete or not at all, and unpacked ---------------------------------


def download_file(url: str, path: str) -> None:
    """Downloads `url` to a local path, whose directory is made once the server has answered.

    A broken transfer goes on where it broke, in this call or in the next one, as long as the server offers the same
    file, by its ETag. The checksum that Google Cloud Storage publishes is verified.
    """
    from huggingface_hub import get_session
    from huggingface_hub.file_download import http_get

    etag = part = None
    try:
        with (
            without_logging("httpx2"),
            get_session().stream("GET", url, follow_redirects=True, timeout=_TIMEOUT) as answer,
        ):
            answer.raise_for_status()  # only its headers are read
        etag, total = answer.headers.get("ETag"), int(answer.headers.get("Content-Length") or 0)
        digest = re.search(r"\bmd5=([^,\s]+)", ",".join(answer.headers.get_list("x-goog-hash")))
        published = digest and base64.b64decode(digest[1]).hex()
        key = hashlib.sha256(etag.encode()).hexdigest() if etag else uuid.uuid4().hex
        part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{key[:12]}.part")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(part, "ab") as file, without_logging("httpx2"):
            if (have := os.path.getsize(part)) > total > 0:
                have = file.truncate(0)
            name = posixpath.basename(url)
            http_get(url, file, resume_size=have, expected_size=total or None, displayed_filename=name)
        if published:
            with open(part, "rb") as file:
                checksum = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            if checksum != published:
                etag = None  # nothing is kept
                raise OSError(f"the download has the checksum md5={checksum}, the server publishes md5={published}")
        os.replace(part, path)
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = f"the server answered {status}" if status else f"{type(error).__name__}: {error}"
        hint = " What has arrived is kept: the same call continues." if etag and not status else ""
        hint = hint if part or status else " Without a network give the path of a folder."
        raise OSError(f"{url} could not be downloaded: {reason}.{hint}") from None
    finally:
        if part and not etag and os.path.exists(part):
            os.remove(part)


def _unpack(path: str, folder: str) -> None:
    """Unpacks a zip or tar file into a local folder; no entry leads out of it."""
    size, too_large = 0, f"{path} holds more than {_MOST_UNPACKED >> 30} GB: it is not a released model."
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as zipped:
                if sum(entry.file_size for entry in zipped.infolist()) > _MOST_UNPACKED:
                    raise OSError(too_large)
                zipped.extractall(folder)
            return
        with tarfile.open(path) as tarred:
            for entry in tarred:
                if (size := size + entry.size) > _MOST_UNPACKED:
                    raise OSError(too_large)
                tarred.extract(entry, folder, filter="data")
            while tarred.fileobj and tarred.fileobj.read(_READ_BYTES):  # to its end, where gzip has the checksum
                pass
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, RuntimeError, zlib.error) as error:
        raise OSError(f"{path}: not a complete zip or tar file, or entries outside of its folder: {error}") from None
