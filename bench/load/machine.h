/* The clocks of this machine: CPU time of the broker and of other processes. */
#ifndef MACHINE_H
#define MACHINE_H

struct clocks {
    double wall_s, own_s, broker_s, busy_s, steal_s; /* busy and steal over all processors */
};

struct clocks read_clocks(int broker_pid); /* 0: no broker to measure */

#endif
