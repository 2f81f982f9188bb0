#!/bin/sh
# Gets Debian's source package of libjpeg-turbo to where `make dist` looks for it, on machines whose apt is not Debian's.
# It needs docker. `make dist` checks the files.
set -eu
cd "$(dirname "$0")/.."
mkdir -p build/libjpeg-turbo
docker run --rm -v "$PWD/build/libjpeg-turbo:/out" -w /out debian:bookworm sh -ec '
    sed -i "s/^Types: deb$/Types: deb-src/" /etc/apt/sources.list.d/debian.sources
    apt-get -qq update
    apt-get -qq -oAPT::Sandbox::User=root source --download-only libjpeg-turbo=1:2.1.5-2'
