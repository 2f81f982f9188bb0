/*
 * stocached.c - the whole library as one translation unit: compile this file and nothing else.
 *
 *     cc -std=c11 -O2 -fPIC -shared -fvisibility=hidden -pthread -o libstocached.so.1 stocached.c
 *
 * Its parts are files of one noun each, in the order in which they build on each other; everything in them is static but the functions of stocached.h.
 * One unit keeps the hit path inlined and the exported symbols exact. docs/segment.md and docs/protocol.md are normative.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* F_OFD_SETLK, O_TMPFILE, fallocate, memfd seals */
#endif

#include "src/internal.h"

#include "src/fault.c"   /* named points at which tests stop or kill the process; nothing in a release build */
#include "src/error.c"   /* codes and messages */
#include "src/system.c"  /* system calls whose wrappers are newer than GLIBC 2.17, and loops over the others */
#include "src/crc.c"     /* CRC-32C */
#include "src/schema.c"  /* fields of a sample */
#include "src/geometry.c" /* where the regions of a segment lie */
#include "src/header.c"  /* the first 4,096 bytes: written once, checked at every attach */
#include "src/words.c"   /* index words, claim entries, counters: typed access to the mapped control part */
#include "src/crew.c"    /* threads that help with a batch */
#include "src/client.c"  /* lock description, registration, fork */
#include "src/takeback.c" /* claims of the dead */
#include "src/clear.c"   /* the phase in which nobody claims */
#include "src/path.c"    /* where the files of caches lie, and how they are opened */
#include "src/memory.c"  /* what memory there is */
#include "src/promise.c" /* what other caches have yet to fill, and whether a new one fits */
#include "src/allowance.c" /* what may be filled before somebody looks at memory again */
#include "src/huge.c"    /* huge pages */
#include "src/segment.c" /* create, open, close, unlink */
#include "src/copy.c"    /* memory copies */
#include "src/read.c"    /* get, view, gather */
#include "src/write.c"   /* set, claim, write, publish, abort */
#include "src/look.c"    /* info, states, stats, verify, explain */
#include "src/link.c"    /* connections to a server */
#include "src/fetch.c"   /* what a server fills */
#include "src/order.c"   /* keyed permutations, the order of one dataset */
#include "src/weights.c" /* samples drawn by weight */
#include "src/mix.c"     /* several datasets by ratio */
#include "src/epoch.c"   /* the order of an epoch, and its shards */
#include "src/board.c"   /* tasks for workers */
#include "src/python.c"  /* for callers with arrays and a garbage collector */
