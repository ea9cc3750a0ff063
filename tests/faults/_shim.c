/* Fails the N-th system call below a folder; loaded with LD_PRELOAD, driven through ctypes.
 *
 * Whatever calls the C library is hit: Python, NumPy, HDF5, safetensors (Rust), torch (C++).
 * Calls on files elsewhere are never counted, and nothing is counted while disarmed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind {
  OPEN = 1, CREATE = 2, WRITE = 4, SYNC = 8, RENAME = 16,
  UNLINK = 32, MKDIR = 64, MAP = 128, TRUNCATE = 256, READ = 512,
};
enum { PATH_BYTES = 8192, MAX_FOLDERS = 16, NUM_KINDS = 10, KILL = -1 };

static char folders[MAX_FOLDERS][PATH_BYTES];
static int num_folders, num_given;
/* What forked processes tell, which may be killed: the folder that native code made last, how many
 * calls of each kind there were, and the kind of the first that failed. */
static struct { char made[PATH_BYTES]; int calls[NUM_KINDS], failed_kind; } *told;
static volatile int armed, mask, target, how, lasting, count, fired, half_taken;

/* -- what the tests call ---------------------------------------------------------------------- */

void fault_watch(const char *folder) {
  if (folder == NULL) {
    num_folders = 0;
  } else if (num_folders < MAX_FOLDERS) {
    strncpy(folders[num_folders++], folder, PATH_BYTES - 1);
  }
  num_given = num_folders;
}

const char *fault_made(void) { return told->made; }

__attribute__((constructor)) static void share(void) {
  told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* The `n`-th call of a kind in `kinds` fails with `error` (or the process is killed); so do all
 * after it if `lasts`. With n = 0 calls are counted only. */
void fault_arm(int kinds, int n, int error, int lasts) {
  num_folders = num_given;
  memset(told, 0, sizeof *told);
  mask = kinds, target = n, how = error, lasting = lasts;
  count = fired = half_taken = 0, armed = 1;
}

void fault_disarm(void) { armed = 0; }
int fault_count(void) { return count; }
int fault_fired(void) { return fired; }
int fault_calls(int kind) { return told->calls[kind]; }
int fault_kind(void) { return told->failed_kind; }

/* -- which calls count ------------------------------------------------------------------------ */

static int below(const char *path) {
  for (int i = 0; i < num_folders; i++) {
    size_t length = strlen(folders[i]);
    if (!strncmp(path, folders[i], length) && (path[length] == '/' || path[length] == 0)) return 1;
  }
  return 0;
}

static int watched_descriptor(int descriptor) {
  char link[64], path[PATH_BYTES];
  if (!armed || descriptor < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return below(path);
}

static int watched_path(int directory, const char *path) {
  char start[PATH_BYTES / 2], whole[PATH_BYTES];
  if (!armed || path == NULL) return 0;
  if (path[0] == '/') return below(path);
  if (directory != AT_FDCWD) return watched_descriptor(directory);
  if (getcwd(start, sizeof start) == NULL) return 0;
  snprintf(whole, sizeof whole, "%s/%.4000s", start, path);
  return below(whole);
}

/* Count a call; say whether it is to fail. Who is to be killed is, unless there is something left
 * to do before (`later`). */
static int hit_then(enum kind kind, int later) {
  if (!(mask & kind)) return 0;
  int number = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&told->calls[__builtin_ctz(kind)], 1, __ATOMIC_SEQ_CST);
  if (target == 0 || !(number == target || (lasting && number > target))) return 0;
  if (!fired) told->failed_kind = kind;
  fired = 1;
  if (how == KILL && !later) kill(getpid(), SIGKILL);
  errno = how;
  return 1;
}

static int hit(enum kind kind) { return hit_then(kind, 0); }

/* A disk that gets full takes half of what comes first and nothing after; a killed process leaves
 * half; a single error takes nothing. */
static int takes_half(size_t size) {
  int first = !half_taken;
  half_taken = 1;
  return first && size > 1 && ((how == ENOSPC && lasting) || how == KILL);
}

#define REAL(result, name, ...)                                                \
  static result (*real)(__VA_ARGS__);                                          \
  if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

/* -- opening ---------------------------------------------------------------------------------- */

static enum kind opening(int flags) { return flags & (O_CREAT | O_TRUNC) ? CREATE : OPEN; }

#define MODE                                                                   \
  mode_t mode = 0;                                                             \
  if (flags & (O_CREAT | __O_TMPFILE)) {                                       \
    va_list rest;                                                              \
    va_start(rest, flags);                                                     \
    mode = va_arg(rest, mode_t);                                               \
    va_end(rest);                                                              \
  }

#define DEFINE_OPEN(name)                                                      \
  int name(const char *path, int flags, ...) {                                 \
    MODE REAL(int, name, const char *, int, ...);                              \
    if (watched_path(AT_FDCWD, path) && hit(opening(flags))) return -1;        \
    return real(path, flags, mode);                                            \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_OPENAT(name)                                                    \
  int name(int directory, const char *path, int flags, ...) {                  \
    MODE REAL(int, name, int, const char *, int, ...);                         \
    if (watched_path(directory, path) && hit(opening(flags))) return -1;       \
    return real(directory, path, flags, mode);                                 \
  }
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

/* What programs call that were compiled with checks of buffers, if no file is created. */
#define DEFINE_CHECKED_OPEN(name)                                              \
  int name(const char *path, int flags) {                                      \
    REAL(int, name, const char *, int);                                        \
    if (watched_path(AT_FDCWD, path) && hit(opening(flags))) return -1;        \
    return real(path, flags);                                                  \
  }
DEFINE_CHECKED_OPEN(__open_2)
DEFINE_CHECKED_OPEN(__open64_2)

#define DEFINE_CHECKED_OPENAT(name)                                            \
  int name(int directory, const char *path, int flags) {                       \
    REAL(int, name, int, const char *, int);                                   \
    if (watched_path(directory, path) && hit(opening(flags))) return -1;       \
    return real(directory, path, flags);                                       \
  }
DEFINE_CHECKED_OPENAT(__openat_2)
DEFINE_CHECKED_OPENAT(__openat64_2)

#define DEFINE_CREAT(name)                                                     \
  int name(const char *path, mode_t mode) {                                    \
    REAL(int, name, const char *, mode_t);                                     \
    if (watched_path(AT_FDCWD, path) && hit(CREATE)) return -1;                \
    return real(path, mode);                                                   \
  }
DEFINE_CREAT(creat)
DEFINE_CREAT(creat64)

#define DEFINE_FOPEN(name)                                                     \
  FILE *name(const char *path, const char *mode) {                             \
    REAL(FILE *, name, const char *, const char *);                            \
    if (watched_path(AT_FDCWD, path) && hit(mode[0] == 'r' ? OPEN : CREATE)) return NULL; \
    return real(path, mode);                                                   \
  }
DEFINE_FOPEN(fopen)
DEFINE_FOPEN(fopen64)

DIR *opendir(const char *path) {
  REAL(DIR *, opendir, const char *);
  if (watched_path(AT_FDCWD, path) && hit(OPEN)) return NULL;
  return real(path);
}

/* -- writing: a full disk takes a part first, and a killed process leaves one ------------------- */

ssize_t write(int descriptor, const void *data, size_t size) {
  REAL(ssize_t, write, int, const void *, size_t);
  if (watched_descriptor(descriptor) && hit_then(WRITE, 1)) {
    int error = how;
    if (takes_half(size)) {
      ssize_t part = real(descriptor, data, size / 2);
      if (error != KILL) return part;
    }
    if (error == KILL) kill(getpid(), SIGKILL);
    errno = error;
    return -1;
  }
  return real(descriptor, data, size);
}

#define DEFINE_PWRITE(name, offset_type)                                       \
  ssize_t name(int descriptor, const void *data, size_t size, offset_type at) { \
    REAL(ssize_t, name, int, const void *, size_t, offset_type);               \
    if (watched_descriptor(descriptor) && hit_then(WRITE, 1)) {                \
      int error = how;                                                         \
      if (takes_half(size)) { \
        ssize_t part = real(descriptor, data, size / 2, at);                   \
        if (error != KILL) return part;                                        \
      }                                                                        \
      if (error == KILL) kill(getpid(), SIGKILL);                              \
      errno = error;                                                           \
      return -1;                                                               \
    }                                                                          \
    return real(descriptor, data, size, at);                                   \
  }
DEFINE_PWRITE(pwrite, off_t)
DEFINE_PWRITE(pwrite64, off64_t)

ssize_t writev(int descriptor, const struct iovec *parts, int number) {
  REAL(ssize_t, writev, int, const struct iovec *, int);
  if (watched_descriptor(descriptor) && hit(WRITE)) return -1;
  return real(descriptor, parts, number);
}

#define DEFINE_VECTORS(name, offset_type, kind)                                \
  ssize_t name(int descriptor, const struct iovec *parts, int number, offset_type at) { \
    REAL(ssize_t, name, int, const struct iovec *, int, offset_type);          \
    if (watched_descriptor(descriptor) && hit(kind)) return -1;                \
    return real(descriptor, parts, number, at);                                \
  }
DEFINE_VECTORS(pwritev, off_t, WRITE)
DEFINE_VECTORS(pwritev64, off64_t, WRITE)
DEFINE_VECTORS(preadv, off_t, READ)
DEFINE_VECTORS(preadv64, off64_t, READ)

#define DEFINE_SENDFILE(name, offset_type)                                     \
  ssize_t name(int out, int in, offset_type *offset, size_t size) {            \
    REAL(ssize_t, name, int, int, offset_type *, size_t);                      \
    if (watched_descriptor(out) && hit(WRITE)) return -1;                      \
    return real(out, in, offset, size);                                        \
  }
DEFINE_SENDFILE(sendfile, off_t)
DEFINE_SENDFILE(sendfile64, off64_t)

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
  REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned);
  if (watched_descriptor(out) && hit(WRITE)) return -1;
  return real(in, from, out, to, size, flags);
}

/* stdio writes from inside the C library, where no shim reaches: so its own calls count. */
size_t fwrite(const void *data, size_t size, size_t number, FILE *file) {
  REAL(size_t, fwrite, const void *, size_t, size_t, FILE *);
  if (armed && watched_descriptor(fileno(file)) && hit_then(WRITE, 1)) {
    int error = how;
    size_t part = number / 2 ? real(data, size, number / 2, file) : 0;
    if (error == KILL) fflush(file), kill(getpid(), SIGKILL);
    errno = error;
    return part;
  }
  return real(data, size, number, file);
}

int fflush(FILE *file) {
  REAL(int, fflush, FILE *);
  if (armed && file && __fpending(file) && watched_descriptor(fileno(file)) && hit(WRITE)) {
    __fpurge(file);
    return EOF;
  }
  return real(file);
}

int fclose(FILE *file) {
  REAL(int, fclose, FILE *);
  if (armed && __fpending(file) && watched_descriptor(fileno(file)) && hit(WRITE)) {
    int error = how;
    __fpurge(file);
    real(file);
    errno = error;
    return EOF;
  }
  return real(file);
}

/* -- reading ---------------------------------------------------------------------------------- */

ssize_t read(int descriptor, void *data, size_t size) {
  REAL(ssize_t, read, int, void *, size_t);
  if (watched_descriptor(descriptor) && hit(READ)) return -1;
  return real(descriptor, data, size);
}

ssize_t __read_chk(int descriptor, void *data, size_t size, size_t room) {
  REAL(ssize_t, __read_chk, int, void *, size_t, size_t);
  if (watched_descriptor(descriptor) && hit(READ)) return -1;
  return real(descriptor, data, size, room);
}

ssize_t readv(int descriptor, const struct iovec *parts, int number) {
  REAL(ssize_t, readv, int, const struct iovec *, int);
  if (watched_descriptor(descriptor) && hit(READ)) return -1;
  return real(descriptor, parts, number);
}

#define DEFINE_PREAD(name, offset_type)                                        \
  ssize_t name(int descriptor, void *data, size_t size, offset_type at) {      \
    REAL(ssize_t, name, int, void *, size_t, offset_type);                     \
    if (watched_descriptor(descriptor) && hit(READ)) return -1;                \
    return real(descriptor, data, size, at);                                   \
  }
DEFINE_PREAD(pread, off_t)
DEFINE_PREAD(pread64, off64_t)

size_t fread(void *data, size_t size, size_t number, FILE *file) {
  REAL(size_t, fread, void *, size_t, size_t, FILE *);
  if (armed && watched_descriptor(fileno(file)) && hit(READ)) return 0;
  return real(data, size, number, file);
}

#define DEFINE_MMAP(name, offset_type)                                         \
  void *name(void *start, size_t size, int access, int flags, int descriptor, offset_type at) { \
    REAL(void *, name, void *, size_t, int, int, int, offset_type);            \
    if (watched_descriptor(descriptor) && hit(MAP)) return MAP_FAILED;         \
    return real(start, size, access, flags, descriptor, at);                   \
  }
DEFINE_MMAP(mmap, off_t)
DEFINE_MMAP(mmap64, off64_t)

/* -- everything else that takes a descriptor or one path ---------------------------------------- */

#define DEFINE_ON_DESCRIPTOR(name, kind)                                       \
  int name(int descriptor) {                                                   \
    REAL(int, name, int);                                                      \
    if (watched_descriptor(descriptor) && hit(kind)) return -1;                \
    return real(descriptor);                                                   \
  }
DEFINE_ON_DESCRIPTOR(fsync, SYNC)
DEFINE_ON_DESCRIPTOR(fdatasync, SYNC)

#define DEFINE_FTRUNCATE(name, offset_type)                                    \
  int name(int descriptor, offset_type size) {                                 \
    REAL(int, name, int, offset_type);                                         \
    if (watched_descriptor(descriptor) && hit(TRUNCATE)) return -1;            \
    return real(descriptor, size);                                             \
  }
DEFINE_FTRUNCATE(ftruncate, off_t)
DEFINE_FTRUNCATE(ftruncate64, off64_t)

#define DEFINE_ALLOCATE(name, offset_type)                                     \
  int name(int descriptor, offset_type from, offset_type size) {               \
    REAL(int, name, int, offset_type, offset_type);                            \
    /* Returns the error instead of setting it. */                             \
    if (watched_descriptor(descriptor) && hit(TRUNCATE)) return how;           \
    return real(descriptor, from, size);                                       \
  }
DEFINE_ALLOCATE(posix_fallocate, off_t)
DEFINE_ALLOCATE(posix_fallocate64, off64_t)

#define DEFINE_FALLOCATE(name, offset_type)                                    \
  int name(int descriptor, int mode, offset_type from, offset_type size) {     \
    REAL(int, name, int, int, offset_type, offset_type);                       \
    if (watched_descriptor(descriptor) && hit(TRUNCATE)) return -1;            \
    return real(descriptor, mode, from, size);                                 \
  }
DEFINE_FALLOCATE(fallocate, off_t)
DEFINE_FALLOCATE(fallocate64, off64_t)

#define DEFINE_TRUNCATE(name, offset_type)                                     \
  int name(const char *path, offset_type size) {                               \
    REAL(int, name, const char *, offset_type);                                \
    if (watched_path(AT_FDCWD, path) && hit(TRUNCATE)) return -1;              \
    return real(path, size);                                                   \
  }
DEFINE_TRUNCATE(truncate, off_t)
DEFINE_TRUNCATE(truncate64, off64_t)

#define DEFINE_ON_PATH(name, kind)                                             \
  int name(const char *path) {                                                 \
    REAL(int, name, const char *);                                             \
    if (watched_path(AT_FDCWD, path) && hit(kind)) return -1;                  \
    return real(path);                                                         \
  }
DEFINE_ON_PATH(unlink, UNLINK)
DEFINE_ON_PATH(rmdir, UNLINK)
DEFINE_ON_PATH(remove, UNLINK)

int unlinkat(int directory, const char *path, int flags) {
  REAL(int, unlinkat, int, const char *, int);
  if (watched_path(directory, path) && hit(UNLINK)) return -1;
  return real(directory, path, flags);
}

int mkdir(const char *path, mode_t mode) {
  REAL(int, mkdir, const char *, mode_t);
  if (watched_path(AT_FDCWD, path) && hit(MKDIR)) return -1;
  return real(path, mode);
}

/* torch unpacks packages into a folder of its own choice, which is watched from here on. Python
 * makes temporary folders without this function. */
char *mkdtemp(char *name) {
  REAL(char *, mkdtemp, char *);
  if (!armed) return real(name);
  if (hit(MKDIR)) return NULL;
  char *path = real(name);
  if (path && num_folders < MAX_FOLDERS) {
    strncpy(folders[num_folders++], path, PATH_BYTES - 1);
    strncpy(told->made, path, PATH_BYTES - 1);
  }
  return path;
}

int mkdirat(int directory, const char *path, mode_t mode) {
  REAL(int, mkdirat, int, const char *, mode_t);
  if (watched_path(directory, path) && hit(MKDIR)) return -1;
  return real(directory, path, mode);
}

#define DEFINE_MOVE(name)                                                      \
  int name(const char *from, const char *to) {                                 \
    REAL(int, name, const char *, const char *);                               \
    if (watched_path(AT_FDCWD, to) && hit(RENAME)) return -1;                  \
    return real(from, to);                                                     \
  }
DEFINE_MOVE(rename)
DEFINE_MOVE(link)
DEFINE_MOVE(symlink)

int renameat(int old_directory, const char *from, int directory, const char *to) {
  REAL(int, renameat, int, const char *, int, const char *);
  if (watched_path(directory, to) && hit(RENAME)) return -1;
  return real(old_directory, from, directory, to);
}

int renameat2(int old_directory, const char *from, int directory, const char *to, unsigned flags) {
  REAL(int, renameat2, int, const char *, int, const char *, unsigned);
  if (watched_path(directory, to) && hit(RENAME)) return -1;
  return real(old_directory, from, directory, to, flags);
}

int linkat(int old_directory, const char *from, int directory, const char *to, int flags) {
  REAL(int, linkat, int, const char *, int, const char *, int);
  if (watched_path(directory, to) && hit(RENAME)) return -1;
  return real(old_directory, from, directory, to, flags);
}
