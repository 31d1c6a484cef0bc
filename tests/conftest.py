"""What all tests share: servers, each started once, when the first test asks for it, and limits for hangs."""

from __future__ import annotations

pytest_plugins = ["commit_coord.testing.servers", "tests.limits"]
