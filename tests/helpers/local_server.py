"""An HTTP server in a thread of the test."""

import contextlib
import http.server
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def serving(server) -> Iterator[http.server.ThreadingHTTPServer]:
    if not isinstance(server, http.server.HTTPServer):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), server)
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()
