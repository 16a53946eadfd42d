# cython: language_level=3
"""Counts of times, for histograms with fixed bounds. A count takes no memory and some 20 instructions."""
from libc.stdint cimport int64_t


cdef extern from *:
    """
    #define KB_TIME_BOUNDS 18
    static const int64_t kb_time_bounds_us[KB_TIME_BOUNDS] = {
        50, 100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 2500000, 5000000,
        10000000, 30000000};
    """
    enum: TIME_BOUNDS "KB_TIME_BOUNDS"
    const int64_t *time_bounds_us "kb_time_bounds_us"


cdef struct TimeCounts:
    int64_t counts[19]          # the times up to each bound and above the bound before it; the last is above all bounds
    int64_t sum_us


cdef inline void count_time(TimeCounts *times, int64_t time_us) noexcept nogil:
    cdef int i = 0
    while i < TIME_BOUNDS and time_us > time_bounds_us[i]:
        i += 1
    times.counts[i] += 1
    times.sum_us += time_us


cdef inline tuple described_times(const TimeCounts *times):
    """Return (bounds in seconds, counts, sum in seconds)."""
    return (tuple([time_bounds_us[i] / 1e6 for i in range(TIME_BOUNDS)]),
            [times.counts[i] for i in range(TIME_BOUNDS + 1)], times.sum_us / 1e6)
