"""A hub on the loopback interface that serves the files of data sets, as Hugging Face's does."""

import contextlib
import hashlib
import http.server
import json
import re
from collections.abc import Iterator, Mapping

from huggingface_hub import constants

from bert_tf.system import hub
from helpers.local_server import serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def hub_of(patch, folder, files: Mapping[str, Mapping[str, bytes]]) -> Iterator[list[str]]:
    """Serves data sets during the context, and yields the paths of all requests as they come.

    Args:
      patch: pytest's monkeypatch. folder: for the cache. files: OWNER/NAME -> file -> content.
    """
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0]
            requests.append(f"{self.command} {path}")
            name = next((name for name in files if f"/datasets/{name}/" in f"{path}/"), None)
            if name is None:
                return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            if match := re.search("/resolve/[^/]+/(.*)", path):
                content = files[name][match[1]]
                tag = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
                return self.answer(200, content, tag)
            if "/tree/" in path:
                tree = [{"type": "file", "path": one, "size": len(text), "oid": hashlib.sha1(text).hexdigest()}
                        for one, text in files[name].items()]  # fmt: skip
                return self.answer(200, json.dumps(tree).encode())
            about = {
                "id": name,
                "sha": COMMIT,
                "siblings": [{"rfilename": one, "size": len(text)} for one, text in files[name].items()],
            }
            return self.answer(200, json.dumps(about).encode())

        do_HEAD = do_GET

        def answer(self, status: int, content: bytes, headers: Mapping[str, str] | None = None):
            self.send_response(status)
            for key, value in {**(headers or {}), "Content-Length": len(content)}.items():
                self.send_header(key, str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    with serving(Handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        patch.setattr(constants, "ENDPOINT", address)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        forget()
        yield requests
    forget()


def forget():
    """Makes the next reading ask the hub again, as in another process."""
    hub.matching.cache_clear()
    hub._local_files.clear()
