/*
 * What pyfuse3 and libfuse 3.14 lack: passthrough (Linux 6.9), and a session that continues with the descriptor of a
 * dead daemon. No policy and no paths in here; commitlogfs.fusefs.kernel.session is the Python side.
 *
 * The module is loaded with RTLD_GLOBAL before pyfuse3, so that pyfuse3's call of fuse_session_mount comes here. The
 * session then reads and writes through libfuse's public custom-I/O hooks, which see every request and every reply:
 *
 *   INIT request   kept for later daemons; libfuse sees it without the features that it must not request
 *   INIT reply     gets the flags that libfuse does not know; kept, too. What concerns the kernel alone is added after
 *                  that. A later daemon has libfuse answer the kept request again, but sends nothing: what was kept
 *                  holds for the whole life of the mount, also if this version would reply otherwise.
 *   OPEN, CREATE   the reply for an inode that is bound to a backing id has the kernel use the backing file itself
 *
 * Wire structs: include/uapi/linux/fuse.h of Linux 6.18, protocol 7.45 (Debian 12's headers end at 7.36).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <search.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

/* --- the wire ------------------------------------------------------------------------------------------------ */

struct in_header {
    uint32_t len, opcode;
    uint64_t unique, nodeid;
    uint32_t uid, gid, pid;
    uint16_t total_extlen, padding;
};
struct out_header {
    uint32_t len;
    int32_t error;
    uint64_t unique;
};
struct init_in {
    uint32_t major, minor, max_readahead, flags, flags2, unused[11];
};
struct init_out {
    uint32_t major, minor, max_readahead, flags;
    uint16_t max_background, congestion_threshold;
    uint32_t max_write, time_gran;
    uint16_t max_pages, map_alignment;
    uint32_t flags2, max_stack_depth, unused[6];
};
struct open_out {
    uint64_t fh;
    uint32_t open_flags;
    int32_t backing_id;
};
struct entry_out {
    unsigned char fields[128];
};
struct backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
_Static_assert(sizeof(struct in_header) == 40, "fuse_in_header");
_Static_assert(sizeof(struct out_header) == 16, "fuse_out_header");
_Static_assert(sizeof(struct init_in) == 64, "fuse_init_in");
_Static_assert(sizeof(struct init_out) == 64, "fuse_init_out");
_Static_assert(offsetof(struct init_out, flags) == 12 && offsetof(struct init_out, flags2) == 32, "fuse_init_out");
_Static_assert(sizeof(struct open_out) == 16, "fuse_open_out");
_Static_assert(sizeof(struct backing_map) == 16, "fuse_backing_map");

#define IOC_BACKING_OPEN _IOW(229, 1, struct backing_map)
#define IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)

enum { OP_OPEN = 14, OP_INIT = 26, OP_CREATE = 35, NOTIFY_RESEND = 7 };

#define RESENT_BIT (UINT64_C(1) << 63)
/* INIT flags; those of flags2 count from bit 32 */
#define AUTO_INVAL_DATA (UINT64_C(1) << 12)
#define PARALLEL_DIROPS (UINT64_C(1) << 18)
#define HANDLE_KILLPRIV_V2 (UINT64_C(1) << 28)
#define INIT_EXT (UINT64_C(1) << 30)
#define PASSTHROUGH (UINT64_C(1) << 37)
#define HAS_RESEND (UINT64_C(1) << 39)
/* open flags */
#define FOPEN_KEPT_IN_PASSTHROUGH ((1u << 0) | (1u << 5) | (1u << 6)) /* DIRECT_IO, NOFLUSH, PARALLEL_DIRECT_WRITES */
#define FOPEN_PASSTHROUGH (1u << 7)

/*
 * Read-ahead, write-back and releases under way at once, for the whole mount. With the kernel's default of 12, readers
 * of one disk that hangs use it up and stop all disks. Less than the daemon takes at once (MAX_TASKS in
 * commitlogfs.fusefs.connection), so that other requests are always taken. From the threshold on, the kernel leaves
 * out what nobody waits for: three quarters, as by default.
 */
enum { MAX_BACKGROUND = 512, CONGESTION_THRESHOLD = 384 };

static const int INIT_TIMEOUT_MS = 10000;
#define INIT_ROOM ((size_t)(1 << 20) + 8192) /* the kernel requires room for a whole write, whatever comes */

/* --- the one session of this process (pyfuse3 has no more than one) ------------------------------------------- */

struct bytes {
    unsigned char *data;
    size_t size;
};

struct binding { /* a node of the tree of bound inodes */
    uint64_t inode;
    int32_t backing_id;
};

struct pending { /* a request whose reply is to be changed */
    uint64_t unique;
    uint32_t opcode;
};

static struct {
    pthread_mutex_t lock;    /* over everything below: libfuse may reply from any thread */
    bool prepared, attached; /* the next fuse_session_mount is ours; it has been */
    int held_fd;             /* descriptor to continue with, or -1 */
    bool want_passthrough;
    int fd;
    struct bytes init_request, init_reply;
    bool replaying;
    bool answered; /* libfuse has answered INIT */
    void *bindings; /* tsearch(3) */
    struct pending *pending;
    size_t pending_count, pending_room;
    uint64_t taken; /* requests, and whether the last one was sent again: used only by the thread that reads them */
    bool last_was_resent;
    const char *failure; /* why fuse_session_mount failed, as text */
} session = {.lock = PTHREAD_MUTEX_INITIALIZER, .held_fd = -1, .fd = -1};

static int compare_bindings(const void *one, const void *other)
{
    const uint64_t a = ((const struct binding *)one)->inode, b = ((const struct binding *)other)->inode;
    return a < b ? -1 : a > b;
}

static int32_t bound_to(uint64_t inode)
{
    const struct binding key = {.inode = inode};
    struct binding *const *found = tfind(&key, &session.bindings, compare_bindings);
    return found == NULL ? 0 : (*found)->backing_id;
}

/* False without memory: the reply is then sent unchanged. That is a failed INIT, or a plain open. */
static bool expect_reply(uint64_t unique, uint32_t opcode)
{
    if (session.pending_count == session.pending_room) {
        const size_t room = session.pending_room ? 2 * session.pending_room : 64;
        struct pending *grown = realloc(session.pending, room * sizeof *grown);
        if (grown == NULL)
            return false;
        session.pending = grown;
        session.pending_room = room;
    }
    session.pending[session.pending_count++] = (struct pending){unique, opcode};
    return true;
}

/* The opcode of the request that is answered, if its reply is to be changed, else 0. */
static uint32_t take_expected(uint64_t unique)
{
    for (size_t i = 0; i < session.pending_count; i++)
        if (session.pending[i].unique == unique) {
            const uint32_t opcode = session.pending[i].opcode;
            session.pending[i] = session.pending[--session.pending_count];
            return opcode;
        }
    return 0;
}

static bool keep(struct bytes *where, const void *data, size_t size)
{
    unsigned char *copy = malloc(size);
    if (copy == NULL)
        return false;
    memcpy(copy, data, size);
    free(where->data);
    *where = (struct bytes){copy, size};
    return true;
}

/* --- requests -------------------------------------------------------------------------------------------------- */

/* Of a reply as the kernel gets it. Kernels before 7.23 take a short one, without flags2. */
static uint64_t flags_of_reply(const void *reply, size_t size)
{
    const struct init_out *out = reply;
    uint64_t flags = 0;
    if (size >= offsetof(struct init_out, max_background))
        flags = out->flags;
    if (size >= offsetof(struct init_out, max_stack_depth))
        flags |= (uint64_t)out->flags2 << 32;
    return flags;
}

static uint64_t flags_of_init(const void *request, size_t size)
{
    const struct init_in *in = (const void *)((const char *)request + sizeof(struct in_header));
    const size_t arguments = size - sizeof(struct in_header);
    uint64_t flags = 0;
    if (arguments >= offsetof(struct init_in, flags2))
        flags = in->flags;
    if ((flags & INIT_EXT) && arguments >= offsetof(struct init_in, unused))
        flags |= (uint64_t)in->flags2 << 32;
    return flags;
}

/* libfuse requests every feature that it knows and is offered. The kernel must not drop cached pages because a time
 * has changed: segments change only through the mount, and a stat of a file would wait for its locked pages. */
static void hide_from_libfuse(void *request, size_t size)
{
    struct init_in *in = (void *)((char *)request + sizeof(struct in_header));
    if (size >= sizeof(struct in_header) + offsetof(struct init_in, flags2))
        in->flags &= ~(uint32_t)AUTO_INVAL_DATA;
}

/*
 * The kernel copies a request into the reader's pages. If one of them has to be made first and the reader is being
 * killed, the kernel gives up and answers the request itself with EIO: a write that no successor would ever see.
 */
static void have_pages(void *buffer, size_t room)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    volatile char *bytes = buffer;
    for (size_t at = 0; at < room; at += page)
        bytes[at] = 0;
    if (room > 0)
        bytes[room - 1] = 0;
}

static ssize_t read_request(int fd, void *buffer, size_t room, void *userdata)
{
    (void)userdata;
    have_pages(buffer, room);
    const ssize_t size = read(fd, buffer, room);
    if (size < 0) {
        if (errno == EAGAIN) /* the request was withdrawn; pyfuse3 tries again on EINTR */
            errno = EINTR;
        return size;
    }
    if ((size_t)size < sizeof(struct in_header))
        return size;
    const struct in_header *header = buffer;
    pthread_mutex_lock(&session.lock);
    session.taken++;
    session.last_was_resent = (header->unique & RESENT_BIT) != 0;
    if (header->opcode == OP_OPEN || header->opcode == OP_CREATE)
        (void)expect_reply(header->unique, header->opcode);
    pthread_mutex_unlock(&session.lock);
    return size;
}

/* --- replies --------------------------------------------------------------------------------------------------- */

/* What later daemons have to know. */
static void change_init_reply(struct iovec *arguments)
{
    struct init_out *out = arguments->iov_base;
    if (arguments->iov_len < sizeof *out)
        return; /* a kernel that gets a short reply is too old to offer any of this */
    const uint64_t offered = flags_of_init(session.init_request.data, session.init_request.size);
    uint64_t wanted = HANDLE_KILLPRIV_V2 | HAS_RESEND;
    if (session.want_passthrough)
        wanted |= PASSTHROUGH;
    wanted &= offered;
    if (wanted >> 32)
        wanted |= INIT_EXT;
    out->flags |= (uint32_t)wanted;
    out->flags2 |= (uint32_t)(wanted >> 32);
    if (wanted & PASSTHROUGH)
        out->max_stack_depth = 1;
}

/* What concerns the kernel alone. It is not kept: versions that compare what was kept with their own reply have to
 * accept it. */
static void widen_init_reply(struct iovec *arguments)
{
    struct init_out *out = arguments->iov_base;
    if (arguments->iov_len < sizeof *out)
        return;
    const uint64_t offered = flags_of_init(session.init_request.data, session.init_request.size);
    out->flags |= (uint32_t)(PARALLEL_DIROPS & offered);
    out->max_background = MAX_BACKGROUND;
    out->congestion_threshold = CONGESTION_THRESHOLD;
}

/* False if libfuse reads smaller requests than the kernel sends on this mount. */
static bool accepts_kept_reply(const struct iovec *arguments)
{
    const struct init_out *own = arguments->iov_base, *kept = (const void *)session.init_reply.data;
    return arguments->iov_len >= sizeof *own && own->max_write >= kept->max_write;
}

static void take_init_reply(struct iovec *arguments)
{
    if (session.replaying) {
        session.answered = accepts_kept_reply(arguments);
        if (!session.answered)
            session.failure = "this libfuse reads smaller requests than the kernel sends on this mount";
        return;
    }
    change_init_reply(arguments);
    session.answered = keep(&session.init_reply, arguments->iov_base, arguments->iov_len);
    widen_init_reply(arguments);
}

static void change_open_reply(uint32_t opcode, struct iovec *arguments)
{
    const size_t before = opcode == OP_CREATE ? sizeof(struct entry_out) : 0;
    if (arguments->iov_len != before + sizeof(struct open_out))
        return;
    struct open_out *out = (void *)((char *)arguments->iov_base + before);
    const int32_t id = bound_to(out->fh);
    if (id > 0) {
        out->open_flags = (out->open_flags & FOPEN_KEPT_IN_PASSTHROUGH) | FOPEN_PASSTHROUGH;
        out->backing_id = id;
    }
}

static ssize_t total_length(const struct iovec *parts, int count)
{
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += parts[i].iov_len;
    return (ssize_t)total;
}

static ssize_t write_reply(int fd, struct iovec *parts, int count, void *userdata)
{
    (void)userdata;
    const struct out_header *header = parts[0].iov_base;
    bool send = true;
    if (parts[0].iov_len == sizeof *header && header->unique != 0) {
        pthread_mutex_lock(&session.lock);
        const uint32_t opcode = take_expected(header->unique);
        if (header->error == 0 && count == 2) {
            if (opcode == OP_INIT)
                take_init_reply(&parts[1]);
            else if (opcode != 0)
                change_open_reply(opcode, &parts[1]);
        }
        send = !(opcode == OP_INIT && session.replaying);
        pthread_mutex_unlock(&session.lock);
    }
    return send ? writev(fd, parts, count) : total_length(parts, count);
}

/* --- the session ------------------------------------------------------------------------------------------------ */

/* The INIT request of a mount that was just made: the kernel has queued it already. */
static bool read_init(int fd, void *buffer, size_t room)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (poll(&wait, 1, INIT_TIMEOUT_MS) != 1)
        return false;
    const ssize_t size = read(fd, buffer, room);
    return size >= (ssize_t)(sizeof(struct in_header) + offsetof(struct init_in, flags2)) &&
           ((struct in_header *)buffer)->opcode == OP_INIT && keep(&session.init_request, buffer, (size_t)size);
}

/* Has libfuse negotiate at once, with the kernel or with the request that the former daemon got. */
static bool negotiate(struct fuse_session *se)
{
    const size_t room = INIT_ROOM;
    unsigned char *buffer = malloc(room);
    bool done = false;
    if (buffer != NULL) {
        if (session.replaying)
            memcpy(buffer, session.init_request.data, session.init_request.size);
        if (session.replaying || read_init(session.fd, buffer, room)) {
            const size_t size = session.init_request.size;
            expect_reply(((struct in_header *)(void *)buffer)->unique, OP_INIT);
            hide_from_libfuse(buffer, size);
            const struct fuse_buf request = {.size = size, .mem = buffer};
            fuse_session_process_buf(se, &request);
            done = session.answered;
        }
    }
    free(buffer);
    session.replaying = false;
    return done;
}

/* Replaces the function of libfuse. The GIL is held: pyfuse3 calls it from init(). */
__attribute__((visibility("default"))) int fuse_session_mount(struct fuse_session *se, const char *mountpoint)
{
    int (*mount)(struct fuse_session *, const char *) = NULL;
    *(void **)&mount = dlsym(RTLD_NEXT, "fuse_session_mount");
    if (mount == NULL)
        return -1;
    if (!session.prepared)
        return mount(se, mountpoint);
    session.prepared = false;
    const bool fresh = session.held_fd < 0;
    if (fresh && mount(se, mountpoint) != 0) {
        session.failure = "the system refuses to mount";
        return -1;
    }
    session.fd = fresh ? fuse_session_fd(se) : session.held_fd;
    const struct fuse_custom_io io = {.read = read_request, .writev = write_reply};
    const int flags = fcntl(session.fd, F_GETFL);
    if (flags < 0 || fcntl(session.fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fuse_session_custom_io(se, &io, session.fd) != 0)
        session.failure = "libfuse refuses custom I/O";
    else if (!negotiate(se)) {
        if (session.failure == NULL)
            session.failure = "the kernel and libfuse do not agree on a protocol";
    } else {
        session.attached = true;
        return 0;
    }
    if (fresh)
        fuse_session_unmount(se);
    return -1;
}

/* --- for Python -------------------------------------------------------------------------------------------------- */

static PyObject *prepare(PyObject *module, PyObject *args)
{
    (void)module;
    int held_fd, want_passthrough;
    Py_buffer init, reply;
    if (!PyArg_ParseTuple(args, "iy*y*p:prepare", &held_fd, &init, &reply, &want_passthrough))
        return NULL;
    PyObject *result = NULL;
    if (session.attached || session.prepared)
        PyErr_SetString(PyExc_RuntimeError, "this process has a session already");
    else if ((held_fd >= 0) != (init.len > 0) || (held_fd >= 0) != (reply.len > 0))
        PyErr_SetString(PyExc_ValueError, "a held descriptor, its INIT request and its reply belong together");
    else if (held_fd >= 0 && ((size_t)init.len < sizeof(struct in_header) + offsetof(struct init_in, flags2) ||
                              (size_t)init.len > INIT_ROOM ||
                              ((const struct in_header *)init.buf)->opcode != OP_INIT))
        PyErr_SetString(PyExc_ValueError, "not an INIT request");
    else if (held_fd >= 0 && (size_t)reply.len < sizeof(struct init_out))
        PyErr_SetString(PyExc_ValueError, "not an INIT reply");
    else if (held_fd >= 0 && (!keep(&session.init_request, init.buf, (size_t)init.len) ||
                              !keep(&session.init_reply, reply.buf, (size_t)reply.len)))
        PyErr_NoMemory();
    else {
        session.held_fd = held_fd;
        session.replaying = held_fd >= 0;
        session.want_passthrough = want_passthrough != 0;
        session.prepared = true;
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&init);
    PyBuffer_Release(&reply);
    return result;
}

static PyObject *as_bytes(const struct bytes *kept)
{
    return PyBytes_FromStringAndSize((const char *)kept->data, (Py_ssize_t)kept->size);
}

static PyObject *negotiated(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    if (!session.attached)
        return Py_NewRef(Py_None);
    const unsigned long long flags = flags_of_reply(session.init_reply.data, session.init_reply.size);
    return Py_BuildValue("(iNNK)", session.fd, as_bytes(&session.init_request), as_bytes(&session.init_reply), flags);
}

static PyObject *init_reply_flags(PyObject *module, PyObject *arg)
{
    (void)module;
    struct init_out reply;
    Py_buffer given;
    if (PyObject_GetBuffer(arg, &given, PyBUF_SIMPLE) < 0)
        return NULL;
    const size_t size = (size_t)given.len < sizeof reply ? (size_t)given.len : sizeof reply;
    memcpy(&reply, given.buf, size); /* aligned */
    PyBuffer_Release(&given);
    return PyLong_FromUnsignedLongLong(flags_of_reply(&reply, size));
}

static PyObject *failure(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    return PyUnicode_FromString(session.failure == NULL ? "" : session.failure);
}

static PyObject *open_backing(PyObject *module, PyObject *arg)
{
    (void)module;
    const int fd = PyObject_AsFileDescriptor(arg);
    if (fd < 0)
        return NULL;
    const struct backing_map map = {.fd = fd};
    const int id = ioctl(session.fd, IOC_BACKING_OPEN, &map);
    if (id < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyLong_FromLong(id);
}

static PyObject *close_backing(PyObject *module, PyObject *arg)
{
    (void)module;
    const unsigned long given = PyLong_AsUnsignedLong(arg);
    if (given == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    if (given > INT32_MAX)
        return PyErr_Format(PyExc_OverflowError, "not a backing id: %lu", given);
    const uint32_t id = (uint32_t)given;
    if (ioctl(session.fd, IOC_BACKING_CLOSE, &id) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyObject *bind_inode(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long long inode;
    int id;
    if (!PyArg_ParseTuple(args, "Ki:bind", &inode, &id))
        return NULL;
    struct binding *node = malloc(sizeof *node);
    if (node == NULL)
        return PyErr_NoMemory();
    *node = (struct binding){inode, id};
    pthread_mutex_lock(&session.lock);
    struct binding **found = tsearch(node, &session.bindings, compare_bindings);
    if (found != NULL && *found != node)
        (*found)->backing_id = id;
    pthread_mutex_unlock(&session.lock);
    if (found == NULL || *found != node)
        free(node);
    return found == NULL ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

static PyObject *unbind_inode(PyObject *module, PyObject *arg)
{
    (void)module;
    const unsigned long long inode = PyLong_AsUnsignedLongLong(arg);
    if (inode == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    const struct binding key = {.inode = inode};
    pthread_mutex_lock(&session.lock);
    struct binding **found = tfind(&key, &session.bindings, compare_bindings);
    struct binding *node = found == NULL ? NULL : *found;
    if (node != NULL)
        tdelete(&key, &session.bindings, compare_bindings);
    pthread_mutex_unlock(&session.lock);
    free(node);
    Py_RETURN_NONE;
}

static PyObject *resend(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    const struct out_header notification = {.len = sizeof notification, .error = NOTIFY_RESEND};
    if (write(session.fd, &notification, sizeof notification) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyObject *is_resent(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    return PyBool_FromLong(session.last_was_resent);
}

static PyObject *taken(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    return PyLong_FromUnsignedLongLong(session.taken);
}

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_VARARGS, NULL},
    {"negotiated", negotiated, METH_NOARGS, NULL},
    {"init_reply_flags", init_reply_flags, METH_O, NULL},
    {"failure", failure, METH_NOARGS, NULL},
    {"open_backing", open_backing, METH_O, NULL},
    {"close_backing", close_backing, METH_O, NULL},
    {"bind", bind_inode, METH_VARARGS, NULL},
    {"unbind", unbind_inode, METH_O, NULL},
    {"resend", resend, METH_NOARGS, NULL},
    {"is_resent", is_resent, METH_NOARGS, NULL},
    {"taken", taken, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int check_abi(PyObject *module)
{
    if (fuse_version() < 314) {
        PyErr_Format(PyExc_ImportError, "libfuse %s: needs 3.14 or newer", fuse_pkgversion());
        return -1;
    }
    if (PyModule_AddIntConstant(module, "PASSTHROUGH", (long)PASSTHROUGH) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "HAS_RESEND", (long)HAS_RESEND);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, check_abi},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "commitlogfs.fusefs.kernel._passthrough",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__passthrough(void);
PyMODINIT_FUNC PyInit__passthrough(void)
{
    return PyModuleDef_Init(&definition);
}
