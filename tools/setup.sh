#!/bin/sh
# Installs what a make target needs. If nothing is missing, it prints nothing.
#   tools/setup.sh compiler | has-codecs | system | c-tests | promtool | browser | versitygw | python | demo | torch | torch-oldest | peers | examples | wheel | packages | dist | site | lint-python | lint-go
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} go=${GO:-go} venv=.venv py=.venv/bin/python tools=.tools
compile= # the first import compiles, which is a third of torch

fail() { echo "stocached: $*" >&2; exit 1; }

# Installs a C compiler with its headers. A small installation of Debian has none.
compiler() {
    echo '#include <stdlib.h>' | ${CC:-cc} -fsyntax-only -xc - 2>/dev/null || install_packages gcc libc6-dev
}

decoders() { sed -n "s/^DECODER_$1 = //p" cimage/decoders.mk; }
has_codecs() { printf '#include <%s>\n' $(decoders HEADERS) | ${CC:-cc} -fsyntax-only -xc - 2>/dev/null; }

# Checks Python and Go, and installs a C compiler and venv, which Debian packages separately.
system() {
    command -v "$python" >/dev/null || fail "no $python here: install Python 3.10 or later, or set PYTHON=/path/to/python3"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "$("$python" --version) is too old: Python 3.10 or later is needed"
    command -v "$go" >/dev/null || fail "no go here: install Go 1.26 or later (https://go.dev/dl), or set GO=/path/to/go"
    compiler
    "$python" -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
}

# Installs what the C tests need in addition to a C compiler.
c_tests() {
    missing=
    command -v "${CXX:-c++}" >/dev/null || missing="$missing g++"
    command -v pkg-config >/dev/null || missing="$missing pkg-config"
    has_codecs || missing="$missing $(decoders PACKAGES)"
    command -v ccache >/dev/null || [ "$(id -u)" != 0 ] || (install_packages ccache 2>/dev/null) || true
    install_packages $missing
    take_jpegs
}

# extract PACKAGE FILE... : copies files of a Debian package into .tools, without installing the package.
extract() {
    package=$1 scratch=$(mktemp -d) status=0
    shift
    echo "stocached: extracting ${1##*/} from the package $package into $tools"
    [ "$(id -u)" != 0 ] || apt-get update -qq || true
    if (cd "$scratch" && apt-get download -qq "$package" >/dev/null 2>&1 && dpkg-deb -x "${package}"_*.deb .); then
        mkdir -p "$tools" && (cd "$scratch" && cp -r "$@" "$OLDPWD/$tools")
    else
        status=1
    fi
    rm -rf "$scratch"
    return $status
}

# promtool checks alert rules and metrics. Installing its package starts a service. Without it, one test is skipped.
take_promtool() {
    command -v promtool >/dev/null || [ -x "$tools/promtool" ] || ! command -v apt-get >/dev/null && return
    extract prometheus usr/bin/promtool ||
        echo "stocached: cannot download the package prometheus; the checks of promtool are skipped"
}

# JPEG files of other encoders, which the C tests damage and decode. Without them, those tests have fewer files.
take_jpegs() {
    [ -d "$tools/images" ] || ! command -v apt-get >/dev/null && return
    extract xplanet-images usr/share/xplanet/images && return
    mkdir -p "$tools/images" # every C test would try again
    echo "stocached: cannot download the package xplanet-images; tests of damaged JPEG files have fewer files, until you remove $tools/images"
}

# Recorded words, for the example with audio clips. Without them, its test makes WAV files.
take_sounds() {
    [ -d "$tools/alsa" ] || [ -d /usr/share/sounds/alsa ] || ! command -v apt-get >/dev/null && return
    extract alsa-utils usr/share/sounds/alsa ||
        echo "stocached: cannot download the package alsa-utils; the test of audio clips makes WAV files"
}

# mermaid draws the diagrams of the site in the browser. Without npm they stay text there.
take_mermaid() {
    version=${MERMAID_VERSION:-11.17.2}
    grep -qF "\"$version\"" "$tools/mermaid.js" 2>/dev/null || ! command -v npm >/dev/null && return
    echo "stocached: taking mermaid $version from npm into $tools"
    scratch=$(mktemp -d)
    if (cd "$scratch" && npm pack --silent "mermaid@$version" >/dev/null 2>&1 && tar xzf mermaid-*.tgz); then
        mkdir -p "$tools" && cp "$scratch/package/dist/mermaid.min.js" "$tools/mermaid.js"
    else
        echo "stocached: cannot get mermaid from npm; the diagrams of the site stay text"
    fi
    rm -rf "$scratch"
}

# Tests open the pages of the site, of stocached web and of timelines in this browser. Without one, they are skipped.
take_browser() {
    for name in chromium-headless-shell chromium google-chrome chrome; do
        command -v $name >/dev/null && return
    done
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "stocached: no browser here: tests that open pages are skipped. On Debian: sudo apt-get install -y chromium-headless-shell"
    elif ! (install_packages chromium-headless-shell 2>/dev/null); then
        echo "stocached: cannot install the package chromium-headless-shell; tests that open pages are skipped"
    fi
}

# buildah makes the container image, as root only. Without it, one test is skipped and says so.
take_buildah() {
    command -v buildah >/dev/null || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null && return
    (install_packages buildah 2>/dev/null) || echo "stocached: cannot install the package buildah; its test is skipped"
}

# The benchmarks compare the server with these programs. They do not use the services that Debian makes of them.
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

# go_tool NAME PACKAGE@VERSION: builds a program into .tools once.
go_tool() {
    [ -x "$tools/$1" ] && "$go" version -m "$tools/$1" | grep -qF "$(printf '\t%s\t' "${2##*@}")" && return
    echo "stocached: building $1 ${2##*@} into $tools"
    CGO_ENABLED=0 GOBIN=$PWD/$tools "$go" install "$2"
}

# pip_install STAMP WHAT FILE... -- ARGUMENT...: installs once, and again when one of the files is newer than the stamp.
# Stages of `make ci` that run in parallel install one after the other.
pip_install() {
    exec 9>"$venv/.installing" # uv has its own lock, .lock
    flock 9
    install_once "$@"
    exec 9>&-
}

install_once() {
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

# uv installs the same as pip, and downloads and unpacks packages in parallel. If uv cannot install something, pip does.
install() {
    links=$(echo "${PIP_FIND_LINKS-}" | tr ' ' ,)
    knows_uv && UV_FIND_LINKS=$links "$venv/bin/uv" pip install --quiet $compile --python "$py" "$@" && return
    pip "$@"
}

pip() { "$py" -m pip install --quiet --disable-pip-version-check "$@"; }

# uv sees no packages of the base Python and reads no settings of pip. If they matter, only pip installs.
knows_uv() {
    [ "${UV:-1}" != 0 ] && grep -q 'system-site-packages = false' "$venv/pyvenv.cfg" || return
    "$py" -m pip config list | grep -v '^:env:.find-links' | grep -q -e index -e find-links -e proxy && return 1
    [ -x "$venv/bin/uv" ] || pip -r tools/requirements-uv.txt 2>/dev/null
}

# has PACKAGE VERSION: whether this version or a later one is installed. It does not import the package, because the
# import of torch takes seconds.
has() {
    "$py" - "$@" <<'end' 2>/dev/null
import sys
from importlib.metadata import version
sys.exit([int(part) for part in version(sys.argv[1]).split(".")[:2]] < [int(part) for part in sys.argv[2].split(".")])
end
}

# If the base Python has torch, the virtual environment sees system packages, so torch is not installed again.
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
    # pip installs it, because uv would use the library that it compiled before, even if its sources differ.
    UV=0
    # The headers of the decoders may have come after the last installation.
    [ -e $venv/bin/stocached-decode ] || ! has_codecs || rm -f "$venv/.installed-stocached"
    pip_install stocached 'stocached (compiles its C library)' python/src python/pyproject.toml python/hatch_build.py \
        cclient/src cclient/stocached.c cclient/stocached.h cimage/src cimage/decode_main.c cimage/decoders.mk cimage/stocached_image.h -- ./python
}

# see_ours ENVIRONMENT: appends our virtual environment to the path of another one, which so finds our torch.
see_ours() {
    folder='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$py" -c "$folder" > "$("$1/bin/python" -c "$folder")/stocached.pth"
}

# The oldest supported torch has no wheel for Python 3.12 and later.
oldest_python() {
    for python in ${OLDEST_PYTHON:-python3.10 python3.11 "$python"}; do
        "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 12))' 2>/dev/null && return
    done
    fail "the oldest supported torch needs Python 3.10 or 3.11: install one of them, or set OLDEST_PYTHON=/path/to/python3.10"
}

case ${1:-} in
compiler) compiler ;;
has-codecs) has_codecs ;;
system) system ;;
c-tests) c_tests ;;
promtool) take_promtool ;;
browser) take_browser ;;
versitygw) go_tool versitygw github.com/versity/versitygw/cmd/versitygw@v1.8.0 ;;
python)
    environment
    compile=--compile-bytecode # otherwise several processes of tests would compile the same at a time
    pip_install tools 'pinned tools (pytest, ...)' tools/requirements.txt -- -r tools/requirements.txt
    install_stocached
    ;;
demo)
    pip_install demo 'Pillow, matplotlib and tqdm for the demo' demo/requirements.txt -- -r demo/requirements.txt
    ;;
torch)
    if ! has torch 0.0; then
        echo "stocached: installing torch from the package index: several GB, a minute or more. TORCH=0 leaves it out."
        install torch
    fi
    if has torch 2.1; then
        pip_install frameworks 'Lightning, accelerate and transformers (85 MB), for tests' tools/requirements-frameworks.txt \
            -- --no-deps -r tools/requirements-frameworks.txt
    else
        echo "stocached: Lightning needs torch 2.1 or later; the tests of training frameworks are skipped"
    fi
    if has torch 2.14 && "$py" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        pip_install samples 'torchvision, tensordict, datasets and albumentations, for tests' tools/requirements-samples.txt \
            -- --no-deps -r tools/requirements-samples.txt
    else
        echo "stocached: torchvision needs Python 3.11 and torch 2.14 or later; tests with it and with tensordict, datasets and" \
            "albumentations are skipped"
    fi
    # Tests and benchmarks compare ours with stocaching. --no-deps: it requires an old NumPy, but works with a new one. It
    # does not support Python 3.13.
    if "$py" -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then
        pip_install peers 'stocaching, for comparison' bench/python/requirements.txt -- --no-deps -r bench/python/requirements.txt
    fi
    ;;
torch-oldest)
    venv=.venv-oldest py=.venv-oldest/bin/python TORCH=0
    oldest_python
    environment
    pip_install tools 'the oldest supported torch (several GB), NumPy and pinned tools' \
        tools/requirements-torch-oldest.txt tools/requirements.txt -- -r tools/requirements-torch-oldest.txt -r tools/requirements.txt
    install_stocached
    ;;
peers)
    # Loaders of other projects bring a hundred packages, so they have their own environment.
    bench
    peers=.venv-peers stamp=.venv-peers/.installed list=bench/python/requirements-peers.txt
    [ -e "$stamp" ] && [ -z "$(find $list -newer "$stamp")" ] && exit
    echo "stocached: installing other projects' loaders, and DALI (1 GB), into $peers (minutes)"
    [ -x "$peers/bin/python" ] || "$python" -m venv "$peers"
    see_ours "$peers"
    "$peers/bin/python" -m pip install --quiet --disable-pip-version-check -r "$list"
    touch "$stamp"
    ;;
examples)
    take_sounds
    if ! "$py" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "stocached: jax and scikit-image need Python 3.11 or later; tests of examples that need them are skipped"
        exit
    fi
    own=.venv-examples stamp=.venv-examples/.installed
    [ -n "$(find "$stamp" -newer tools/requirements-examples.txt 2>/dev/null)" ] && exit
    echo "stocached: installing jax, a kernel for notebooks, photographs and other projects' formats (210 MB) into $own, for tests"
    [ -x "$own/bin/python" ] || "$py" -m venv --without-pip "$own"
    see_ours "$own"
    if knows_uv; then "$venv/bin/uv" pip install --quiet --python "$own/bin/python" --no-deps -r tools/requirements-examples.txt
    else "$py" -m pip --python "$own/bin/python" install --quiet --no-deps -r tools/requirements-examples.txt; fi
    touch "$stamp"
    ;;
wheel)
    # nasm assembles libjpeg-turbo for x86-64, and dpkg-source unpacks it.
    missing=
    command -v nasm >/dev/null || missing="$missing nasm"
    command -v dpkg-source >/dev/null || missing="$missing dpkg-dev"
    install_packages $missing
    pip_install dist 'zig and CMake (400 MB), for packages' tools/requirements-dist.txt -- -r tools/requirements-dist.txt
    go_tool cyclonedx-gomod "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0"
    ;;
packages)
    command -v rpm >/dev/null || install_packages rpm # the tests look into the rpm
    take_buildah
    go_tool nfpm "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0"
    ;;
dist)
    # What tests the packages: a small Debian, and a processor of another kind with its C library.
    missing=
    command -v debootstrap >/dev/null || missing="$missing debootstrap"
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing="$missing debian-archive-keyring"
    command -v qemu-aarch64-static >/dev/null || missing="$missing qemu-user-static"
    [ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ] || missing="$missing libc6-arm64-cross"
    install_packages $missing
    ;;
site)
    pip_install site 'mkdocs and its theme, for the site' tools/requirements-site.txt -- -r tools/requirements-site.txt
    take_mermaid
    take_browser
    ;;
lint-python)
    command -v curl >/dev/null || install_packages curl # examples in the documents use it
    pip_install lint 'ruff and mypy' tools/requirements-lint.txt -- -r tools/requirements-lint.txt
    ;;
lint-go)
    go_tool actionlint github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
    go_tool golangci-lint "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0"
    ;;
*) fail "usage: tools/setup.sh compiler | system | c-tests | promtool | browser | versitygw | python | demo | torch | torch-oldest | peers | examples | wheel | packages | dist | site | lint-python | lint-go" ;;
esac
