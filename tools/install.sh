#!/bin/sh
# Installs what `make build` built, which runs this: the libraries, the command, manual pages, completions and units.
#   PREFIX, DESTDIR  where to
#   BUILD, PROGRAM   the folder of the libraries, and the command
#   RUNS             the same command for this machine, which writes the pages
set -eu
[ -e "$PROGRAM" ] && [ -e "$BUILD/libstocached.so" ] ||
    { echo 'stocached: nothing to install yet; run make build first' >&2; exit 1; }
to=$DESTDIR$PREFIX
share=$to/share units=$to/share/systemd/user
"${MAKE:-make}" --no-print-directory -C cclient install PREFIX="$PREFIX" DESTDIR="$DESTDIR"
[ ! -e "$BUILD/libstocached_image.so.1" ] ||
    "${MAKE:-make}" --no-print-directory -C cimage install CODECS="$(cat build/.codecs 2>/dev/null || echo 1)" \
        PREFIX="$PREFIX" DESTDIR="$DESTDIR"
echo "stocached: installing the command, manual pages, completions and units under $to"
umask 022
install -d "$to/bin" "$units" "$share/bash-completion/completions" "$share/zsh/site-functions" \
    "$share/fish/vendor_completions.d"
install -m 755 "$PROGRAM" "$to/bin"
"$RUNS" man "$share/man/man1"
"$RUNS" completion bash > "$share/bash-completion/completions/stocached"
"$RUNS" completion zsh > "$share/zsh/site-functions/_stocached"
"$RUNS" completion fish > "$share/fish/vendor_completions.d/stocached.fish"
for unit in stocached.service stocached.socket stocached-admin.socket; do
    sed "/^# For system services:/,/^# End of the part/d; s|/usr/local/bin|$PREFIX/bin|" "deploy/$unit" > "$units/$unit"
done
