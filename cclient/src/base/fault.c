/*
 * fault.c - fault points. STOC_FAULT("claim.entry") marks a step of docs/spec/protocol.md. Only a
 * build with -DSTOC_FAULT_POINTS uses them. It calls a hook, and obeys
 * STOCACHED_FAULT="<point>[@<n>]=<kill|stop>": at the n-th pass (default 1) the process sends
 * itself SIGKILL or SIGSTOP.
 */
#include "base.h"

#ifdef STOC_FAULT_POINTS

STOC_API void stoc_fault_set_hook(void (*hook)(const char *point));

static _Atomic(void (*)(const char *)) fault_hook;
static _Atomic unsigned fault_passes;

void stoc_fault_set_hook(void (*hook)(const char *point)) { atomic_store(&fault_hook, hook); }

INTERNAL void fault_at(const char *point)
{
    void (*hook)(const char *) = atomic_load(&fault_hook);
    if (hook)
        hook(point);
    const char *spec = getenv("STOCACHED_FAULT");
    size_t n = strlen(point);
    if (!spec || strncmp(spec, point, n) != 0 || (spec[n] != '@' && spec[n] != '='))
        return;
    unsigned pass = 1;
    const char *p = spec + n;
    if (*p == '@')
        for (pass = 0, p++; *p >= '0' && *p <= '9'; p++)
            pass = pass * 10 + (unsigned)(*p - '0');
    int signal_number = strcmp(p, "=kill") == 0 ? SIGKILL : strcmp(p, "=stop") == 0 ? SIGSTOP : 0;
    if (!signal_number) {
        fprintf(stderr, "STOCACHED_FAULT=%s: want <point>[@<n>]=<kill|stop>\n", spec);
        abort();
    }
    if (atomic_fetch_add(&fault_passes, 1) + 1 == pass)
        kill(getpid(), signal_number);
}
#endif
