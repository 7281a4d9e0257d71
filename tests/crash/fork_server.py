"""Preloaded by the server that forks the brokers: the imports of a broker, and what the first one makes for its listeners."""

from types import SimpleNamespace
from typing import cast

import compaction.service  # noqa: F401  # as the next, loaded when it is wanted
import gateway.net.tls.identity  # noqa: F401  # loaded here once, and not by each forked broker
import tests.crash.crashing_broker  # noqa: F401  # what is forked runs it
from gateway.broker.broker import Broker
from gateway.http.admin.api import admin_api

admin_api(cast(Broker, SimpleNamespace(version="any")))
