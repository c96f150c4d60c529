/* Preloaded into a daemon under test: what it does to disks and tells the kernel can be slowed down, and it can be
 * made to die just before any of it.
 *
 * $COMMITLOGFS_FAULT_PLAN names a file that holds a struct plan; the test writes it, every process maps it. Each call
 * below is one step. A reply to the kernel is one too: to die before it is to die after the effect. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ioctl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { FUSE_DEVICE = 229 }; /* type of its ioctls (linux/fuse.h) */

struct plan {
    _Atomic int pid;       /* of the process that is meant; 0: nobody */
    _Atomic int countdown; /* die before this step, counted from 1; 0: do not */
    _Atomic int steps;     /* taken so far */
    _Atomic int delay_us;  /* before and after every step */
};

static struct plan *plan;

__attribute__((constructor)) static void map_plan(void)
{
    const char *path = getenv("COMMITLOGFS_FAULT_PLAN");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED)
        plan = mapped;
}

static int is_meant(void)
{
    return plan && atomic_load(&plan->pid) == getpid();
}

static void pause_if_told(void)
{
    int error = errno;
    int delay_us = atomic_load(&plan->delay_us);
    if (delay_us > 0)
        usleep((useconds_t)delay_us);
    errno = error;
}

static void before(void)
{
    if (!is_meant())
        return;
    int step = atomic_fetch_add(&plan->steps, 1) + 1;
    pause_if_told();
    if (step == atomic_load(&plan->countdown))
        for (;;) {
            kill(getpid(), SIGKILL);
            pause();
        }
}

static void after(void)
{
    if (is_meant())
        pause_if_told();
}

/* STEP(result, name, parameters, arguments) */
#define STEP(result, name, parameters, arguments)                              \
    result name parameters                                                     \
    {                                                                          \
        static result(*_Atomic next) parameters;                               \
        if (!next)                                                             \
            next = (result(*) parameters)dlsym(RTLD_NEXT, #name);              \
        before();                                                              \
        result outcome = next arguments;                                      \
        after();                                                               \
        return outcome;                                                       \
    }

STEP(int, fallocate, (int fd, int mode, off_t offset, off_t length), (fd, mode, offset, length))
STEP(int, fallocate64, (int fd, int mode, off64_t offset, off64_t length), (fd, mode, offset, length))
STEP(int, fchown, (int fd, uid_t uid, gid_t gid), (fd, uid, gid))
STEP(int, fchmod, (int fd, mode_t mode), (fd, mode))
STEP(int, linkat, (int from, const char *old, int to, const char *new, int flags), (from, old, to, new, flags))
STEP(int, unlinkat, (int dir, const char *name, int flags), (dir, name, flags))
STEP(int, renameat, (int from, const char *old, int to, const char *new), (from, old, to, new))
STEP(int, mkdirat, (int dir, const char *name, mode_t mode), (dir, name, mode))
STEP(int, ftruncate, (int fd, off_t size), (fd, size))
STEP(int, ftruncate64, (int fd, off64_t size), (fd, size))
STEP(int, fsync, (int fd), (fd))
STEP(int, fdatasync, (int fd), (fd))
STEP(int, fsetxattr, (int fd, const char *name, const void *value, size_t size, int flags),
     (fd, name, value, size, flags))
STEP(int, fremovexattr, (int fd, const char *name), (fd, name))
STEP(int, rename, (const char *old, const char *new), (old, new))
STEP(int, unlink, (const char *name), (name))
STEP(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))

/* Backing ids are opened and closed by ioctl; it is variadic, with one argument at most. Others, such as those for the
 * size of a terminal, are no steps. */
int ioctl(int fd, unsigned long request, ...)
{
    static int (*_Atomic next)(int, unsigned long, ...);
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (!next)
        next = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
    bool is_step = _IOC_TYPE(request) == FUSE_DEVICE;
    if (is_step)
        before();
    int value = next(fd, request, argument);
    if (is_step)
        after();
    return value;
}
