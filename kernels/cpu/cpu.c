/* Run-time choice of the instruction set. */
#include "kernels/cpu/cpu.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

struct cpu_isa {
    const char *name;
    bool (*supported)(void);
    void (*fill)(struct gr_kernels *k);
};

#ifdef GR_CPU_X86
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

static bool has_c(void)
{
    return true;
}

/* Best first. */
static const struct cpu_isa isa_table[] = {
#ifdef GR_CPU_X86
    {"avx512", has_avx512, gr_kernels_fill_avx512},
    {"avx2", has_avx2, gr_kernels_fill_avx2},
#endif
    {"c", has_c, gr_kernels_fill_c},
};

enum gr_status gr_kernels_init_cpu(struct gr_kernels *k, const char *isa)
{
    isa = isa ? isa : getenv("GRAFT_CPU");
    bool any = !isa || !*isa;
    for (size_t i = 0; i < GR_ARRAY_LEN(isa_table); i++) {
        const struct cpu_isa *t = &isa_table[i];
        if ((any || strcmp(isa, t->name) == 0) && t->supported()) {
            t->fill(k);
            return GR_OK;
        }
    }
    log_error("this machine or build cannot run the kernels `%s' (known: avx512, avx2, c)", isa);
    return GR_EUNSUPPORTED;
}
