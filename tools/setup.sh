#!/bin/sh
# Installs what a make target needs and is missing; a second run finds everything there and says nothing.
#   tools/setup.sh compiler | system | c-tests | promtool | bench | python | demo | torch | torch-oldest | others | lint
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} go=${GO:-go}
venv=.venv py=.venv/bin/python tools=.tools

fail() { echo "stocached: $*" >&2; exit 1; }

# A C compiler with its headers: Debian leaves it out of a small installation.
compiler() {
    echo '#include <stdlib.h>' | ${CC:-cc} -fsyntax-only -xc - 2>/dev/null || install_packages gcc libc6-dev
}

# The same, Go, and Python with venv, which Debian leaves out as well.
system() {
    command -v "$python" >/dev/null || fail "no $python here: install Python 3.10 or later, or say PYTHON=/path/to/python3"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "$("$python" --version) is too old: Python 3.10 or later is needed"
    command -v "$go" >/dev/null || fail "no go here: install Go 1.26 or later (https://go.dev/dl), or say GO=/path/to/go"
    compiler
    "$python" -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
}

# What the C tests need beside a C compiler.
c_tests() {
    missing=
    command -v "${CXX:-c++}" >/dev/null || missing="$missing g++"
    command -v pkg-config >/dev/null || missing="$missing pkg-config"
    install_packages $missing
}

# What checks alert rules and metrics, taken out of its package: installed, that would start a service. Without it one test is skipped, and says so.
take_promtool() {
    command -v promtool >/dev/null || [ -x "$tools/promtool" ] || ! command -v apt-get >/dev/null && return
    echo "stocached: taking promtool out of the package prometheus into $tools"
    [ "$(id -u)" != 0 ] || apt-get update -qq || true
    scratch=$(mktemp -d)
    if (cd "$scratch" && apt-get download -qq prometheus >/dev/null 2>&1 && dpkg-deb -x prometheus_*.deb .); then
        mkdir -p "$tools" && cp "$scratch/usr/bin/promtool" "$tools/promtool"
    else
        echo "stocached: the package prometheus cannot be had here; what promtool checks is skipped"
    fi
    rm -rf "$scratch"
}

# What the server is compared with. Debian starts both as services when they are installed: these are not used, and disabled where that can be done.
bench() {
    missing=
    command -v redis-server >/dev/null || missing="$missing redis-server"
    command -v memcached >/dev/null || missing="$missing memcached"
    install_packages $missing
}

install_packages() {
    [ $# = 0 ] && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "stocached: installing $*"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    else
        fail "missing: $*. On Debian and Ubuntu: sudo apt-get install -y $*"
    fi
}

# pip_install STAMP WHAT FILE... -- ARGUMENT...: installs once, and again when one of the files is newer than the stamp.
pip_install() {
    stamp=$venv/.installed-$1 what=$2
    shift 2
    fresh=$stamp
    [ -e "$stamp" ] || fresh=
    while [ "$1" != -- ]; do
        [ -n "$fresh" ] && [ -n "$(find "$1" -type f -newer "$stamp" -not -path '*/__pycache__/*' -print -quit)" ] && fresh=
        shift
    done
    shift
    [ -n "$fresh" ] && return
    echo "stocached: installing $what into $venv"
    install "$@"
    touch "$stamp"
}

# uv installs what pip installs, and downloads and unpacks packages side by side. Where it cannot do that, pip does it.
install() {
    links=$(echo "${PIP_FIND_LINKS-}" | tr ' ' ,)
    knows_uv && UV_FIND_LINKS=$links "$venv/bin/uv" pip install --quiet --compile-bytecode --python "$py" "$@" && return
    pip "$@"
}

pip() { "$py" -m pip install --quiet --disable-pip-version-check "$@"; }

# It sees no packages of the base Python, and reads no settings of pip.
knows_uv() {
    [ "${UV:-1}" != 0 ] && grep -q 'system-site-packages = false' "$venv/pyvenv.cfg" || return
    "$py" -m pip config list | grep -v '^:env:.find-links' | grep -q -e index -e find-links -e proxy && return 1
    [ -x "$venv/bin/uv" ] || pip -r tools/requirements-uv.txt 2>/dev/null
}

# has PACKAGE VERSION: that version of it or a later one is installed. To import torch would take seconds.
has() {
    "$py" - "$@" <<'end' 2>/dev/null
import sys
from importlib.metadata import version
sys.exit([int(part) for part in version(sys.argv[1]).split(".")[:2]] < [int(part) for part in sys.argv[2].split(".")])
end
}

# With system packages visible only where the base Python has torch, so that it is used and not installed again.
environment() {
    [ -x "$py" ] && return
    echo "stocached: making the virtual environment $venv with $("$python" --version)"
    if [ "${TORCH:-1}" != 0 ] && "$python" -c 'import torch' 2>/dev/null; then
        "$python" -m venv --system-site-packages "$venv"
    else
        "$python" -m venv "$venv"
    fi
}

install_stocached() {
    # By pip: uv would take the library that it has compiled before, although its sources differ.
    UV=0
    pip_install stocached 'stocached (compiles its C library)' python/src python/pyproject.toml python/hatch_build.py \
        cclient/src cclient/stocached.c cclient/stocached.h -- ./python
}

# That old a torch has no wheel for a newer Python.
oldest_python() {
    for python in ${OLDEST_PYTHON:-python3.10 python3.11 "$python"}; do
        "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 12))' 2>/dev/null && return
    done
    fail "the oldest torch that is supported needs Python 3.10 or 3.11: install one, or say OLDEST_PYTHON=/path/to/python3.10"
}

case ${1:-} in
compiler) compiler ;;
system) system ;;
c-tests) c_tests ;;
promtool) take_promtool ;;
bench) bench ;;
python)
    environment
    pip_install tools 'pinned tools (pytest, ...)' tools/requirements.txt -- -r tools/requirements.txt
    install_stocached
    ;;
demo)
    pip_install demo 'Pillow, matplotlib and tqdm for the demo' demo/requirements.txt -- -r demo/requirements.txt
    ;;
torch)
    if ! has torch 0.0; then
        echo "stocached: torch is missing: installing it from the package index. It is several GB and takes a minute or more; TORCH=0 does without."
        install torch
    fi
    if has torch 2.1; then
        pip_install frameworks 'Lightning, accelerate and transformers (85 MB), for the tests of loaders in them' tools/requirements-frameworks.txt \
            -- --no-deps -r tools/requirements-frameworks.txt
    else
        echo "stocached: torch is older than Lightning wants (2.1); the tests of training frameworks are skipped"
    fi
    if has torch 2.14 && "$py" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        pip_install samples 'torchvision, tensordict, datasets and albumentations, for tests with their samples' tools/requirements-samples.txt -- --no-deps -r tools/requirements-samples.txt
    else
        echo "stocached: Python is older than 3.11 or torch than torchvision wants (2.14); the tests with samples of torchvision, tensordict and albumentations are skipped"
    fi
    # What we are compared with. --no-deps: it asks for an old NumPy, and works with a new one; it does not take Python 3.13.
    if "$py" -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then
        pip_install peers 'stocaching, which ours is compared with' bench/python/requirements.txt -- --no-deps -r bench/python/requirements.txt
    fi
    ;;
torch-oldest)
    venv=.venv-oldest py=.venv-oldest/bin/python TORCH=0
    oldest_python
    environment
    pip_install tools 'the oldest torch that is supported (several GB), NumPy and pinned tools' tools/requirements-torch-oldest.txt tools/requirements.txt -- -r tools/requirements-torch-oldest.txt -r tools/requirements.txt
    install_stocached
    ;;
others)
    # Loaders of other projects, apart from ours: they bring a hundred packages. torch is that of the other environment, which is behind theirs on the path.
    peers=.venv-peers stamp=.venv-peers/.installed
    [ -n "$(find "$stamp" -newer bench/python/requirements-peers.txt 2>/dev/null)" ] && exit
    echo "stocached: installing other projects' loaders into $peers (minutes)"
    [ -x "$peers/bin/python" ] || "$python" -m venv "$peers"
    "$py" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$("$peers/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/stocached.pth"
    "$peers/bin/python" -m pip install --quiet --disable-pip-version-check -r bench/python/requirements-peers.txt
    touch "$stamp"
    ;;
lint)
    command -v curl >/dev/null || install_packages curl # the examples of the documents ask a server with it
    pip_install lint 'ruff and mypy' tools/requirements-lint.txt -- -r tools/requirements-lint.txt
    version=${GOLANGCI_VERSION:?}
    "$tools/golangci-lint" version 2>/dev/null | grep -qF "${version#v}" && exit
    echo "stocached: building golangci-lint $version into $tools (a minute or two)"
    GOBIN=$PWD/$tools "$go" install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version"
    ;;
*) fail "usage: tools/setup.sh compiler | system | c-tests | promtool | bench | python | demo | torch | torch-oldest | others | lint" ;;
esac
