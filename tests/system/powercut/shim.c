/* What a power cut leaves, below the process: LD_PRELOAD this into a process that writes to a data folder.
 *
 * Every call goes through to the real file system, so the process and the next one see all that was written. Beside it a shadow
 * folder holds what is DURABLE: the bytes of a file as of its last flush, the names in a folder as of the folder's last flush.
 *
 *   <shadow>/control      rules: which flushes and writes fail (see struct rule), mapped, shared by all processes
 *   <shadow>/f/<id>       the durable bytes of a file
 *   <shadow>/l/<id>       ranges that a failed flush dropped: visible, and not made durable by later flushes until written again
 *   <shadow>/d/<id>/NAME  the durable names in a folder: a hard link to f/<id>, or a symbolic link "../<id>" for a folder
 *
 * <id> is the inode's number and its time of birth: a number that is used again is another file. The real flush is left out (nobody
 * cuts the power of this machine). Ranges are whole pages, as the kernel's are. A write is intercepted for the range that it makes
 * dirty; what another process wrote before is not known here, so the first flush of a file in a process takes all of it but the lost
 * ranges, as a kernel that remembers the dirty pages would. Maps are not followed: what is written through one is never durable.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define PAGE 4096
#define BUCKETS 4096
#define MAX_LOST 256
#define MAX_RULES 16
#define ID_BYTES 48
#define FOREVER ((int64_t)1 << 62)

enum { NOTHING, FLUSH_FAILS, WRITE_FAILS, WRITE_SHORT, FLUSH_SLOW, NO_SPACE };

struct rule {
    int32_t op;
    int32_t error;  /* errno of FLUSH_FAILS, WRITE_FAILS */
    int32_t skip;   /* matching calls to let pass first */
    int32_t remain; /* matching calls to strike; -1: all */
    int32_t value;  /* bytes that WRITE_SHORT writes; milliseconds of FLUSH_SLOW */
    int32_t hits;   /* calls struck so far */
    char pattern[104]; /* fnmatch of the path below the data folder; a star matches '/' too */
};

struct range { int64_t from, to; };

struct inode {
    struct inode *next;
    char id[ID_BYTES];
    int ours, lost_count;
    struct range dirty; /* hull of what was written since the last flush, to: exclusive */
    struct range lost[MAX_LOST];
};

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pwritev2)(int, const struct iovec *, int, off_t, int);
static ssize_t (*real_sendfile)(int, int, off_t *, size_t);
static ssize_t (*real_copy)(int, off64_t *, int, off64_t *, size_t, unsigned);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_statvfs)(const char *, struct statvfs *);

static char data[PATH_MAX], shadow[PATH_MAX];
static struct rule *rules;
static struct inode *table[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *what) {
    perror(what);
    _exit(99); /* a model that is wrong in silence is worse than none */
}

__attribute__((constructor)) static void begin(void) {
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_pwritev2 = dlsym(RTLD_NEXT, "pwritev2");
    real_sendfile = dlsym(RTLD_NEXT, "sendfile");
    real_copy = dlsym(RTLD_NEXT, "copy_file_range");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_statvfs = dlsym(RTLD_NEXT, "statvfs");
    const char *d = getenv("POWERCUT_DATA"), *s = getenv("POWERCUT_SHADOW");
    if (!d || !s)
        return;
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/control", s);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    rules = fd < 0 ? MAP_FAILED : mmap(NULL, MAX_RULES * sizeof *rules, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (rules == MAP_FAILED)
        die(path);
    close(fd);
    snprintf(shadow, sizeof shadow, "%s", s);
    snprintf(data, sizeof data, "%s", d);
}

/* ---- which file is it ------------------------------------------------------------------------------------------------------- */
static int id_at(int fd, const char *path, char *id, struct statx *st) {
    if (statx(fd, path, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, st))
        return -1;
    snprintf(id, ID_BYTES, "%llx-%llx-%x", (unsigned long long)st->stx_ino, (unsigned long long)st->stx_btime.tv_sec,
             st->stx_btime.tv_nsec);
    return st->stx_mask & STATX_BTIME ? 0 : -1;
}

EXPORT int powercut_id(const char *path, char *id) { /* for the test: 0, or -1 where the file system tells no time of birth */
    struct statx st;
    return id_at(AT_FDCWD, path, id, &st);
}

static int path_of(int fd, char *path) { /* absolute; 0 unless it is the data folder or below it */
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    size_t prefix = strlen(data);
    if (n < 0)
        return 0;
    path[n] = 0;
    return !strncmp(path, data, prefix) && (path[prefix] == '/' || !path[prefix]);
}

static void shadow_path(char *out, const char *kind, const char *id) {
    snprintf(out, PATH_MAX, "%.*s/%s/%s", PATH_MAX - 2 * ID_BYTES, shadow, kind, id);
}

static void load_lost(struct inode *node) {
    char path[PATH_MAX];
    shadow_path(path, "l", node->id);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    node->lost_count = (int)(read(fd, node->lost, sizeof node->lost) / (ssize_t)sizeof(struct range));
    close(fd);
}

static void store_lost(struct inode *node) {
    char path[PATH_MAX];
    shadow_path(path, "l", node->id);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    size_t size = (size_t)node->lost_count * sizeof(struct range);
    if (fd < 0 || real_write(fd, node->lost, size) != (ssize_t)size)
        die(path);
    close(fd);
}

/* The file of ours behind fd, NULL for all else; the lock is held when there is one. */
static struct inode *take(int fd, mode_t kind, struct statx *st) {
    char id[ID_BYTES], path[PATH_MAX];
    if (!*data || id_at(fd, "", id, st) || (st->stx_mode & S_IFMT) != kind)
        return NULL;
    struct inode **bucket = &table[(st->stx_ino * 31 + st->stx_btime.tv_nsec) % BUCKETS], *node;
    pthread_mutex_lock(&lock);
    for (node = *bucket; node && strcmp(node->id, id); node = node->next)
        ;
    if (!node) {
        node = calloc(1, sizeof *node);
        strcpy(node->id, id);
        node->ours = path_of(fd, path);
        node->dirty = (struct range){0, FOREVER};
        node->next = *bucket;
        *bucket = node;
        if (node->ours)
            load_lost(node);
    }
    if (node->ours)
        return node;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static int64_t size_of(int fd) { /* the lock is held, or it may grow */
    struct stat st;
    if (fstat(fd, &st))
        die("fstat");
    return st.st_size;
}

/* ---- rules ------------------------------------------------------------------------------------------------------------------ */
static struct rule *struck_at(const char *path, int one, int other) { /* absolute, in the data folder; NULL: it is not */
    for (struct rule *r = rules; r < rules + MAX_RULES; r++) {
        if ((r->op != one && r->op != other) || !__atomic_load_n(&r->remain, __ATOMIC_SEQ_CST))
            continue;
        if (!path || fnmatch(r->pattern, path + strlen(data) + (path[strlen(data)] == '/'), 0))
            continue;
        if (__atomic_load_n(&r->skip, __ATOMIC_SEQ_CST) > 0 && __atomic_fetch_sub(&r->skip, 1, __ATOMIC_SEQ_CST) > 0)
            continue;
        if (r->remain > 0 && __atomic_fetch_sub(&r->remain, 1, __ATOMIC_SEQ_CST) <= 0)
            continue;
        __atomic_fetch_add(&r->hits, 1, __ATOMIC_SEQ_CST);
        return r;
    }
    return NULL;
}

static struct rule *struck(int fd, int one, int other) {
    char path[PATH_MAX];
    return struck_at(path_of(fd, path) ? path : NULL, one, other);
}

/* ---- data ------------------------------------------------------------------------------------------------------------------- */
static void cut_out(struct inode *node, struct range gone) { /* what is written again is no longer lost */
    int before = node->lost_count;
    struct range old[MAX_LOST];
    memcpy(old, node->lost, sizeof old);
    node->lost_count = 0;
    for (int i = 0; i < before; i++) {
        struct range parts[2] = {{old[i].from, old[i].to < gone.from ? old[i].to : gone.from},
                                 {old[i].from > gone.to ? old[i].from : gone.to, old[i].to}};
        for (int p = 0; p < 2; p++)
            if (parts[p].from < parts[p].to && node->lost_count < MAX_LOST)
                node->lost[node->lost_count++] = parts[p];
    }
    if (before)
        store_lost(node);
}

static void wrote(struct inode *node, int64_t from, int64_t to) {
    struct range pages = {from / PAGE * PAGE, (to + PAGE - 1) / PAGE * PAGE};
    if (node->dirty.from >= node->dirty.to)
        node->dirty = pages;
    if (pages.from < node->dirty.from)
        node->dirty.from = pages.from;
    if (pages.to > node->dirty.to)
        node->dirty.to = pages.to;
    if (node->lost_count)
        cut_out(node, pages);
}

static int64_t next_lost(struct inode *node, int64_t at, int64_t *resume) { /* first lost byte from `at` on, and its end */
    int64_t first = FOREVER;
    for (int i = 0; i < node->lost_count; i++)
        if (node->lost[i].to > at && node->lost[i].from < first) {
            first = node->lost[i].from > at ? node->lost[i].from : at;
            *resume = node->lost[i].to;
        }
    return first;
}

static void copy_range(int from, int to, int64_t at, int64_t end) {
    static char buffer[1 << 16]; /* the lock is held */
    while (at < end) {
        ssize_t n = pread(from, buffer, end - at < (int64_t)sizeof buffer ? (size_t)(end - at) : sizeof buffer, at);
        if (n < 0 || (n > 0 && real_pwrite(to, buffer, (size_t)n, at) != n))
            die("copy to the shadow");
        if (!n)
            return;
        at += n;
    }
}

static void make_durable(int fd, struct inode *node, int64_t size) {
    char path[PATH_MAX], link[32];
    struct stat durable;
    shadow_path(path, "f", node->id);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int from = open(link, O_RDONLY | O_CLOEXEC), to = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (from < 0 || to < 0 || fstat(to, &durable) || (durable.st_size > size && real_ftruncate(to, size)))
        die(path);
    int64_t at = node->dirty.from, end = node->dirty.to < size ? node->dirty.to : size, resume = end;
    while (at < end) {
        int64_t stop = next_lost(node, at, &resume);
        copy_range(from, to, at, stop < end ? stop : end);
        at = stop < end ? resume : end;
    }
    node->dirty = (struct range){0, 0};
    close(from);
    close(to);
}

static void lose(struct inode *node, int64_t size) { /* the flush failed and the kernel calls the pages clean */
    struct range dropped = {node->dirty.from, node->dirty.to < size ? node->dirty.to : (size + PAGE - 1) / PAGE * PAGE};
    if (dropped.from < dropped.to) {
        if (node->lost_count == MAX_LOST)
            node->lost_count = 1, node->lost[0] = (struct range){0, FOREVER};
        else
            node->lost[node->lost_count++] = dropped;
        store_lost(node);
    }
    node->dirty = (struct range){0, 0};
}

/* ---- names ------------------------------------------------------------------------------------------------------------------ */
static void name_durable(int fd, const char *name, const char *folder) {
    char id[ID_BYTES], target[PATH_MAX], temporary[PATH_MAX], path[PATH_MAX], link_to[ID_BYTES + 4];
    struct statx st;
    struct stat mine, theirs;
    if (id_at(fd, name, id, &st))
        return; /* gone meanwhile */
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= PATH_MAX)
        die("a path that is too long");
    snprintf(temporary, sizeof temporary, "%.*s/d/.next-%d", PATH_MAX - 32, shadow, getpid());
    unlink(temporary);
    if (S_ISDIR(st.stx_mode)) {
        snprintf(link_to, sizeof link_to, "../%s", id);
        if (symlink(link_to, temporary))
            die(temporary);
    } else {
        shadow_path(target, "f", id);
        close(open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)); /* a name may be durable before any byte is */
        if (!stat(target, &mine) && !lstat(path, &theirs) && mine.st_ino == theirs.st_ino)
            return;
        if (link(target, temporary))
            die(target);
    }
    if (rename(temporary, path))
        die(path);
}

static void names_durable(int fd, struct inode *node) {
    char folder[PATH_MAX];
    shadow_path(folder, "d", node->id);
    mkdir(folder, 0700);
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *visible = fdopendir(copy), *durable;
    struct dirent *entry;
    struct stat st;
    if (!visible)
        die(folder);
    while ((entry = readdir(visible)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            name_durable(fd, entry->d_name, folder);
    closedir(visible);
    if (!(durable = opendir(folder)))
        die(folder);
    while ((entry = readdir(durable)))
        if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) && errno == ENOENT)
            unlinkat(dirfd(durable), entry->d_name, 0);
    closedir(durable);
}

/* ---- the calls -------------------------------------------------------------------------------------------------------------- */
static int flush(int fd) { /* 1: not ours */
    struct statx st;
    struct inode *node = take(fd, S_IFREG, &st);
    if (!node && !(node = take(fd, S_IFDIR, &st)))
        return 1;
    struct rule *slow = struck(fd, FLUSH_SLOW, FLUSH_SLOW);
    if (slow) { /* what is written meanwhile is flushed, too */
        pthread_mutex_unlock(&lock);
        usleep((useconds_t)slow->value * 1000);
        pthread_mutex_lock(&lock);
    }
    struct rule *fails = struck(fd, FLUSH_FAILS, FLUSH_FAILS);
    if (S_ISDIR(st.stx_mode) && !fails)
        names_durable(fd, node);
    else if (S_ISREG(st.stx_mode))
        (fails ? lose(node, size_of(fd)) : make_durable(fd, node, size_of(fd)));
    pthread_mutex_unlock(&lock);
    errno = fails ? fails->error : errno;
    return fails ? -1 : 0;
}

static int no_space(const char *path, int done, struct statvfs *told) { /* of a folder by its name */
    char real[PATH_MAX];
    size_t prefix = strlen(data);
    int ours = !done && rules && realpath(path, real) && !strncmp(real, data, prefix) && (real[prefix] == '/' || !real[prefix]);
    if (ours && struck_at(real, NO_SPACE, NO_SPACE))
        told->f_bfree = told->f_bavail = 0;
    return done;
}

EXPORT int statvfs(const char *path, struct statvfs *told) {
    return no_space(path, real_statvfs(path, told), told);
}

EXPORT int statvfs64(const char *path, struct statvfs64 *told) { /* the same, where off_t has 64 bits */
    return statvfs(path, (struct statvfs *)told);
}

EXPORT int fsync(int fd) {
    int done = flush(fd);
    return done > 0 ? real_fsync(fd) : done;
}

EXPORT int fdatasync(int fd) {
    int done = flush(fd);
    return done > 0 ? real_fdatasync(fd) : done;
}

/* All writes: at -1 is "where the file stands" (its end with O_APPEND). */
static ssize_t put(int fd, const struct iovec *pieces, int count, int64_t at, int flags) {
    struct statx st;
    struct inode *node = take(fd, S_IFREG, &st);
    struct rule *rule = node ? struck(fd, WRITE_FAILS, WRITE_SHORT) : NULL;
    struct iovec first;
    if (rule && rule->op == WRITE_FAILS) {
        pthread_mutex_unlock(&lock);
        errno = rule->error;
        return -1;
    }
    if (rule) { /* no more than the first piece; a short write is any part of what was asked for */
        first = (struct iovec){pieces[0].iov_base, pieces[0].iov_len < (size_t)rule->value ? pieces[0].iov_len : (size_t)rule->value};
        pieces = &first, count = 1;
    }
    ssize_t n = at < 0 && !flags ? real_writev(fd, pieces, count) : real_pwritev2(fd, pieces, count, at, flags);
    if (!node)
        return n;
    int saved = errno, how = fcntl(fd, F_GETFL);
    if (n > 0) {
        int64_t end = how & O_APPEND ? size_of(fd) : at >= 0 ? at + n : lseek(fd, 0, SEEK_CUR);
        wrote(node, end - n, end);
    }
    pthread_mutex_unlock(&lock);
    if (n > 0 && ((how & O_DSYNC) || (flags & (RWF_DSYNC | RWF_SYNC))) && flush(fd) < 0)
        return -1;
    errno = saved;
    return n;
}

EXPORT ssize_t write(int fd, const void *bytes, size_t size) {
    struct iovec piece = {(void *)bytes, size};
    return *data ? put(fd, &piece, 1, -1, 0) : real_write(fd, bytes, size);
}
EXPORT ssize_t writev(int fd, const struct iovec *pieces, int count) { return put(fd, pieces, count, -1, 0); }
EXPORT ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
    struct iovec piece = {(void *)bytes, size};
    return put(fd, &piece, 1, at, 0);
}
EXPORT ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t at) { return pwrite(fd, bytes, size, at); }
EXPORT ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) { return put(fd, pieces, count, at, 0); }
EXPORT ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off_t at) { return put(fd, pieces, count, at, 0); }
EXPORT ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t at, int flags) {
    return put(fd, pieces, count, at, flags);
}
EXPORT ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count, off_t at, int flags) {
    return put(fd, pieces, count, at, flags);
}

static void all_dirty(int fd) { /* copies and cuts are rare: the next flush takes the whole file */
    struct statx st;
    struct inode *node = take(fd, S_IFREG, &st);
    if (!node)
        return;
    wrote(node, 0, size_of(fd));
    pthread_mutex_unlock(&lock);
}

EXPORT ssize_t sendfile(int to, int from, off_t *at, size_t count) {
    ssize_t n = real_sendfile(to, from, at, count);
    all_dirty(to);
    return n;
}
EXPORT ssize_t sendfile64(int to, int from, off64_t *at, size_t count) { return sendfile(to, from, at, count); }
EXPORT ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t size, unsigned flags) {
    ssize_t n = real_copy(from, from_at, to, to_at, size, flags);
    all_dirty(to);
    return n;
}

EXPORT int ftruncate(int fd, off_t size) {
    struct statx st;
    struct inode *node = take(fd, S_IFREG, &st);
    if (!node)
        return real_ftruncate(fd, size);
    int64_t before = size_of(fd);
    int done = real_ftruncate(fd, size);
    if (!done && size > before)
        wrote(node, before, size);
    if (!done && node->lost_count)
        cut_out(node, (struct range){(size + PAGE - 1) / PAGE * PAGE, FOREVER});
    pthread_mutex_unlock(&lock);
    return done;
}
EXPORT int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }
