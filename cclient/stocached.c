/*
 * stocached.c - the whole library as one translation unit: compile this file and no other.
 *
 *     cc -std=c11 -O2 -fPIC -shared -fvisibility=hidden -pthread -o libstocached.so.1 stocached.c
 *
 * One unit keeps the hit path inlined and the exported symbols exact: all functions are static,
 * except those of stocached.h. Each folder of src/ has a header of its own name. It says what the
 * folder owns, what it may include, and what its parts share. A part includes only that header;
 * `make check-parts` compiles each part by itself. docs/spec/segment.md and docs/spec/protocol.md
 * are normative.
 */
#define STOC_ONE_UNIT 1

/* named points at which tests stop or kill the process; nothing in a release build */
#include "src/base/fault.c"
#include "src/base/error.c"              /* codes and messages */
/* system calls whose wrappers are newer than GLIBC 2.17, and loops over the others */
#include "src/base/system.c"
#include "src/base/crc.c"                /* CRC-32C */
#include "src/base/copy.c"               /* memory copies */
#include "src/base/find.c"               /* places of a byte */

#include "src/segment/schema.c"          /* fields of a sample */
#include "src/segment/geometry.c"        /* where the regions of a segment lie */
#include "src/segment/header.c"          /* the first 4,096 bytes: written once, checked at every attach */
#include "src/segment/path.c"            /* where the files of caches lie, and how they are opened */
#include "src/segment/memory.c"          /* free memory, and its limits */
#include "src/segment/promise.c"         /* what other caches have yet to fill, and whether a new one fits */

#include "src/tasks/thread_pool.c"       /* threads that help with a batch */
#include "src/tasks/write_queue.c"       /* samples that are written in the background */
#include "src/tasks/task_queue.c"        /* tasks for the worker processes of a loader */

#include "src/protocol/client.c"         /* lock description, registration, fork */
#include "src/protocol/reclaim.c"        /* claims of dead clients */
#include "src/protocol/clear.c"          /* the phase in which no client claims */
#include "src/protocol/allowance.c"      /* memory that may be filled before a client checks again */
#include "src/protocol/huge_pages.c"     /* huge pages */
#include "src/protocol/open.c"           /* open, close, unlink */
#include "src/protocol/options.c"        /* the options of a new cache */
#include "src/protocol/create.c"         /* create */
#include "src/protocol/read.c"           /* get, view, gather */
#include "src/protocol/policy.c"         /* which sample goes */
#include "src/protocol/evict.c"          /* a slot goes to another sample */
#include "src/protocol/space_slots.c"    /* the slot of a sample */
#include "src/protocol/space_arena.c"    /* the extent of a sample */
#include "src/protocol/space_chains.c"   /* the slots of a sample, in an arena that evicts */
#include "src/protocol/write.c"          /* set, claim, write, publish, abort */
#include "src/protocol/disk.c"           /* a segment on a disk that processes share */
#include "src/protocol/inspect.c"        /* info, states, stats, verify, explain */
#include "src/protocol/arrays.c"         /* for callers with arrays and a garbage collector */

#include "src/worker/worker.c"           /* tasks of a loader, done without an interpreter */

#include "src/connection/link.c"         /* connections to a server */
#include "src/connection/fetch.c"        /* samples that a server fills */
#include "src/connection/announce.c"     /* what this handle will read */

#include "src/order/order.c"             /* keyed permutations, the order of one dataset */
#include "src/order/weights.c"           /* samples drawn by weight */
#include "src/order/mix.c"               /* several datasets by ratio */
#include "src/order/epoch.c"             /* the order of an epoch, and its shards */
#include "src/order/nodes.c"             /* which node of a job reads a sample */
