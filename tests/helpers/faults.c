// Preloaded into a process: lets one call on a file below a folder fail. Built and set by helpers/faults.py.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#undef mmap
enum { WRITE, FSYNC, OPEN, RENAME, UNLINK, MMAP, TRUNCATE, READ, MKDIR, KINDS };

static char folder[PATH_MAX];
static int kind = -1, error;
static long calls[KINDS], target;

void faults_set(int of, long number, int code, const char *below) {
    strncpy(folder, below, sizeof folder - 1);
    error = code, target = number;
    memset(calls, 0, sizeof calls);
    kind = of;
}

long faults_calls(int of) { return calls[of]; }

static int below(const char *path) { return path && strncmp(path, folder, strlen(folder)) == 0; }

static int of_file(int file) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return below(path);
}

// Whether this call fails. Without a target, the calls of all kinds are counted. A full disk stays full.
#define COUNTS(of) (kind == of || (kind >= 0 && !target))
static int fails(int of, int is_below) {
    if (!is_below) return 0;
    long number = __atomic_add_fetch(&calls[of], 1, __ATOMIC_SEQ_CST);
    if (!target || number < target || (number > target && error != ENOSPC)) return 0;
    errno = error;
    return 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define FILE_CALL(type, name, of, file, params, args) \
    type name params { REAL(name); if (COUNTS(of) && fails(of, of_file(file))) return -1; return real args; }
#define PATH_CALL(name, of, path, params, args) \
    int name params { REAL(name); if (COUNTS(of) && fails(of, below(path))) return -1; return real args; }

// Error 0 stands for a short write: half of the bytes.
#define WRITE_CALL(name, params, half, args) \
    ssize_t name params { REAL(name); \
        if (COUNTS(WRITE) && fails(WRITE, of_file(file))) { if (!error && size > 1) return real half; if (error) return -1; } \
        return real args; }
WRITE_CALL(write, (int file, const void *from, size_t size), (file, from, size / 2), (file, from, size))
WRITE_CALL(pwrite, (int file, const void *from, size_t size, off_t at), (file, from, size / 2, at), (file, from, size, at))
WRITE_CALL(pwrite64, (int file, const void *from, size_t size, off64_t at), (file, from, size / 2, at), (file, from, size, at))

size_t fwrite(const void *from, size_t size, size_t count, FILE *stream) {
    REAL(fwrite);
    if (COUNTS(WRITE) && fails(WRITE, of_file(fileno(stream)))) return 0;
    return real(from, size, count, stream);
}

FILE_CALL(ssize_t, writev, WRITE, file, (int file, const struct iovec *from, int count), (file, from, count))
FILE_CALL(ssize_t, sendfile, WRITE, file, (int file, int from, off_t *at, size_t size), (file, from, at, size))
FILE_CALL(ssize_t, sendfile64, WRITE, file, (int file, int from, off64_t *at, size_t size), (file, from, at, size))
FILE_CALL(int, fsync, FSYNC, file, (int file), (file))
FILE_CALL(int, fdatasync, FSYNC, file, (int file), (file))
FILE_CALL(int, ftruncate, TRUNCATE, file, (int file, off_t size), (file, size))
FILE_CALL(int, ftruncate64, TRUNCATE, file, (int file, off64_t size), (file, size))
FILE_CALL(ssize_t, read, READ, file, (int file, void *to, size_t size), (file, to, size))
FILE_CALL(ssize_t, pread, READ, file, (int file, void *to, size_t size, off_t at), (file, to, size, at))
FILE_CALL(ssize_t, pread64, READ, file, (int file, void *to, size_t size, off64_t at), (file, to, size, at))

PATH_CALL(rename, RENAME, to, (const char *from, const char *to), (from, to))
PATH_CALL(renameat2, RENAME, to, (int in, const char *from, int out, const char *to, unsigned flags), (in, from, out, to, flags))
PATH_CALL(unlink, UNLINK, path, (const char *path), (path))
PATH_CALL(mkdir, MKDIR, path, (const char *path, mode_t mode), (path, mode))

int posix_fallocate(int file, off_t at, off_t size) {
    REAL(posix_fallocate);
    return COUNTS(TRUNCATE) && fails(TRUNCATE, of_file(file)) ? error : real(file, at, size);
}

#define MAP_CALL(name, offset) \
    void *name(void *near, size_t size, int access, int flags, int file, offset at) { \
        REAL(name); \
        if (file >= 0 && COUNTS(MMAP) && fails(MMAP, of_file(file))) return MAP_FAILED; \
        return real(near, size, access, flags, file, at); }
MAP_CALL(mmap, off_t)
MAP_CALL(mmap64, off64_t)

#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
#define OPEN_CALL(name) \
    int name(const char *path, int flags, ...) { MODE REAL(name); \
        return COUNTS(OPEN) && fails(OPEN, below(path)) ? -1 : real(path, flags, mode); }
#define OPENAT_CALL(name) \
    int name(int in, const char *path, int flags, ...) { MODE REAL(name); \
        return COUNTS(OPEN) && fails(OPEN, below(path)) ? -1 : real(in, path, flags, mode); }
OPEN_CALL(open)
OPEN_CALL(open64)
OPENAT_CALL(openat)
OPENAT_CALL(openat64)

#define STREAM_CALL(name) \
    FILE *name(const char *path, const char *how) { REAL(name); \
        return COUNTS(OPEN) && fails(OPEN, below(path)) ? NULL : real(path, how); }
STREAM_CALL(fopen)
STREAM_CALL(fopen64)
