/* A file system with faults, for tests: preloaded into zero3 (LD_PRELOAD), it counts what the process does to
 * files and lets some of it fail. tests/common/mod.rs compiles it and says how.
 *
 *   FS_UNDER=DIR        only what lies under DIR counts and fails (default: nothing does)
 *   FS_FAIL=N:ERRNO     the N-th operation, counted from 1, fails with this errno (a name such as EIO), and
 * every later one where N is followed by `+` FS_COUNT=FILE       the number of operations is written to FILE
 * when a process with any ends FS_NO=WORD,...      what the file system has not: symlink, dirsync (EINVAL),
 * dirsync_bad (EBADF), lock FS_RANK=R           only rank R of an Open MPI job
 *
 * Operations: opening for writing, write, pwrite, writev, ftruncate, fsync, fdatasync, rename, mkdir, unlink,
 * rmdir, symlink, link, chmod of an open file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static atomic_int n_operations;

static int errno_of(const char *name) {
    static const struct { const char *name; int code; } known[] = {
        {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EINTR", EINTR}, {"EACCES", EACCES}, {"EDQUOT", EDQUOT},
        {"EROFS", EROFS}, {"EMFILE", EMFILE}, {"ESTALE", ESTALE}, {"EPERM", EPERM},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strncmp(name, known[i].name, strlen(known[i].name))) return known[i].code;
    return EIO;
}

static int is_this_rank(void) {
    const char *wanted = getenv("FS_RANK"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    return !wanted || (rank && !strcmp(wanted, rank));
}

static int is_under(const char *path) {
    const char *dir = getenv("FS_UNDER");
    char whole[PATH_MAX * 2];
    if (!dir || !path || !is_this_rank()) return 0;
    if (*path != '/') {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here)) return 0;
        snprintf(whole, sizeof whole, "%s/%s", here, path);
        path = whole;
    }
    return !strncmp(path, dir, strlen(dir));
}

static const char *path_of(int fd, char *room) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, room, PATH_MAX - 1);
    room[n < 0 ? 0 : n] = 0;
    return room;
}

/* Whether this operation on `path` fails: then errno says why. */
static int fails(const char *path) {
    if (!is_under(path)) return 0;
    int n = ++n_operations;
    const char *fail = getenv("FS_FAIL");
    if (!fail) return 0;
    char *rest;
    long wanted = strtol(fail, &rest, 10);
    int goes_on = *rest == '+';
    const char *name = strchr(rest, ':');
    if (!name || !(n == wanted || (goes_on && n > wanted))) return 0;
    errno = errno_of(name + 1);
    return 1;
}

static int fails_fd(int fd) {
    char room[PATH_MAX];
    return getenv("FS_UNDER") && fails(path_of(fd, room));
}

static int has_no(const char *word) {
    const char *list = getenv("FS_NO"), *at = list ? strstr(list, word) : NULL;
    size_t n = strlen(word);
    for (; at; at = strstr(at + n, word))
        if ((at == list || at[-1] == ',') && (!at[n] || at[n] == ',')) return 1;
    return 0;
}

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("FS_COUNT");
    int n = atomic_load(&n_operations);
    /* Open MPI starts a daemon for a process without mpirun: it does none, and ends last. */
    if (!path || n == 0 || !is_this_rank()) return;
    FILE *file = fopen(path, "w");
    if (file) fprintf(file, "%d\n", n), fclose(file);
}

#define OPEN(name, ...)                                                     \
    mode_t mode = 0;                                                        \
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {              \
        va_list args; va_start(args, flags); mode = va_arg(args, mode_t); va_end(args); \
    }                                                                       \
    if (flags & (O_WRONLY | O_RDWR) && fails(path)) return -1;              \
    REAL(name); return real(__VA_ARGS__, flags, mode)

int open(const char *path, int flags, ...) { OPEN(open, path); }
int open64(const char *path, int flags, ...) { OPEN(open64, path); }
int openat(int dir, const char *path, int flags, ...) { OPEN(openat, dir, path); }
int openat64(int dir, const char *path, int flags, ...) { OPEN(openat64, dir, path); }

ssize_t write(int fd, const void* data, size_t n) {
    if (fd > 2 && fails_fd(fd)) return -1;
    REAL(write);
    return real(fd, data, n);
}
ssize_t pwrite(int fd, const void* data, size_t n, off_t at) {
    if (fails_fd(fd)) return -1;
    REAL(pwrite);
    return real(fd, data, n, at);
}
ssize_t pwrite64(int fd, const void* data, size_t n, off64_t at) {
    if (fails_fd(fd)) return -1;
    REAL(pwrite64);
    return real(fd, data, n, at);
}
ssize_t writev(int fd, const struct iovec* data, int n) {
    if (fd > 2 && fails_fd(fd)) return -1;
    REAL(writev);
    return real(fd, data, n);
}
int ftruncate(int fd, off_t n) { if (fails_fd(fd)) return -1; REAL(ftruncate); return real(fd, n); }
int ftruncate64(int fd, off64_t n) { if (fails_fd(fd)) return -1; REAL(ftruncate64); return real(fd, n); }
int fchmod(int fd, mode_t mode) { if (fails_fd(fd)) return -1; REAL(fchmod); return real(fd, mode); }
int fdatasync(int fd) { if (fails_fd(fd)) return -1; REAL(fdatasync); return real(fd); }
int fsync(int fd) {
    struct stat what;
    if (!fstat(fd, &what) && S_ISDIR(what.st_mode)) {
        if (has_no("dirsync")) { errno = EINVAL; return -1; }
        if (has_no("dirsync_bad")) { errno = EBADF; return -1; }
    }
    if (fails_fd(fd)) return -1;
    REAL(fsync); return real(fd);
}
int rename(const char* from, const char* to) {
    if (fails(to)) return -1;
    REAL(rename);
    return real(from, to);
}
int mkdir(const char *path, mode_t mode) { if (fails(path)) return -1; REAL(mkdir); return real(path, mode); }
int unlink(const char *path) { if (fails(path)) return -1; REAL(unlink); return real(path); }
int rmdir(const char *path) { if (fails(path)) return -1; REAL(rmdir); return real(path); }
int link(const char *from, const char *to) { if (fails(to)) return -1; REAL(link); return real(from, to); }
int symlink(const char *target, const char *path) {
    if (has_no("symlink")) { errno = EPERM; return -1; }
    if (fails(path)) return -1;
    REAL(symlink); return real(target, path);
}
int unlinkat(int dir, const char *path, int flags) {
    char room[PATH_MAX], whole[PATH_MAX * 2];
    snprintf(whole, sizeof whole, "%s/%s", path_of(dir, room), path);
    if (fails(*path == '/' || dir == AT_FDCWD ? path : whole)) return -1;
    REAL(unlinkat); return real(dir, path, flags);
}
int flock(int fd, int how) {
    if (has_no("lock")) {
        errno = ENOLCK;
        return -1;
    }
    REAL(flock);
    return real(fd, how);
}
