"""A process that serves an in-memory S3 on a free port of the loopback, and ends when its standard input does.

moto looks whether a key exists and writes it in two steps, so that two conditional PUTs can both win. Here one lock goes round
every method that writes, which makes the condition and the write one step, as S3 promises.

    python -m tests.kit.moto_server        prints its port on the first line
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.responses import S3Response
from werkzeug.serving import WSGIRequestHandler, make_server

_WRITERS = ("put_object", "copy_object", "delete_object", "_key_response_post", "_bucket_response_delete_keys")
_lock = threading.RLock()


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    def locked(*args: Any, **kwargs: Any) -> Any:
        with _lock:
            return method(*args, **kwargs)

    return locked


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 (werkzeug's name)
        pass


def main() -> None:
    for name in _WRITERS:
        setattr(S3Response, name, _one_at_a_time(getattr(S3Response, name)))
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
