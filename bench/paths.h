/* Where the files are that benchmarks use by default: models, gates, texts. */
#ifndef GR_BENCH_PATHS_H
#define GR_BENCH_PATHS_H

#include "bench/options/options.h"

/* A path of the source tree, from wherever the program is called: as it is, if it is there; else beside the build
 * folder, else in the data folder of the installation that the program lies in, else in the folder that it was built
 * from; else as it is, for the error that follows. May hold `*' after its first folder. The text lives as long as the
 * process. */
const char *gr_bench_path(const char *relative);
/* The path of a TEXT option: what was given as it is, the default as above. */
const char *gr_bench_path_of(const struct gr_bench_options *o, enum gr_bench_option_id id);

/* The folder that --save names, or one in it, which may be there already. Logged: it cannot be made or written into. */
GR_NODISCARD enum gr_status gr_bench_make_folder(const char *path);

#endif
