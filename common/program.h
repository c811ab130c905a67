/* Programs that lie beside this one in the build or install folder. */
#ifndef GR_COMMON_PROGRAM_H
#define GR_COMMON_PROGRAM_H

/* Path of `name` ("graft-target") in the folder of the running program; static buffer, valid until the next call. */
const char *gr_program_sibling(const char *name);

#endif
