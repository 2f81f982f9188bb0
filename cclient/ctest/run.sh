#!/bin/sh
# Runs the C tests, from cclient/: run.sh <build directory> <test program>...
# Every program ends with "name: N passed, M failed, K skipped", and so does this script.
build=$1
shift

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export work ASAN_OPTIONS=detect_stack_use_after_return=1 TSAN_OPTIONS=halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1

# Programs wait most of their time, so two run at a time. The output of each comes in one piece, when it has ended.
printf '%s\n' "$@" | xargs -P 2 -I{} sh -c '
    name=$(basename "$1")
    timeout 900 "$1" > "$work/$name.out" 2>&1
    status=$?
    if [ $status -ne 0 ]; then
        echo "$1: exit status $status" | tee "$work/$name.failed" >> "$work/$name.out"
    fi
    { echo "== $name"; cat "$work/$name.out"; } > "$work/$name.all"
    cat "$work/$name.all"' run {}
failures=$(find "$work" -name '*.failed' | wc -l)

passed=0 failed=0
check() { # check <what> <command>...
    what=$1
    shift
    if output=$("$@" 2>&1); then
        echo "ok   $what"
        passed=$((passed + 1))
    else
        echo "FAIL $what"
        echo "$output"
        failed=$((failed + 1))
    fi
}

here=$(pwd)

exports_only_ours() {
    ! nm -D --defined-only "$1" | grep -v ' stoc_[a-z0-9_]*@@STOCACHED_1$' | grep -v ' A STOCACHED_1'
}

needs_no_new_glibc() {
    newest=$(objdump -T "$1" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -t. -k1,1n -k2,2n | tail -1)
    echo "needs GLIBC_$newest"
    [ "$(printf '%s\n2.17\n' "$newest" | sort -t. -k1,1n -k2,2n | tail -1)" = 2.17 ]
}

has_soname() { objdump -p "$1" | grep -q 'SONAME *libstocached.so.1$'; }
needs_only_libc() { ! objdump -p "$1" | grep NEEDED | grep -v -e 'libc\.so' -e 'libpthread\.so' -e 'ld-linux'; }

# The library's writable data: the lists of handles and of new connections, a mutex, and what this processor
# has. Nothing may differ between parent and child.
little_writable_data() { # our symbols in .data and .bss
    ! objdump -t "$1" | grep -e ' O \.data[[:space:]]' -e ' O \.bss[[:space:]]' |
        grep -v -e ' __' -e ' completed' -e ' handles$' -e ' handles_lock$' -e ' dialling$' -e ' processor\.[0-9]*$'
}

header_alone() { # header_alone <compiler> <standard>
    printf '#include "stocached.h"\nint main(void) { return stoc_abi_version() == STOC_ABI_VERSION ? 0 : 1; }\n' \
        > "$work/header.$3"
    $1 -std="$2" -pedantic -Wall -Wextra -Werror -I"$here" -o "$work/header" "$work/header.$3" \
        -L"$build" -lstocached -Wl,-rpath,"$(cd "$build" && pwd)" && "$work/header"
}

links_static() {
    ${CC:-cc} -std=c11 -I"$here" -o "$work/static" "$work/header.c" "$build/libstocached.a" -pthread && "$work/static"
}

stands_alone() { # one command compiles it; the Makefile does so with optimizations
    ${CC:-cc} -std=c11 -pedantic -Wall -Wextra -Werror -O0 -fPIC -c -o "$work/one.o" stocached.c
}

echo "== library"
check 'exports stoc_* only' exports_only_ours "$build/libstocached.so.1"
check 'needs no symbol newer than GLIBC_2.17' needs_no_new_glibc "$build/libstocached.so.1"
check 'soname' has_soname "$build/libstocached.so.1"
check 'needs libc only' needs_only_libc "$build/libstocached.so.1"
check 'keeps no state but the list of handles' little_writable_data "$build/libstocached.so.1"
check 'header as C11, pedantic' header_alone "${CC:-cc}" c11 c
check 'header as C++' header_alone "${CXX:-c++}" c++11 cc
check 'static archive' links_static
check 'one pedantic command compiles it' stands_alone
check 'payload of the kill stress' "$build/c/stress_worker" --test-vector
check 'example: loader with forked workers' "$build/c/example-loader" 200 4 3
check 'example: watch' "$build/c/example-watch" --self-test
echo "library: $passed passed, $failed failed, 0 skipped"
[ $failures -eq 0 ] && [ $failed -eq 0 ]
