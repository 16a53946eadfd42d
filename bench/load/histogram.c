#include "histogram.h"

/* Returns the bucket of a time: below 64 ns the time itself; above, its leading bit and the next six. */
static int bucket_of(uint64_t ns) {
    if (ns < STEPS)
        return (int)ns;
    int shift = 63 - __builtin_clzll(ns) - STEPS_BITS;
    return (shift + 1) * STEPS + (int)(ns >> shift) - STEPS;
}

static uint64_t middle_of(int bucket) {
    if (bucket < STEPS)
        return (uint64_t)bucket;
    int shift = bucket / STEPS - 1;
    uint64_t least = (uint64_t)(bucket % STEPS + STEPS) << shift;
    return least + (1ULL << shift) / 2;
}

void add_to_histogram(struct histogram *histogram, uint64_t ns) {
    histogram->counts[bucket_of(ns)]++;
    histogram->total++;
    if (ns > histogram->max_ns)
        histogram->max_ns = ns;
}

uint64_t percentile_ns(const struct histogram *histogram, double share) {
    uint64_t seen = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        seen += histogram->counts[bucket];
        if (seen && (double)seen >= share * (double)histogram->total) {
            uint64_t ns = middle_of(bucket);
            return ns < histogram->max_ns ? ns : histogram->max_ns;
        }
    }
    return 0;
}
