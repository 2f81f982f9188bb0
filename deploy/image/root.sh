#!/bin/sh
# root.sh DIR: makes the root file system of the container image in DIR. Containerfile runs it, and so does the
# test in deploy/check, so that both have the same files. It needs Go, a C compiler, the libraries for pictures
# (tools/setup.sh installs both) and the CA certificates of this machine.
set -eu
root=$1
cd "$(dirname "$0")/../.."

mkdir -p "$root/usr/local/bin" "$root/etc/ssl/certs" "$root/etc/stocached" "$root/var/cache" \
	"$root/dev/shm" "$root/proc"
CGO_ENABLED=0 ${GO:-go} build -trimpath -ldflags='-s -w' -o "$root/usr/local/bin/stocached" ./cmd/stocached
objects=$(mktemp -d)
make -s -C cimage BUILD="$objects" LDFLAGS="-static -s" "$objects/stocached-decode" \
	DECODER_LIBRARIES="$(pkg-config --static --libs libjpeg libpng libdeflate libwebpdemux libwebp)"
cp "$objects/stocached-decode" "$root/usr/local/bin"
rm -r "$objects"
# For sources and tiers behind TLS.
cp -L "${CERTIFICATES:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/ssl/certs/ca-certificates.crt"
cp config.example.yaml LICENSE "$root/etc/stocached/"
chmod -R a+rX "$root"
