#!/bin/sh
# Stops the service before its files go. An upgrade keeps it running: dpkg calls this with "upgrade", rpm with 1.
set -e
case ${1:-} in
remove | 0)
	[ ! -d /run/systemd/system ] ||
		systemctl --quiet disable --now stocached.socket stocached-admin.socket stocached.service || true
	;;
esac
