/*
 * path.c - where the files of caches lie, and how we open them: only regular files of this user.
 */
#include "segment.h"

INTERNAL void default_directory(char *path, size_t size)
{
    snprintf(path, size, "/dev/shm/stocached-%u", (unsigned)geteuid());
}

/* Makes a path of a name or path. EINVAL. */
INTERNAL int path_of(const char *name_or_path, char path[OWN_PATH_BYTES], struct stoc_error *error)
{
    if (!name_or_path || !name_or_path[0])
        return fail(error, STOC_EINVAL, 0, "no name or path given; `stocached ls` lists caches");
    int n;
    if (strchr(name_or_path, '/')) {
        n = snprintf(path, OWN_PATH_BYTES, "%s", name_or_path);
    } else {
        char directory[64];
        if (!name_valid(name_or_path))
            return fail(error, STOC_EINVAL, 0,
                        "name \"%.120s\" is not 1 to 100 of [A-Za-z0-9._-] with an alphanumeric first; a path has a /",
                        name_or_path);
        default_directory(directory, sizeof directory);
        n = snprintf(path, OWN_PATH_BYTES, "%s/%s", directory, name_or_path);
    }
    if (n >= OWN_PATH_BYTES)
        return fail(error, STOC_EINVAL, 0, "path of %d bytes is longer than %d", n, OWN_PATH_BYTES - 1);
    return 0;
}

static const char *kind_of_file(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISLNK(mode)  ? "a symbolic link"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

/* Whether a file may be a segment of ours: regular, and owned by us. */
INTERNAL int check_file(const struct stat *st, const char *path, struct stoc_error *error)
{
    if (!S_ISREG(st->st_mode))
        return fail(error, STOC_EPERM, 0, "%s is %s, not a cache; remove it or take another name", path,
                    kind_of_file(st->st_mode));
    if (st->st_uid != geteuid())
        return fail(error, STOC_EPERM, 0, "%s belongs to user %u, not to %u; a cache is for one user", path,
                    (unsigned)st->st_uid, (unsigned)geteuid());
    return 0;
}

/* EMEMORY if this process may not write all bytes of a file. has: "has" or "takes". otherwise: another next step. */
INTERNAL int check_file_size(const char *what, const char *has, uint64_t bytes, const char *otherwise,
                             struct stoc_error *error)
{
    if (bytes <= most_file_bytes())
        return 0;
    return fail(error, STOC_EMEMORY, EFBIG,
                "%s %s %lu bytes, this process may write files of %lu at most (RLIMIT_FSIZE); raise it (ulimit -f)%s",
                what, has, bytes, most_file_bytes(), otherwise);
}

/* Whether the path is a descriptor of a process, /proc/<pid>/fd/<fd>. It looks like a symbolic
 * link, but opens the file itself. */
INTERNAL bool is_proc_fd(const char *path)
{
    if (strncmp(path, "/proc/", 6) != 0)
        return false;
    const char *slash = strchr(path + 6, '/');
    return slash && strncmp(slash, "/fd/", 4) == 0 && slash[4] && !strchr(slash + 4, '/');
}

INTERNAL int open_error(const char *path, struct stoc_error *error)
{
    int number = errno;
    switch (number) {
    case ENOENT:
    case ENOTDIR:
        return fail(error, STOC_ENOENT, number, "%s: no such cache; create it, or see `stocached ls`", path);
    case ELOOP:
        return fail(error, STOC_EPERM, number, "%s is a symbolic link, not a cache; remove it or take another name",
                    path);
    case EACCES:
    case EPERM:
        if (is_proc_fd(path))
            return fail(error, STOC_EPERM, number,
                        "%s: permission denied: the process is not dumpable, or another user's; give the cache a name",
                        path);
        return fail(error, STOC_EPERM, number, "%s: permission denied", path);
    default:
        return fail_system(error, "open", path);
    }
}

/* Opens a regular file of this user. Does not follow a symbolic link, wait on a FIFO or wake a
 * device. Sets *fd, and *read_only if it may only read. Refuses files in a default directory that
 * another user made. */
INTERNAL int open_file(const char *path, int *fd, bool *read_only, struct stoc_error *error)
{
    char ours[64];
    struct stat st;
    bool process = is_proc_fd(path);
    int flags = O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (process ? 0 : O_NOFOLLOW), code;
    default_directory(ours, sizeof ours);
    if (strncmp(path, ours, strlen(ours)) == 0 && strrchr(path, '/') == path + strlen(ours)) {
        if ((code = open_directory(ours, false, fd, error)) < 0)
            return code == STOC_ENOENT ? (errno = ENOENT, open_error(path, error)) : code;
        close(*fd);
    }
    if (syscall(SYS_newfstatat, AT_FDCWD, path, &st, process ? 0 : AT_SYMLINK_NOFOLLOW) != 0)
        return open_error(path, error);
    if ((code = check_file(&st, path, error)) < 0)
        return code;
    *fd = -1;
    if (!*read_only) {
        *fd = open(path, O_RDWR | flags);
        *read_only = *fd < 0 && (errno == EACCES || errno == EPERM || errno == EROFS);
    }
    if (*read_only)
        *fd = open(path, O_RDONLY | flags);
    if (*fd < 0)
        return open_error(path, error);
    /* The path may name another file by now, so check the open file too. */
    code = stat_fd(*fd, &st) != 0 ? fail_system(error, "stat", path) : check_file(&st, path, error);
    if (code < 0) {
        close(*fd);
        *fd = -1;
    }
    return code;
}

/*
 * Opens the directory of named caches. The default one MUST be a real directory of ours that no
 * other user may enter, so that no other user can put files there. create makes it. Any other
 * directory is the user's choice. ENOENT, EPERM, EMEMORY, ESYSTEM.
 */
INTERNAL int open_directory(const char *directory, bool create, int *fd, struct stoc_error *error)
{
    char ours[64];
    struct stat st;
    default_directory(ours, sizeof ours);
    bool is_ours = strcmp(directory, ours) == 0, made = false;
    if (is_ours && create && !(made = mkdir(directory, 0700) == 0) && errno != EEXIST)
        goto failed;
    *fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (is_ours ? O_NOFOLLOW : 0));
    if (*fd < 0)
        goto failed;
    if (!is_ours)
        return 0;
    int code = 0;
    if ((made && fchmod(*fd, 0700) != 0) || stat_fd(*fd, &st) != 0) /* a umask may have removed our own rights */
        code = fail_system(error, "make the directory", directory);
    else if (st.st_uid != geteuid())
        code = fail(error, STOC_EPERM, 0, "%s belongs to user %u, not to %u: remove it, or use another directory",
                    directory, (unsigned)st.st_uid, (unsigned)geteuid());
    else if (st.st_mode & 077)
        code = fail(error, STOC_EPERM, 0, "%s has mode %04o, others may enter it: chmod 700 %s", directory,
                    (unsigned)st.st_mode & 07777, directory);
    if (code < 0)
        close(*fd);
    return code;
failed:
    switch (errno) {
    case ENOENT:
        return fail(error, STOC_ENOENT, errno, "directory %s does not exist", directory);
    case ENOTDIR:
    case ELOOP:
        return fail(error, STOC_EPERM, errno,
                    "%s is no directory, or a symbolic link; remove it, or use another directory", directory);
    case EACCES:
    case EPERM:
    case EROFS:
        return fail(error, STOC_EPERM, errno, "directory %s: permission denied, or read-only; use another directory",
                    directory);
    case ENOSPC:
        return fail(error, STOC_EMEMORY, errno,
                    "no space for the directory %s; remove caches (stocached gc) or enlarge the tmpfs", directory);
    default:
        return fail_system(error, "open the directory", directory);
    }
}
