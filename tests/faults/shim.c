/* Faults in a program's file calls, preloaded: the n-th one below a folder fails, comes short, or
 * kills the process. Everything that changes files or reaches the disk counts, in one sequence. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, COUNT, FAIL, FULL, SHORT, KILL, TEAR };  /* FULL: from then on; TEAR: half, then dies */

static char below[4096];
static size_t below_len;
static int mode, code;
static long left;
static int fired;
static char text[1 << 18];  /* a line per call: its name and its path */
static size_t text_len;
static int lock;

static void *next_of(const char *name) { return dlsym(RTLD_NEXT, name); }
#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = next_of(#name); real; })

void shim_arm(const char *folder, int what, long nth, int error) {
    mode = OFF;
    below_len = strlen(folder);
    memcpy(below, folder, below_len + 1);
    code = error;
    left = nth;
    fired = 0;
    text_len = 0;
    text[0] = 0;
    mode = what;
}

int shim_disarm(void) {
    mode = OFF;
    return fired;
}

const char *shim_log(void) { return text; }

static int is_below(const char *path) { return path && !strncmp(path, below, below_len); }

static const char *path_of(int fd, char *buffer, size_t size) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(name, buffer, size - 1);
    buffer[len < 0 ? 0 : len] = 0;
    return buffer;
}

/* What is to be done at this call: OFF = what it does. */
static int act(const char *name, const char *path) {
    int what = OFF;
    if (mode == OFF || !is_below(path)) return OFF;
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {}
    if (text_len + strlen(name) + strlen(path) + 3 < sizeof text)
        text_len += (size_t)sprintf(text + text_len, "%s %s\n", name, path);
    left--;
    if (mode != COUNT && (left == 0 || (mode == FULL && left < 0))) {
        fired = 1;
        what = mode;
    }
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
    if (what == KILL) kill(getpid(), SIGKILL);
    return what;
}

/* Whether a call that writes nothing is to fail. A full disk does not keep files from being synced,
 * closed or removed. */
static int fails(int what, int needs_space) {
    if (what == TEAR) kill(getpid(), SIGKILL);
    if (what != FAIL && !(what == FULL && needs_space)) return 0;
    errno = code;
    return 1;
}

static ssize_t part(int what, size_t size) {
    return what == OFF ? (ssize_t)size : size > 1 ? (ssize_t)(size / 2) : (ssize_t)size;
}

#define WRITE(name, fd, size, call) \
    char place[4096]; \
    int what = mode == OFF ? OFF : act(name, path_of(fd, place, sizeof place)); \
    if (what == FAIL || what == FULL) { errno = code; return -1; } \
    ssize_t num = part(what, size); \
    ssize_t made = call; \
    if (what == TEAR) kill(getpid(), SIGKILL); \
    return made

ssize_t write(int fd, const void *data, size_t size) {
    WRITE("write", fd, size, REAL(write)(fd, data, (size_t)num));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    WRITE("pwrite", fd, size, REAL(pwrite)(fd, data, (size_t)num, at));
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    WRITE("pwrite", fd, size, REAL(pwrite64)(fd, data, (size_t)num, at));
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    WRITE("writev", fd, 2, REAL(writev)(fd, parts, num < 2 ? (count + 1) / 2 : count));
}

#define BY_FD(name, fd, needs_space, call) \
    char place[4096]; \
    int what = mode == OFF ? OFF : act(name, path_of(fd, place, sizeof place)); \
    if (fails(what, needs_space)) return -1; \
    return call

int fsync(int fd) { BY_FD("fsync", fd, 0, REAL(fsync)(fd)); }
int fdatasync(int fd) { BY_FD("fsync", fd, 0, REAL(fdatasync)(fd)); }
int ftruncate(int fd, off_t size) { BY_FD("truncate", fd, 1, REAL(ftruncate)(fd, size)); }
int ftruncate64(int fd, off64_t size) { BY_FD("truncate", fd, 1, REAL(ftruncate64)(fd, size)); }

int posix_fallocate(int fd, off_t at, off_t size) {
    char place[4096];
    int what = mode == OFF ? OFF : act("fallocate", path_of(fd, place, sizeof place));
    return fails(what, 1) ? code : REAL(posix_fallocate)(fd, at, size);
}

int close(int fd) {  /* closes, whatever it says */
    char place[4096];
    int what = mode == OFF ? OFF : act("close", path_of(fd, place, sizeof place));
    int made = REAL(close)(fd);
    return fails(what, 0) ? -1 : made;
}

#define BY_PATH(name, path, needs_space, call) \
    if (fails(mode == OFF ? OFF : act(name, path), needs_space)) return -1; \
    return call

int truncate(const char *path, off_t size) {
    BY_PATH("truncate", path, 1, REAL(truncate)(path, size));
}
int rename(const char *from, const char *to) { BY_PATH("rename", to, 1, REAL(rename)(from, to)); }
int renameat(int a, const char *from, int b, const char *to) {
    BY_PATH("rename", to, 1, REAL(renameat)(a, from, b, to));
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    BY_PATH("rename", to, 1, REAL(renameat2)(a, from, b, to, flags));
}
int link(const char *from, const char *to) { BY_PATH("link", to, 1, REAL(link)(from, to)); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    BY_PATH("link", to, 1, REAL(linkat)(a, from, b, to, flags));
}

/* Removing cannot be made up for but by the next one, so it only dies. */
static void may_die(const char *name, const char *path) {
    int what = mode == OFF ? OFF : act(name, path);
    if (what == TEAR) kill(getpid(), SIGKILL);
}
int unlink(const char *path) {
    may_die("unlink", path);
    return REAL(unlink)(path);
}
int unlinkat(int folder, const char *path, int flags) {
    may_die("unlink", path);
    return REAL(unlinkat)(folder, path, flags);
}
int rmdir(const char *path) {
    may_die("rmdir", path);
    return REAL(rmdir)(path);
}

#define OPEN(path, flags, call) \
    mode_t bits = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        bits = va_arg(rest, mode_t); \
        va_end(rest); \
    } \
    BY_PATH("open", path, flags & O_CREAT, call)

int open(const char *path, int flags, ...) { OPEN(path, flags, REAL(open)(path, flags, bits)); }
int open64(const char *path, int flags, ...) {
    OPEN(path, flags, REAL(open64)(path, flags, bits));
}
int openat(int folder, const char *path, int flags, ...) {
    OPEN(path, flags, REAL(openat)(folder, path, flags, bits));
}
int openat64(int folder, const char *path, int flags, ...) {
    OPEN(path, flags, REAL(openat64)(folder, path, flags, bits));
}
