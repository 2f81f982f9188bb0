#!/bin/sh
# Downloads Debian's source package of libjpeg-turbo where `make dist` looks for it, on machines whose apt has another
# version. `make dist` checks the files.
set -eu
cd "$(dirname "$0")/.."
mkdir -p build/libjpeg-turbo
for file in libjpeg-turbo_2.1.5-2.dsc libjpeg-turbo_2.1.5.orig.tar.gz libjpeg-turbo_2.1.5-2.debian.tar.xz; do
    curl -fsSL --retry 3 -o "build/libjpeg-turbo/$file" "https://deb.debian.org/debian/pool/main/libj/libjpeg-turbo/$file"
done
