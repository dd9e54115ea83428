/* Records, in one ordered log, what a process does to its data.mdb: every write, every sync, and every promise.
 *
 * Preloaded into a program (LD_PRELOAD), with the log's path in POWERLOG. From the log, recorder.py makes the file as a
 * power cut could have left it: what was synced is there, of the rest any part may be missing.
 *
 * A record: type u8 | dsync u8 | length u32 | offset u64 | bytes.  W write, b sync begins, S sync is done,
 * T truncate to offset, A the program promises what it calls `offset`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS 4096
static char watched[FDS]; /* 0: not ours, 1: plain, 2: opened with O_DSYNC */
static int log_fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void put(const void *data, size_t size)
{
    REAL(write);
    for (const char *at = data; size;) {
        ssize_t n = real(log_fd, at, size);
        if (n < 0) abort();
        at += n, size -= n;
    }
}

static void record(char type, int fd, uint64_t offset, const void *data, uint32_t size)
{
    char head[14];
    if (log_fd < 0) {
        REAL(open);
        const char *path = getenv("POWERLOG");
        if (!path || (log_fd = real(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) < 0) abort();
    }
    head[0] = type;
    head[1] = fd >= 0 && watched[fd] == 2;
    memcpy(head + 2, &size, 4);
    memcpy(head + 6, &offset, 8);
    pthread_mutex_lock(&lock);
    put(head, sizeof head);
    put(data, size);
    pthread_mutex_unlock(&lock);
}

static int ours(int fd) { return fd >= 0 && fd < FDS && watched[fd]; }

static int opened(int fd, const char *path, int flags)
{
    size_t n = strlen(path);
    if (fd >= 0 && fd < FDS)
        watched[fd] = n >= 9 && !strcmp(path + n - 9, "/data.mdb") && (flags & O_ACCMODE) != O_RDONLY
            ? ((flags & O_DSYNC) ? 2 : 1) : 0;
    return fd;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(name); \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        return opened(real(path, flags, mode), path, flags); \
    }
OPEN(open)
OPEN(open64)

int close(int fd) { REAL(close); if (ours(fd)) watched[fd] = 0; return real(fd); }

#define PWRITE(name, off) \
    ssize_t name(int fd, const void *data, size_t size, off offset) \
    { REAL(name); ssize_t n = real(fd, data, size, offset); if (ours(fd) && n > 0) record('W', fd, offset, data, n); return n; }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

static void parts(int fd, const struct iovec *part, int count, uint64_t offset, ssize_t n)
{
    for (; count-- && n > 0; part++) {
        uint32_t size = (ssize_t)part->iov_len < n ? part->iov_len : n;
        record('W', fd, offset, part->iov_base, size);
        offset += size, n -= size;
    }
}

#define PWRITEV(name, off) \
    ssize_t name(int fd, const struct iovec *part, int count, off offset) \
    { REAL(name); ssize_t n = real(fd, part, count, offset); if (ours(fd)) parts(fd, part, count, offset, n); return n; }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

ssize_t writev(int fd, const struct iovec *part, int count)
{
    REAL(writev);
    off_t offset = ours(fd) ? lseek(fd, 0, SEEK_CUR) : 0;
    ssize_t n = real(fd, part, count);
    if (ours(fd)) parts(fd, part, count, offset, n);
    return n;
}

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(write);
    off_t offset = ours(fd) ? lseek(fd, 0, SEEK_CUR) : 0;
    ssize_t n = real(fd, data, size);
    if (ours(fd) && n > 0) record('W', fd, offset, data, n);
    return n;
}

#define SYNC(name) \
    int name(int fd) \
    { \
        REAL(name); \
        if (!ours(fd)) return real(fd); \
        record('b', fd, 0, "", 0); \
        int failed = real(fd); \
        if (!failed) record('S', fd, 0, "", 0); \
        return failed; \
    }
SYNC(fsync)
SYNC(fdatasync)

#define TRUNCATE(name, off) \
    int name(int fd, off size) { REAL(name); int e = real(fd, size); if (ours(fd) && !e) record('T', fd, size, "", 0); return e; }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

void powerlog_promise(uint64_t what) { record('A', -1, what, "", 0); }
