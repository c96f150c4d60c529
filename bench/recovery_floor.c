/* The least that a takeover can take on this machine: one process waits for the end of another and answers.
 *
 *     recovery_floor NICE
 *
 * Starts a child that sleeps, prints its pid, waits on its pidfd, prints "ok" as soon as it has ended, and begins
 * again. With the priority, the session and the locked memory that the keeper and its daemons have. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

static void raise_priority(const char *nice_value)
{
    if (setpriority(PRIO_PROCESS, 0, atoi(nice_value)) < 0)
        perror("recovery_floor: setpriority");
    int fd = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (write(fd, nice_value, strlen(nice_value)) < 0)
            perror("recovery_floor: autogroup");
        close(fd);
    }
    if (mlockall(MCL_CURRENT) < 0)
        perror("recovery_floor: mlockall");
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    raise_priority(argv[1]);
    for (;;) {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                pause();
        }
        struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, child, 0), .events = POLLIN};
        if (ended.fd < 0)
            return 1;
        printf("%d\n", (int)child);
        if (fflush(stdout) != 0 || poll(&ended, 1, -1) != 1)
            return 1;
        puts("ok");
        if (fflush(stdout) != 0)
            return 1;
        waitpid(child, NULL, 0);
        close(ended.fd);
    }
}
