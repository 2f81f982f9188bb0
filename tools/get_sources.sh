#!/bin/sh
# Gets Debian's source packages of the libraries for pictures to where `make dist` looks for them, on machines whose apt is
# not Debian's. It needs docker. `make dist` checks the files.
set -eu
cd "$(dirname "$0")/.."
mkdir -p build/sources
packages=$(PYTHONPATH=tools python3 -c 'from release import native; print(*(package.title for package in native.PACKAGES))')
docker run --rm -v "$PWD/build/sources:/out" -w /out debian:bookworm sh -ec "
    sed -i 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources
    apt-get -qq update
    apt-get -qq -oAPT::Sandbox::User=root source --download-only $packages"
