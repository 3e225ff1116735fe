"""Servers in a thread of the test, such as a hub: what huggingface_hub asks of huggingface.co, with its redirects and
errors; and Parquet files as Hugging Face's `datasets` writes them.
"""

import contextlib
import hashlib
import http.server
import io
import json
import os
import pathlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow
from huggingface_hub import constants
from pyarrow import parquet

from bert_tf.system import hub

COMMIT = "0a" * 20
_PATHS = re.compile(
    r"/(?:api/)?(?:models/)?((?:datasets/)?[\w.-]+/[\w.-]+)(?:/(revision|tree|resolve|cdn)/([^/]+)(?:/(.*))?)?"
)
_LARGE = (".safetensors", ".bin", ".model")  # in LFS


class LocalServer(http.server.ThreadingHTTPServer):
    def __init__(self, handler):
        handler.log_message = lambda *_: None
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextlib.contextmanager
def serving(server) -> Iterator[LocalServer]:
    if not isinstance(server, LocalServer):
        server = LocalServer(server)
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


class HubServer(LocalServer):
    """Serves models: name, of a data set datasets/name -> {commit -> folder}, the last that of main and of refs/.

    failures: statuses of the next API answers. tamper: path, content, headers -> those to send. requests: method, path,
    Range. Names that are private or gated need a token.
    """

    def __init__(self):
        super().__init__(_Handler)
        self.models: dict[str, dict[str, pathlib.Path]] = {}
        self.private, self.gated, self.failures, self.requests = set(), set(), [], []
        self.tamper: Callable = lambda path, content, headers: (content, headers)

    def put(self, name: str, folder, commit: str = COMMIT) -> None:
        self.models.setdefault(name, {})[commit] = pathlib.Path(folder)

    def use_here(self, monkeypatch, home) -> None:
        """Makes this process use the hub, with its cache in a folder, in which `environment` would put it."""
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {
            "ENDPOINT": self.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": self.address + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": f"{home}/hub",
            "HF_TOKEN_PATH": f"{home}/token",
            "HF_HUB_OFFLINE": False,
        }.items():
            monkeypatch.setattr(constants, name, value)
        self.forget()

    @staticmethod
    def forget() -> None:
        hub._at_commit.cache_clear()
        hub.matching.cache_clear()

    def environment(self, home) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return kept | {"HF_ENDPOINT": self.address, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server, path = self.server, self.path.partition("?")[0]
        server.requests.append((self.command, path, self.headers.get("Range")))
        name, kind, revision, file = _PATHS.fullmatch(path).groups()
        if path.startswith("/api") and server.failures:
            return self._send(server.failures.pop(0))
        if name in server.private or name not in server.models:
            return self._send(401, headers={"X-Error-Message": "Invalid username or password."})
        if name in server.gated and kind != "cdn" and not path.startswith("/api"):
            return self._send(403, headers={"X-Error-Code": "GatedRepo"})
        commits, is_newest = server.models[name], revision in (None, "main") or revision.startswith("refs%2F")
        commit = [*commits][-1] if is_newest else revision
        if commit not in commits:
            return self._send(404, headers={"X-Error-Code": "RevisionNotFound"})
        folder = commits[commit]
        if kind in (None, "revision"):
            return self._send(200, json.dumps({"id": name, "sha": commit, "siblings": []}).encode())
        if kind == "tree":
            paths = sorted(listed for listed in folder.rglob("*") if listed.is_file())
            return self._send(200, json.dumps([self._entry(listed, folder) for listed in paths]).encode())
        if not (folder / file).is_file():
            return self._send(404, headers={"X-Error-Code": "EntryNotFound"})
        self._send_file(kind, name, commit, file, (folder / file).read_bytes())

    do_HEAD = do_GET

    @staticmethod
    def _entry(file: pathlib.Path, folder: pathlib.Path) -> dict:
        content = file.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry = {"type": "file", "path": str(file.relative_to(folder)), "size": len(content), "oid": git}
        if file.name.endswith(_LARGE):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return entry

    def _send_file(self, kind: str, name: str, commit: str, file: str, content: bytes):
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        if kind == "resolve" and file.endswith(_LARGE):  # of which the repository has a pointer
            headers = {"X-Linked-Size": str(len(content)), "X-Linked-Etag": etag}
            headers |= {"X-Repo-Commit": commit, "Location": f"{self.server.address}/{name}/cdn/{commit}/{file}"}
            return self._send(302, headers=headers)
        self._send(200, content, {"X-Repo-Commit": commit, "ETag": etag})

    def _send(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None):
        content, headers = self.server.tamper(self.path.partition("?")[0], content, headers or {})
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@contextlib.contextmanager
def hub_of(monkeypatch, folder: pathlib.Path, files: Mapping[str, Mapping[str, bytes]]) -> Iterator[HubServer]:
    """A hub that this process uses during the context, with data sets; files: OWNER/NAME -> file -> content."""
    with serving(HubServer()) as server:
        for name in files:
            for file, content in files[name].items():
                path = folder / "served" / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            server.put(f"datasets/{name}", folder / "served" / name)
        server.use_here(monkeypatch, folder)
        yield server
    server.forget()


def parquet_of(rows: Sequence[dict], **classes) -> bytes:
    """The bytes of a Parquet file. classes: column -> names of a ClassLabel, or the feature as JSON."""
    features = {name: {"dtype": "string", "_type": "Value"} for name in rows[0]} if rows else {}
    for name, of in classes.items():
        features[name] = {"names": of, "_type": "ClassLabel"} if isinstance(of, list) else of
    table = pyarrow.Table.from_pylist(list(rows))
    if classes:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    content = io.BytesIO()
    parquet.write_table(table, content)
    return content.getvalue()
