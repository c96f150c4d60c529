/* System calls that Python does not have: openat2(2), fallocate(2) with flags, mlockall(2), umount2(2), prctl(2) for
 * core dumps, the type of a filesystem of fstatfs(2), and statx(2) over many names of one directory in a single call (the
 * GIL is released once, not once per name). No policy here. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Layout of one packed attribute record; store/files/attributes.py unpacks it as "=11q". */
struct packed_attributes {
    int64_t ino, mode, nlink, uid, gid, size, blocks, atime_ns, mtime_ns, ctime_ns, btime_ns;
};

#define STATX_MASK_USED (STATX_BASIC_STATS | STATX_BTIME)

/* Nanoseconds since the epoch. A time before 1677 or after 2262 does not fit and becomes INT64_MIN or INT64_MAX. */
static int64_t to_ns(const struct statx_timestamp *t)
{
    int64_t ns;
    if (__builtin_mul_overflow((int64_t)t->tv_sec, (int64_t)1000000000, &ns) ||
        __builtin_add_overflow(ns, (int64_t)t->tv_nsec, &ns))
        return t->tv_sec < 0 ? INT64_MIN : INT64_MAX;
    return ns;
}

static void pack(const struct statx *sx, struct packed_attributes *out)
{
    out->ino = (int64_t)sx->stx_ino;
    out->mode = sx->stx_mode;
    out->nlink = sx->stx_nlink;
    out->uid = sx->stx_uid;
    out->gid = sx->stx_gid;
    out->size = (int64_t)sx->stx_size;
    out->blocks = (int64_t)sx->stx_blocks;
    out->atime_ns = to_ns(&sx->stx_atime);
    out->mtime_ns = to_ns(&sx->stx_mtime);
    out->ctime_ns = to_ns(&sx->stx_ctime);
    out->btime_ns = (sx->stx_mask & STATX_BTIME) ? to_ns(&sx->stx_btime) : 0;
}

static PyObject *py_openat2(PyObject *Py_UNUSED(module), PyObject *args)
{
    int dirfd;
    const char *path;
    unsigned long long flags, mode, resolve;
    if (!PyArg_ParseTuple(args, "iyKKK:openat2", &dirfd, &path, &flags, &mode, &resolve))
        return NULL;
    struct open_how how = {.flags = flags, .mode = mode, .resolve = resolve};
    long fd;
    do {
        Py_BEGIN_ALLOW_THREADS
        fd = syscall(SYS_openat2, dirfd, path, &how, sizeof how);
        Py_END_ALLOW_THREADS
    } while (fd < 0 && errno == EINTR && PyErr_CheckSignals() == 0);
    if (fd < 0)
        return PyErr_Occurred() ? NULL : PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
    return PyLong_FromLong(fd);
}

static PyObject *py_fallocate(PyObject *Py_UNUSED(module), PyObject *args)
{
    int fd, mode, result;
    long long offset, length;
    if (!PyArg_ParseTuple(args, "iiLL:fallocate", &fd, &mode, &offset, &length))
        return NULL;
    do {
        Py_BEGIN_ALLOW_THREADS
        result = fallocate(fd, mode, (off_t)offset, (off_t)length);
        Py_END_ALLOW_THREADS
    } while (result < 0 && errno == EINTR && PyErr_CheckSignals() == 0);
    if (result < 0)
        return PyErr_Occurred() ? NULL : PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyObject *py_mlockall(PyObject *Py_UNUSED(module), PyObject *args)
{
    int flags, result;
    if (!PyArg_ParseTuple(args, "i:mlockall", &flags))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = mlockall(flags);
    Py_END_ALLOW_THREADS
    if (result < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyObject *py_umount2(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *path;
    int flags, result;
    if (!PyArg_ParseTuple(args, "yi:umount2", &path, &flags))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = umount2(path, flags);
    Py_END_ALLOW_THREADS
    if (result < 0)
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
    Py_RETURN_NONE;
}

static PyObject *py_set_dumpable(PyObject *Py_UNUSED(module), PyObject *args)
{
    int dumpable;
    if (!PyArg_ParseTuple(args, "p:set_dumpable", &dumpable))
        return NULL;
    if (prctl(PR_SET_DUMPABLE, (unsigned long)dumpable, 0UL, 0UL, 0UL) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyObject *py_fstatfs_type(PyObject *Py_UNUSED(module), PyObject *args)
{
    int fd, result;
    struct statfs found;
    if (!PyArg_ParseTuple(args, "i:fstatfs_type", &fd))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = fstatfs(fd, &found);
    Py_END_ALLOW_THREADS
    if (result < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyLong_FromUnsignedLong((uint32_t)found.f_type); /* a magic number of 32 bits, signed on some machines */
}

static PyObject *py_sync_file_range(PyObject *Py_UNUSED(module), PyObject *args)
{
    int fd, result;
    long long offset, length;
    unsigned int flags;
    if (!PyArg_ParseTuple(args, "iLLI:sync_file_range", &fd, &offset, &length, &flags))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = sync_file_range(fd, offset, length, flags);
    Py_END_ALLOW_THREADS
    if (result < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5; the same number on all machines but alpha */
#endif

static PyObject *py_cachestat(PyObject *Py_UNUSED(module), PyObject *args)
{
    int fd;
    if (!PyArg_ParseTuple(args, "i:cachestat", &fd))
        return NULL;
    struct { uint64_t offset, length; } range = {0, 0}; /* to the end of the file */
    struct { uint64_t cached, dirty, writeback, evicted, recently_evicted; } found;
    long result;
    Py_BEGIN_ALLOW_THREADS
    result = syscall(SYS_cachestat, fd, &range, &found, 0);
    Py_END_ALLOW_THREADS
    if (result < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    return Py_BuildValue("KKKK", (unsigned long long)found.cached, (unsigned long long)found.dirty,
                         (unsigned long long)found.writeback, (unsigned long long)found.evicted);
}

static PyObject *py_stat_fd(PyObject *Py_UNUSED(module), PyObject *args)
{
    int fd, result;
    if (!PyArg_ParseTuple(args, "i:stat_fd", &fd))
        return NULL;
    struct statx sx;
    Py_BEGIN_ALLOW_THREADS
    result = statx(fd, "", AT_EMPTY_PATH, STATX_MASK_USED, &sx);
    Py_END_ALLOW_THREADS
    if (result < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    struct packed_attributes packed;
    pack(&sx, &packed);
    return PyBytes_FromStringAndSize((const char *)&packed, sizeof packed);
}

/* Result for one name: its packed attributes, or its errno. */
struct outcome {
    const char *name;
    int error;
    struct packed_attributes attributes;
};

/* Calls statx(2) for every name of a tuple of bytes, which the caller keeps alive. Returns NULL with an exception. */
static struct outcome *stat_all(int dirfd, PyObject *names)
{
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    struct outcome *outcomes = PyMem_Calloc((size_t)count + 1, sizeof *outcomes);
    if (outcomes == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        char *name;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(names, i), &name, &length) < 0)
            goto failed;
        if ((size_t)length != strlen(name)) {
            PyErr_SetString(PyExc_ValueError, "embedded null byte");
            goto failed;
        }
        outcomes[i].name = name;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        struct statx sx;
        if (statx(dirfd, outcomes[i].name, AT_SYMLINK_NOFOLLOW, STATX_MASK_USED, &sx) < 0)
            outcomes[i].error = errno;
        else if (sx.stx_attributes & STATX_ATTR_MOUNT_ROOT)
            outcomes[i].error = EXDEV; /* something is mounted over the name: not the disk's own file */
        else
            pack(&sx, &outcomes[i].attributes);
    }
    Py_END_ALLOW_THREADS
    return outcomes;
failed:
    PyMem_Free(outcomes);
    return NULL;
}

static PyObject *to_object(const struct outcome *outcome)
{
    if (outcome->error)
        return PyLong_FromLong(outcome->error);
    return PyBytes_FromStringAndSize((const char *)&outcome->attributes, sizeof outcome->attributes);
}

static PyObject *py_stat_names(PyObject *Py_UNUSED(module), PyObject *args)
{
    int dirfd;
    PyObject *names;
    if (!PyArg_ParseTuple(args, "iO:stat_names", &dirfd, &names))
        return NULL;
    /* A tuple of our own keeps every name's buffer alive while the GIL is released. */
    PyObject *held = PySequence_Tuple(names);
    if (held == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(held);
    PyObject *result = NULL;
    struct outcome *outcomes = stat_all(dirfd, held);
    if (outcomes == NULL)
        goto done;
    result = PyList_New(count);
    for (Py_ssize_t i = 0; result != NULL && i < count; i++) {
        PyObject *item = to_object(&outcomes[i]);
        if (item == NULL)
            Py_CLEAR(result);
        else
            PyList_SET_ITEM(result, i, item);
    }
done:
    PyMem_Free(outcomes);
    Py_DECREF(held);
    return result;
}

static int is_as_known(const struct outcome *outcome, PyObject *known)
{
    return !outcome->error && PyBytes_Check(known)
        && PyBytes_GET_SIZE(known) == (Py_ssize_t)sizeof outcome->attributes
        && memcmp(PyBytes_AS_STRING(known), &outcome->attributes, sizeof outcome->attributes) == 0;
}

static PyObject *py_stat_changes(PyObject *Py_UNUSED(module), PyObject *args)
{
    int dirfd;
    PyObject *names, *known;
    if (!PyArg_ParseTuple(args, "iOO:stat_changes", &dirfd, &names, &known))
        return NULL;
    PyObject *result = NULL, *held_known = NULL;
    struct outcome *outcomes = NULL;
    PyObject *held = PySequence_Tuple(names);
    if (held == NULL || (held_known = PySequence_Tuple(known)) == NULL)
        goto done;
    Py_ssize_t count = PyTuple_GET_SIZE(held);
    if (count != PyTuple_GET_SIZE(held_known)) {
        PyErr_SetString(PyExc_ValueError, "as many known records as names are needed");
        goto done;
    }
    if ((outcomes = stat_all(dirfd, held)) == NULL)
        goto done;
    result = PyList_New(0);
    for (Py_ssize_t i = 0; result != NULL && i < count; i++) {
        if (is_as_known(&outcomes[i], PyTuple_GET_ITEM(held_known, i)))
            continue;
        PyObject *item = to_object(&outcomes[i]);
        PyObject *pair = item == NULL ? NULL : Py_BuildValue("nN", i, item);
        if (pair == NULL || PyList_Append(result, pair) < 0)
            Py_CLEAR(result);
        Py_XDECREF(pair);
    }
done:
    PyMem_Free(outcomes);
    Py_XDECREF(held_known);
    Py_XDECREF(held);
    return result;
}

static PyMethodDef methods[] = {
    {"openat2", py_openat2, METH_VARARGS, "openat2(dirfd, path, flags, mode, resolve) -> fd"},
    {"fallocate", py_fallocate, METH_VARARGS, "fallocate(fd, mode, offset, length)"},
    {"mlockall", py_mlockall, METH_VARARGS, "mlockall(flags)"},
    {"umount2", py_umount2, METH_VARARGS, "umount2(path, flags)"},
    {"set_dumpable", py_set_dumpable, METH_VARARGS, "set_dumpable(dumpable)"},
    {"fstatfs_type", py_fstatfs_type, METH_VARARGS, "fstatfs_type(fd) -> magic number of the filesystem"},
    {"sync_file_range", py_sync_file_range, METH_VARARGS, "sync_file_range(fd, offset, length, flags)"},
    {"cachestat", py_cachestat, METH_VARARGS,
     "cachestat(fd) -> pages of the whole file (cached, dirty, in writeback, evicted)"},
    {"stat_fd", py_stat_fd, METH_VARARGS, "stat_fd(fd) -> packed attributes"},
    {"stat_names", py_stat_names, METH_VARARGS, "stat_names(dirfd, names) -> list of packed attributes or errno"},
    {"stat_changes", py_stat_changes, METH_VARARGS,
     "stat_changes(dirfd, names, known) -> list of (index, packed attributes or errno), where not as known"},
    {NULL, NULL, 0, NULL},
};

static int add_constants(PyObject *module)
{
    static const struct { const char *name; long value; } constants[] = {
        {"RESOLVE_BENEATH", RESOLVE_BENEATH},
        {"RESOLVE_NO_SYMLINKS", RESOLVE_NO_SYMLINKS},
        {"RESOLVE_NO_MAGICLINKS", RESOLVE_NO_MAGICLINKS},
        {"RESOLVE_NO_XDEV", RESOLVE_NO_XDEV},
        {"FALLOC_FL_KEEP_SIZE", FALLOC_FL_KEEP_SIZE},
        {"FALLOC_FL_PUNCH_HOLE", FALLOC_FL_PUNCH_HOLE},
        {"MCL_CURRENT", MCL_CURRENT},
        {"MCL_FUTURE", MCL_FUTURE},
        {"MCL_ONFAULT", MCL_ONFAULT},
        {"MNT_DETACH", MNT_DETACH},
        {"SYNC_FILE_RANGE_WAIT_BEFORE", SYNC_FILE_RANGE_WAIT_BEFORE},
        {"UMOUNT_NOFOLLOW", UMOUNT_NOFOLLOW},
        {"PACKED_SIZE", sizeof(struct packed_attributes)},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_constants},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_syscalls", .m_size = 0, .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__syscalls(void)
{
    return PyModuleDef_Init(&definition);
}
