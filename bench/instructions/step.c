/*
 * step.c - counts the instructions of a program between two marks, one by one: for machines whose processor counters
 * are not available. `step COMMAND...`
 *
 * Between two signals SIGUSR2 that the main thread of the command sends to itself, it makes single steps. SIGUSR1
 * ends a group of such intervals: then this program prints the group's median, least and most, less the median of the
 * first group, which has nothing between its marks. A repeated instruction such as `rep movsb` counts once for each
 * repetition.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4096 };

static int by_size(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    long counts[MOST], nothing = -1;
    int n = 0, status = 0, signal = 0, stepping = 0;
    if (argc < 2)
        return fprintf(stderr, "usage: step COMMAND...\n"), 2;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execvp(argv[1], argv + 1);
        _exit(127);
    }
    for (waitpid(child, &status, 0); WIFSTOPPED(status); waitpid(child, &status, 0)) {
        signal = WSTOPSIG(status);
        if (signal == SIGUSR2 && (stepping = !stepping) && n < MOST) {
            counts[n++] = 0;
        } else if (signal == SIGUSR1 && n) {
            qsort(counts, (size_t)n, sizeof *counts, by_size);
            if (nothing < 0)
                nothing = counts[n / 2];
            printf("%ld (%ld to %ld)\n", counts[n / 2] - nothing, counts[0] - nothing, counts[n - 1] - nothing);
            fflush(stdout);
            n = 0;
        } else if (stepping && signal == SIGTRAP) {
            counts[n - 1]++;
        }
        if (signal == SIGTRAP || signal == SIGUSR1 || signal == SIGUSR2 || (stepping && signal == SIGURG))
            signal = 0; /* ours. Go's runtime preempts goroutines by SIGURG */
        if (ptrace(stepping ? PTRACE_SINGLESTEP : PTRACE_CONT, child, NULL, (void *)(long)signal) != 0)
            return perror("ptrace"), 1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
