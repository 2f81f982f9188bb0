#!/bin/sh
# The user stays: files may belong to it. An upgrade comes here too, while the old files have other names: then
# postinstall.sh tells the loader.
set -e
case ${1:-} in
remove | purge | 0) ldconfig ;;
esac
[ ! -d /run/systemd/system ] || systemctl daemon-reload
