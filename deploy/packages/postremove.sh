#!/bin/sh
# The user stays: files may belong to it.
set -e
ldconfig
[ ! -d /run/systemd/system ] || systemctl daemon-reload
