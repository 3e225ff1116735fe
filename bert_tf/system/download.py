"""Archives of released models: downloaded by `huggingface_hub`, complete or not at all, and unpacked."""

import base64
import gzip
import hashlib
import os
import posixpath
import tarfile
import uuid
import zipfile
import zlib
from collections.abc import Iterable

from bert_tf.system.messages import unheard

_READ_BYTES = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte
_MOST_UNPACKED = 1 << 34  # bytes of an archive; the largest released model has 3 GB


def download_file(url: str, path: str) -> None:
    """Downloads `url` to a local path, whose directory is made once the server has answered.

    A broken transfer goes on where it broke, in this call or in the next one, as long as the server offers the same
    file (by its ETag): its bytes stay beside `path`. If the server publishes a checksum (`x-goog-hash: md5=...`, as
    Google Cloud Storage does), it is verified.
    """
    from huggingface_hub import get_session
    from huggingface_hub.file_download import http_get

    etag = part = None
    try:
        with unheard("httpx2"), get_session().stream("GET", url, follow_redirects=True, timeout=_TIMEOUT) as answer:
            answer.raise_for_status()  # only its headers are read
        etag, total = answer.headers.get("ETag"), int(answer.headers.get("Content-Length") or 0)
        published = _published_md5(answer.headers.get_list("x-goog-hash"))
        # Only a transfer of the same file, by its ETag, can be resumed.
        key = hashlib.sha256(etag.encode()).hexdigest() if etag else uuid.uuid4().hex
        part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{key[:12]}.part")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(part, "ab") as file, unheard("httpx2"):
            if (have := os.path.getsize(part)) > total > 0:
                have = file.truncate(0)
            name = posixpath.basename(url)
            http_get(url, file, resume_size=have, expected_size=total or None, displayed_filename=name)
        if published and (found := _md5(part)) != published:
            etag = None  # nothing is kept
            raise OSError(f"what arrived has the checksum md5={found}, the server publishes md5={published}")
        os.replace(part, path)
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = (
            f"the server answered {status}"
            if status
            else " ".join(f"{error or type(error).__name__}".split())[:200].rstrip(".")
        )
        kept = " What has arrived is kept: the same call continues." if etag and not status else ""
        raise OSError(f"{url} could not be downloaded: {reason}.{kept}") from error
    finally:
        if part and not etag and os.path.exists(part):
            os.remove(part)


def _published_md5(hashes: Iterable[str]) -> str | None:
    """The MD5 sum, in hexadecimal, from headers of Google Cloud Storage; None if there is none."""
    for value in ",".join(hashes).split(","):
        kind, _, digest = value.strip().partition("=")
        if kind == "md5":
            return base64.b64decode(digest).hex()
    return None


def _md5(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def unpack_zip(path: str, directory: str) -> None:
    """Unpacks a zip file into a local directory."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            for entry in entries:
                name = entry.filename.replace("\\", "/")
                if name.startswith("/") or ".." in name.split("/") or ":" in name:
                    raise OSError(f"{path}: the entry {entry.filename!r} would be outside the folder.")
            _check_size(path, sum(entry.file_size for entry in entries))
            for entry in entries:
                archive.extract(entry, directory)
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise OSError(f"{path} is not a complete zip file: {error}") from None


def unpack_tar(path: str, directory: str) -> None:
    """Unpacks a tar file, compressed by gzip or not, into a local directory; otherwise as `unpack_zip`."""
    size = 0
    try:
        with open(path, "rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if is_gzip else file
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for entry in archive:
                    size += entry.size
                    _check_size(path, size)
                    archive.extract(entry, directory, filter="data")
            while stream.read(_READ_BYTES):  # to its end, where gzip has the checksum
                pass
    except (tarfile.TarError, EOFError, ValueError, zlib.error, gzip.BadGzipFile) as error:
        raise OSError(f"{path} is not a complete tar file, or has entries outside of its folder: {error}") from None


def _check_size(path: str, size: int) -> None:
    if size > _MOST_UNPACKED:
        raise OSError(f"{path} holds more than {_MOST_UNPACKED >> 30} GB: it is not a released model.")
