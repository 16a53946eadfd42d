#include "machine.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "wire.h"

static double clock_s(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double process_s(int pid) {
    clockid_t clock;
    if (clock_getcpuclockid(pid, &clock))
        die("process %d does not exist", pid);
    return clock_s(clock);
}

struct clocks read_clocks(int broker_pid) {
    unsigned long long user, nice, system, idle, io_wait, irq, soft_irq, steal;
    FILE *file = fopen("/proc/stat", "r");
    if (!file || fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &io_wait, &irq,
                        &soft_irq, &steal) != 8)
        die("/proc/stat has an unknown format");
    fclose(file);
    double ticks_a_second = (double)sysconf(_SC_CLK_TCK);
    return (struct clocks){
        .wall_s = clock_s(CLOCK_MONOTONIC),
        .own_s = clock_s(CLOCK_PROCESS_CPUTIME_ID),
        .broker_s = broker_pid ? process_s(broker_pid) : 0,
        .busy_s = (double)(user + nice + system + irq + soft_irq) / ticks_a_second,
        .steal_s = (double)steal / ticks_a_second,
    };
}
