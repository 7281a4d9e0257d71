/* Preloaded into a process: logs what it does to the files of one directory, so that a test can rebuild what a power loss leaves.
 *
 * TIDELOG_DISK_ROOT   the directory
 * TIDELOG_DISK_LOG    the log: for each operation a header (below), the path, and the bytes that were written
 *
 * A sync is logged and not done: the log alone says what is durable.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct header {
    char operation; /* c: created if missing · w: written · t: cut to `offset` bytes · s: synced · u: unlinked */
    uint32_t path_bytes;
    uint64_t offset;
    uint64_t bytes;
} __attribute__((packed));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *root;
static int log_file = -1;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TIDELOG_DISK_LOG");
    root = getenv("TIDELOG_DISK_ROOT");
    if (root && path)
        log_file = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int is_ours(const char *path) {
    size_t length = root ? strlen(root) : 0;
    return log_file >= 0 && !strncmp(path, root, length) && (path[length] == '/' || path[length] == 0);
}

static void note(char operation, const char *path, uint64_t offset, const void *data, size_t bytes) {
    struct header header = {operation, strlen(path), offset, bytes};
    struct iovec parts[] = {{&header, sizeof header}, {(void *)path, strlen(path)}, {(void *)data, bytes}};
    pthread_mutex_lock(&lock);
    if (syscall(SYS_writev, log_file, parts, 3) != (ssize_t)(sizeof header + strlen(path) + bytes))
        abort();
    pthread_mutex_unlock(&lock);
}

/* Whether the file is one of ours; its path as the kernel knows it. */
static int named(int file, char *path) {
    char link[64];
    if (log_file < 0 || file == log_file)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return is_ours(path);
}

static int opened(int directory, const char *path, int flags, mode_t mode) {
    int file = syscall(SYS_openat, directory, path, flags, mode);
    char full[PATH_MAX];
    if (file >= 0 && flags & (O_CREAT | O_TRUNC) && named(file, full)) {
        note('c', full, 0, "", 0);
        if (flags & O_TRUNC)
            note('t', full, 0, "", 0);
    }
    return file;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & O_CREAT) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int directory, const char *path, int flags, ...) { MODE(flags) return opened(directory, path, flags, mode); }
int openat64(int directory, const char *path, int flags, ...) { MODE(flags) return opened(directory, path, flags, mode); }

static ssize_t written_at(int file, const void *data, size_t bytes, off_t offset) {
    ssize_t written = syscall(SYS_pwrite64, file, data, bytes, offset);
    char path[PATH_MAX];
    if (written > 0 && named(file, path))
        note('w', path, offset, data, written);
    return written;
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t offset) { return written_at(file, data, bytes, offset); }
ssize_t pwrite64(int file, const void *data, size_t bytes, off64_t offset) { return written_at(file, data, bytes, offset); }

ssize_t write(int file, const void *data, size_t bytes) {
    char path[PATH_MAX];
    off_t offset = log_file < 0 ? 0 : lseek(file, 0, SEEK_CUR);
    ssize_t written = syscall(SYS_write, file, data, bytes);
    if (written > 0 && named(file, path))
        note('w', path, offset, data, written);
    return written;
}

static int cut(int file, off_t length) {
    int failed = syscall(SYS_ftruncate, file, length);
    char path[PATH_MAX];
    if (!failed && named(file, path))
        note('t', path, length, "", 0);
    return failed;
}

int ftruncate(int file, off_t length) { return cut(file, length); }
int ftruncate64(int file, off64_t length) { return cut(file, length); }

static int synced(int file, long number) {
    char path[PATH_MAX];
    if (!named(file, path))
        return syscall(number, file);
    note('s', path, 0, "", 0);
    return 0;
}

int fsync(int file) { return synced(file, SYS_fsync); }
int fdatasync(int file) { return synced(file, SYS_fdatasync); }

int unlink(const char *path) {
    int failed = syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (!failed && is_ours(path))
        note('u', path, 0, "", 0);
    return failed;
}
