/* Counts times in buckets of growing width, 64 per power of two: percentiles are exact to 1.6 percent, in a fixed
 * amount of memory. */
#ifndef HISTOGRAM_H
#define HISTOGRAM_H

#include <stdint.h>

enum { STEPS_BITS = 6, STEPS = 1 << STEPS_BITS, BUCKETS = (64 - STEPS_BITS + 1) * STEPS };

struct histogram {
    uint64_t counts[BUCKETS];
    uint64_t total, max_ns;
};

void add_to_histogram(struct histogram *histogram, uint64_t ns);
uint64_t percentile_ns(const struct histogram *histogram, double share); /* 0 if it is empty */

#endif
