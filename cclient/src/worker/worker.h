/*
 * worker.h - tasks of a loader, done without an interpreter (docs/spec/workers.md).
 *
 * Includes protocol and tasks.
 */
#ifndef STOCACHED_WORKER_H
#define STOCACHED_WORKER_H

#include "../protocol/protocol.h"
#include "../tasks/tasks.h"

#endif
