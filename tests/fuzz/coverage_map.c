/* Joins libFuzzer, which atheris brings, to code that GCC compiled with sanitizers and -fsanitize-coverage=trace-pc.

GCC's code calls a function at each edge. libFuzzer reads a table of counters, which only Clang's code fills. Therefore
the function for an edge counts in a slot of a table, which the address of the edge selects.

The library of AddressSanitizer has empty functions with the names below. LD_PRELOAD loads this library first, so that
its functions are called instead, which pass the calls to libFuzzer. Each of these calls is the last of its function, so
GCC compiles it to a jump, and libFuzzer sees the address of the comparison.
*/
#include <dlfcn.h>
#include <stdint.h>

#define SLOTS 65536

static uint8_t counters[SLOTS];

static void (*counters_init)(uint8_t *, uint8_t *);
static void (*pcs_init)(const uintptr_t *, const uintptr_t *);
static void (*trace_cmp8)(uint64_t, uint64_t);
static void (*trace_const_cmp8)(uint64_t, uint64_t);

/* Return 0, or -1 if `path` is not a library with libFuzzer. */
int begin_coverage(const char *path)
{
    void *fuzzer = dlopen(path, RTLD_NOW);
    if (!fuzzer)
        return -1;
    counters_init = dlsym(fuzzer, "__sanitizer_cov_8bit_counters_init");
    pcs_init = dlsym(fuzzer, "__sanitizer_cov_pcs_init");
    trace_cmp8 = dlsym(fuzzer, "__sanitizer_cov_trace_cmp8");
    trace_const_cmp8 = dlsym(fuzzer, "__sanitizer_cov_trace_const_cmp8");
    if (!counters_init || !pcs_init || !trace_cmp8 || !trace_const_cmp8)
        return -1;
    counters_init(counters, counters + SLOTS);
    return 0;
}

void __sanitizer_cov_trace_pc(void)
{
    uintptr_t edge = (uintptr_t)__builtin_return_address(0);
    counters[(edge ^ edge >> 16) % SLOTS]++;
}

void __sanitizer_cov_8bit_counters_init(uint8_t *begin, uint8_t *end)
{
    counters_init(begin, end);
}

void __sanitizer_cov_pcs_init(const uintptr_t *begin, const uintptr_t *end)
{
    pcs_init(begin, end);
}

void __sanitizer_cov_trace_cmp8(uint64_t left, uint64_t right)
{
    if (trace_cmp8)
        trace_cmp8(left, right);
}

void __sanitizer_cov_trace_const_cmp8(uint64_t left, uint64_t right)
{
    if (trace_const_cmp8)
        trace_const_cmp8(left, right);
}
