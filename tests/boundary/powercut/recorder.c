/* Writes down, in order, what one process asks of the disk below one folder, and what it says and
 * hears on its sockets. Loaded with LD_PRELOAD; recorder.py starts it and reads what it wrote.
 *
 * POWERCUT_FOLDER  only files and folders below it are recorded
 * POWERCUT_RECORD  the file the events are appended to
 *
 * A write is recorded when it is done, a sync when it begins and when it is done, and a reply before
 * it leaves: where threads overlap, that promises less than what was true, never more.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef __LP64__
#error "the recorder passes file offsets in one register: it needs a 64-bit system"
#endif

enum { OPEN = 1, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, LINK, UNLINK, MKDIR, RECEIVE, SEND };
enum { SOCKET = 1, OURS };

#define MAGIC 0x43525750u /* "PWRC" */
#define WORDS 65536       /* bytes of a socket's traffic that are kept */

struct header {
    uint32_t magic;
    uint32_t kind;
    int32_t fd;
    uint32_t thread;
    uint64_t inode;
    int64_t offset;
    uint32_t flags;
    uint32_t path_size;
    uint32_t other_size;
    uint32_t data_size;
};

static int record_fd = -1;
static char folder[PATH_MAX];

__attribute__((constructor)) static void begin(void)
{
    const char *record = getenv("POWERCUT_RECORD"), *below = getenv("POWERCUT_FOLDER");
    if (!record || !below)
        return;
    snprintf(folder, sizeof folder, "%s", below);
    int fd = syscall(SYS_openat, AT_FDCWD, record, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    record_fd = fcntl(fd, F_DUPFD_CLOEXEC, 700); /* out of the way of numbers others count on */
    syscall(SYS_close, fd);
    unsetenv("LD_PRELOAD"); /* this process only, not those it starts */
}

/* ---- the record ------------------------------------------------------------------------------ */

static void put(struct header head, const char *path, const char *other, const void *data)
{
    int before = errno;
    head.magic = MAGIC;
    head.thread = (uint32_t)syscall(SYS_gettid);
    head.path_size = path ? strlen(path) : 0;
    head.other_size = other ? strlen(other) : 0;
    struct iovec parts[] = {
        {&head, sizeof head},
        {(void *)path, head.path_size},
        {(void *)other, head.other_size},
        {(void *)data, head.data_size},
    };
    ssize_t whole = sizeof head + head.path_size + head.other_size + head.data_size;
    if (syscall(SYS_writev, record_fd, parts, 4) != whole)
        abort(); /* a record with holes would prove nothing */
    errno = before;
}

static int is_below(const char *path)
{
    size_t length = strlen(folder);
    return !strncmp(path, folder, length) && (!path[length] || path[length] == '/');
}

static int kind_of(int fd, uint64_t *inode)
{
    if (record_fd < 0)
        return 0;
    int before = errno, kind = 0;
    struct stat found;
    if (!fstat(fd, &found)) {
        *inode = found.st_ino;
        if (S_ISSOCK(found.st_mode)) {
            kind = SOCKET;
        } else if (fd > STDERR_FILENO && (S_ISREG(found.st_mode) || S_ISDIR(found.st_mode))) {
            char link[64], path[PATH_MAX];
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
            if (size > 0) {
                path[size] = 0;
                kind = is_below(path) ? OURS : 0;
            }
        }
    }
    errno = before;
    return kind;
}

/* The path as seen from the root; whether it is one of ours. */
static int absolute(int at, const char *path, char *whole)
{
    if (record_fd < 0 || !path)
        return 0;
    int before = errno;
    char base[PATH_MAX] = "", link[64];
    if (path[0] != '/') {
        if (at == AT_FDCWD)
            snprintf(link, sizeof link, "/proc/self/cwd");
        else
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 2);
        if (size > 0)
            strcpy(base + size, "/");
    }
    int size = snprintf(whole, PATH_MAX, "%s%s", base, path);
    errno = before;
    return size < PATH_MAX && is_below(whole);
}

static void on_socket(int kind, int fd, const struct iovec *parts, size_t count, size_t most)
{
    char words[WORDS];
    size_t size = 0;
    for (size_t part = 0; part < count && size < WORDS && most; part++) {
        size_t piece = parts[part].iov_len;
        piece = piece > WORDS - size ? WORDS - size : piece;
        piece = piece > most ? most : piece;
        memcpy(words + size, parts[part].iov_base, piece);
        size += piece;
        most -= piece;
    }
    if (size)
        put((struct header){.kind = kind, .fd = fd, .data_size = size}, 0, 0, words);
}

static void heard(int fd, const struct iovec *parts, size_t count, ssize_t size)
{
    uint64_t inode;
    if (size > 0 && kind_of(fd, &inode) == SOCKET)
        on_socket(RECEIVE, fd, parts, count, size);
}

static void about_to_say(int fd, const struct iovec *parts, size_t count)
{
    uint64_t inode;
    if (kind_of(fd, &inode) == SOCKET)
        on_socket(SEND, fd, parts, count, SIZE_MAX);
}

/* `offset` is -1 for a write at the file's own position, which then lies behind what was written. */
static void written(int fd, const struct iovec *parts, size_t count, ssize_t size, int64_t offset)
{
    uint64_t inode;
    if (size <= 0 || kind_of(fd, &inode) != OURS)
        return;
    if (offset < 0)
        offset = lseek(fd, 0, SEEK_CUR) - size;
    for (size_t part = 0; part < count && size > 0; part++) {
        ssize_t piece = (ssize_t)parts[part].iov_len < size ? (ssize_t)parts[part].iov_len : size;
        put((struct header){.kind = WRITE, .fd = fd, .inode = inode, .offset = offset,
                            .data_size = piece}, 0, 0, parts[part].iov_base);
        offset += piece;
        size -= piece;
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static int opened(int at, const char *path, int flags, mode_t mode)
{
    char whole[PATH_MAX];
    int fd = syscall(SYS_openat, at, path, flags, mode);
    if (fd >= 0 && absolute(at, path, whole)) {
        uint64_t inode = 0;
        kind_of(fd, &inode);
        put((struct header){.kind = OPEN, .fd = fd, .inode = inode, .flags = flags}, whole, 0, 0);
    }
    return fd;
}

#define MODE(last) \
    mode_t mode = 0; \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list rest; \
        va_start(rest, last); \
        mode = va_arg(rest, int); \
        va_end(rest); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int creat(const char *path, mode_t mode)
{
    return opened(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}

ssize_t write(int fd, const void *data, size_t size)
{
    struct iovec part = {(void *)data, size};
    about_to_say(fd, &part, 1);
    ssize_t done = syscall(SYS_write, fd, data, size);
    written(fd, &part, 1, done, -1);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    about_to_say(fd, parts, count);
    ssize_t done = syscall(SYS_writev, fd, parts, count);
    written(fd, parts, count, done, -1);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    struct iovec part = {(void *)data, size};
    ssize_t done = syscall(SYS_pwrite64, fd, data, size, offset);
    written(fd, &part, 1, done, offset);
    return done;
}

int ftruncate(int fd, off_t size)
{
    int result = syscall(SYS_ftruncate, fd, size);
    uint64_t inode;
    if (!result && kind_of(fd, &inode) == OURS)
        put((struct header){.kind = TRUNCATE, .fd = fd, .inode = inode, .offset = size}, 0, 0, 0);
    return result;
}

static int synced(long call, int fd)
{
    uint64_t inode = 0;
    int is_ours = kind_of(fd, &inode) == OURS;
    struct header head = {.kind = SYNC_BEGIN, .fd = fd, .inode = inode};
    if (is_ours)
        put(head, 0, 0, 0);
    int result = syscall(call, fd);
    head.kind = SYNC_END;
    if (is_ours && !result)
        put(head, 0, 0, 0);
    return result;
}

int fsync(int fd) { return synced(SYS_fsync, fd); }
int fdatasync(int fd) { return synced(SYS_fdatasync, fd); }

#ifdef __GLIBC__ /* other names for the same, which programs are compiled to call */
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __openat_2(int at, const char *path, int flags) { return opened(at, path, flags, 0); }
int __openat64_2(int at, const char *path, int flags) { return opened(at, path, flags, 0); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return pwrite(fd, data, size, offset); }
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
#endif

/* ---- names ----------------------------------------------------------------------------------- */

static int named(int kind, int result, int at, const char *from, int to_at, const char *to)
{
    char path[PATH_MAX], other[PATH_MAX];
    if (result)
        return result;
    int is_ours = absolute(at, from, path);
    if (absolute(to_at, to, other) || is_ours)
        put((struct header){.kind = kind, .fd = -1}, path, to ? other : 0, 0);
    return result;
}

int renameat2(int at, const char *from, int to_at, const char *to, unsigned flags)
{
    return named(RENAME, syscall(SYS_renameat2, at, from, to_at, to, flags), at, from, to_at, to);
}

int renameat(int at, const char *from, int to_at, const char *to)
{
    return renameat2(at, from, to_at, to, 0);
}

int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int linkat(int at, const char *from, int to_at, const char *to, int flags)
{
    return named(LINK, syscall(SYS_linkat, at, from, to_at, to, flags), at, from, to_at, to);
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int at, const char *path, int flags)
{
    return named(UNLINK, syscall(SYS_unlinkat, at, path, flags), at, path, AT_FDCWD, 0);
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int at, const char *path, mode_t mode)
{
    return named(MKDIR, syscall(SYS_mkdirat, at, path, mode), at, path, AT_FDCWD, 0);
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* ---- sockets --------------------------------------------------------------------------------- */

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length)
{
    struct iovec part = {(void *)data, size};
    about_to_say(fd, &part, 1);
    return syscall(SYS_sendto, fd, data, size, flags, to, length);
}

ssize_t send(int fd, const void *data, size_t size, int flags)
{
    return sendto(fd, data, size, flags, 0, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    about_to_say(fd, message->msg_iov, message->msg_iovlen);
    return syscall(SYS_sendmsg, fd, message, flags);
}

ssize_t recvfrom(int fd, void *room, size_t size, int flags, struct sockaddr *from, socklen_t *length)
{
    ssize_t done = syscall(SYS_recvfrom, fd, room, size, flags, from, length);
    struct iovec part = {room, size};
    heard(fd, &part, 1, done);
    return done;
}

ssize_t recv(int fd, void *room, size_t size, int flags) { return recvfrom(fd, room, size, flags, 0, 0); }

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t done = syscall(SYS_recvmsg, fd, message, flags);
    heard(fd, message->msg_iov, message->msg_iovlen, done);
    return done;
}

ssize_t read(int fd, void *room, size_t size)
{
    ssize_t done = syscall(SYS_read, fd, room, size);
    struct iovec part = {room, size};
    heard(fd, &part, 1, done);
    return done;
}
