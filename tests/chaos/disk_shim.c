/* Preloaded into a broker: syncs of files below a directory hang or fail while a control file says so.
 *
 * PENSTOCK_SHIM_PATH     the directory
 * PENSTOCK_SHIM_CONTROL  a file that begins with w (well), h (syncs hang) or f (syncs fail with EIO)
 *
 * Covered: fsync, fdatasync, and the same by Linux' asynchronous I/O (io_submit, io_getevents by syscall(2)).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HELD_US 20000
#define MOST_FAKES 1024

static long (*real_syscall)(long, ...);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

static struct { aio_context_t context; struct io_event event; } fakes[MOST_FAKES];
static int fake_count;
static pthread_mutex_t fakes_lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void find_real(void) {
    real_syscall = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    real_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
}

static char mode(void) {
    const char *path = getenv("PENSTOCK_SHIM_CONTROL");
    char word = 'w';
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        if (read(fd, &word, 1) != 1)
            word = 'w';
        close(fd);
    }
    return word;
}

static int is_ours(int fd) {
    const char *below = getenv("PENSTOCK_SHIM_PATH");
    char name[64], target[4096];
    if (!below)
        return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, target, sizeof target - 1);
    if (length < 0)
        return 0;
    target[length] = 0;
    return strncmp(target, below, strlen(below)) == 0;
}

/* Waits while syncs hang; whether they fail then. */
static int fails_after_all(void) {
    char now;
    while ((now = mode()) == 'h')
        usleep(HELD_US);
    return now == 'f';
}

static int sync_by(int (*real)(int), int fd) {
    if (is_ours(fd) && fails_after_all()) {
        errno = EIO;
        return -1;
    }
    return real(fd);
}

int fsync(int fd) { return sync_by(real_fsync, fd); }
int fdatasync(int fd) { return sync_by(real_fdatasync, fd); }

/* The kernel's answer to a sync that it never saw. */
static void answer_eio(aio_context_t context, const struct iocb *control) {
    uint64_t one = 1;
    pthread_mutex_lock(&fakes_lock);
    if (fake_count < MOST_FAKES) {
        fakes[fake_count].context = context;
        fakes[fake_count].event.data = control->aio_data;
        fakes[fake_count].event.res = -EIO;
        fake_count++;
    }
    pthread_mutex_unlock(&fakes_lock);
    if (control->aio_flags & IOCB_FLAG_RESFD && write(control->aio_resfd, &one, sizeof one) < 0)
        perror("disk_shim: eventfd");
}

struct held { aio_context_t context; struct iocb control; };

static void *hold(void *argument) {
    struct held *held = argument;
    struct iocb *controls[1] = {&held->control};
    if (fails_after_all() || real_syscall(SYS_io_submit, held->context, 1L, controls) != 1)
        answer_eio(held->context, &held->control);
    free(held);
    return NULL;
}

static int is_sync(const struct iocb *control) {
    return control->aio_lio_opcode == IOCB_CMD_FDSYNC || control->aio_lio_opcode == IOCB_CMD_FSYNC;
}

static long submit(aio_context_t context, long count, struct iocb **controls) {
    char now = 'w';
    if (count == 1 && is_sync(controls[0]) && is_ours((int)controls[0]->aio_fildes))
        now = mode();
    if (now == 'f') {
        answer_eio(context, controls[0]);
        return 1;
    }
    if (now == 'h') {
        struct held *held = malloc(sizeof *held);
        pthread_t thread;
        held->context = context;
        held->control = *controls[0];
        if (pthread_create(&thread, NULL, hold, held) == 0) {
            pthread_detach(thread);
            return 1;
        }
        free(held);
    }
    return real_syscall(SYS_io_submit, context, count, controls);
}

static long get_events(aio_context_t context, long least, long most, struct io_event *events, void *timeout) {
    long found = 0;
    pthread_mutex_lock(&fakes_lock);
    for (int at = 0; at < fake_count && found < most;) {
        if (fakes[at].context == context) {
            events[found++] = fakes[at].event;
            fakes[at] = fakes[--fake_count];
        } else {
            at++;
        }
    }
    pthread_mutex_unlock(&fakes_lock);
    if (found == most)
        return found;
    long more = real_syscall(SYS_io_getevents, context, found ? 0L : least, most - found, events + found, timeout);
    return more < 0 && !found ? more : found + (more > 0 ? more : 0);
}

long syscall(long number, ...) {
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_io_submit)
        return submit((aio_context_t)a[0], a[1], (struct iocb **)a[2]);
    if (number == SYS_io_getevents)
        return get_events((aio_context_t)a[0], a[1], a[2], (struct io_event *)a[3], (void *)a[4]);
    return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
