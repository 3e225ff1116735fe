"""Downloads with a progress bar: complete or not at all, and resumed where a transfer broke off."""

import base64
import hashlib
import http.client
import os
import posixpath
import tarfile
import urllib.error
import urllib.request
import uuid
import zipfile
from collections.abc import Iterator

from bert_tf.system.messages import progress_bar

_READ_BYTES = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte


class _BrokenTransfer(Exception):
    """The server or the connection failed; another attempt may succeed."""


def download_file(url: str, path: str, attempts: int = 3) -> None:
    """Downloads `url` to a local path, whose directory is made once the server has answered.

    The bytes of a broken transfer stay beside `path`; the next attempt or the next call completes them, as long as the
    server offers the same file (by its ETag). If the server publishes a checksum (`x-goog-hash: md5=...`, as Google
    Cloud Storage does), it is verified.

    Raises:
      OSError: there is no network, the server returned an error, the transfer keeps breaking off, or the checksum
        differs; the message names the address. There is no file at `path` then.
    """
    for attempt in range(1, attempts + 1):
        try:
            return _transfer(url, path)
        except _BrokenTransfer as error:
            if attempt == attempts:
                raise OSError(
                    f"{url} could not be downloaded: {error}. Is there a network? What has arrived is kept: the same "
                    "call continues."
                ) from None


def _open(url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        message = f"the server answered {error.code} {error.reason}"
        error.close()
        if error.code >= 500:
            raise _BrokenTransfer(message) from None
        raise OSError(f"{url} could not be downloaded: {message}.") from None
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenTransfer(getattr(error, "reason", None) or error) from None


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read(_READ_BYTES):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenTransfer(error) from None


def _transfer(url: str, path: str) -> None:
    response = _open(url, {})
    etag, total = response.headers.get("ETag"), int(response.headers.get("Content-Length") or 0)
    published = _published_md5(response)
    # Only a transfer of the same file, by its ETag, can be resumed.
    key = hashlib.sha256(etag.encode()).hexdigest() if etag else uuid.uuid4().hex
    part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{key[:12]}.part")
    have = os.path.getsize(part) if os.path.exists(part) else 0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        if total and have > total:
            have = 0
        elif 0 < have < total:
            response.close()
            response = _open(url, {"Range": f"bytes={have}-", "If-Range": etag})
            have = have if response.status == 206 else 0
        with (
            open(part, "ab" if have else "wb") as file,
            progress_bar(
                total=total or None, initial=have, desc=posixpath.basename(url), unit="B", unit_scale=True, leave=False
            ) as bar,
        ):
            for chunk in _chunks(response) if have < total or not total else ():
                file.write(chunk)
                bar.update(len(chunk))
        arrived = os.path.getsize(part)
        if arrived < total:
            raise _BrokenTransfer(f"the connection ended after {arrived:,} of {total:,} bytes")
        if published and (found := _md5(part)) != published:
            os.remove(part)
            raise OSError(
                f"{url}: what arrived has the checksum md5={found}, the server publishes md5={published}: it was "
                "damaged on the way. Nothing is kept; try again."
            )
        os.replace(part, path)
    finally:
        response.close()
        if not etag and os.path.exists(part):
            os.remove(part)


def _published_md5(response: http.client.HTTPResponse) -> str | None:
    """The MD5 sum, in hexadecimal, from the headers of Google Cloud Storage; None if there is none."""
    for value in ",".join(response.headers.get_all("x-goog-hash") or ()).split(","):
        kind, _, digest = value.strip().partition("=")
        if kind == "md5":
            return base64.b64decode(digest).hex()
    return None


def _md5(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def unpack_zip(path: str, directory: str) -> None:
    """Unpacks a zip file into a local directory.

    Raises:
      OSError: it is damaged, or an entry would be outside the directory; names the file. Some entries may have been
        written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            for entry in entries:
                name = entry.filename.replace("\\", "/")
                if name.startswith("/") or ".." in name.split("/") or ":" in name:
                    raise OSError(f"{path}: the entry {entry.filename!r} would be outside the folder.")
            for entry in entries:
                archive.extract(entry, directory)
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise OSError(f"{path} is not a complete zip file: {error}") from None


def unpack_tar(path: str, directory: str) -> None:
    """Unpacks a tar file, compressed or not, into a local directory; otherwise as `unpack_zip`."""
    try:
        with tarfile.open(path) as archive:
            archive.extractall(directory, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise OSError(f"{path} is not a complete tar file, or has entries outside of its folder: {error}") from None
