#!/bin/sh
# Makes the user of the service, and tells systemd and the loader of new files. It starts nothing: a server needs a
# configuration first.
set -e
if ! getent passwd stocached >/dev/null; then
	if command -v systemd-sysusers >/dev/null; then
		systemd-sysusers stocached.conf
	else
		useradd --system --user-group --no-create-home --home-dir / --shell /usr/sbin/nologin \
			--comment 'Caches of training samples' stocached
	fi
fi
ldconfig
[ ! -d /run/systemd/system ] || systemctl daemon-reload
