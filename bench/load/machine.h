/* The clocks of this machine: what the broker used of its processors, what others did. */
#ifndef MACHINE_H
#define MACHINE_H

struct clocks {
    double wall_s, own_s, broker_s, busy_s, steal_s; /* busy and steal over all processors */
};

struct clocks read_clocks(int broker_pid); /* 0: no broker to watch */

#endif
