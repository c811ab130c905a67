/* The KV block, the unit in which keys and values are kept, owned (model/kv/kv_pool.h), listed by views and summarised
 * (kernels/kernels.h). Its size has this one name everywhere. Header only; common subset of C and CUDA C++. */
#ifndef GR_COMMON_RULES_KV_BLOCK_H
#define GR_COMMON_RULES_KV_BLOCK_H

/* Tokens of a block, whose keys lie in as many lanes. Layouts of memory and orders of sums rest on it: another size
 * would give other bits, so it is no knob. */
#define GR_KV_BLOCK_TOKENS 16

/* Bytes of a salt, its NUL included: sessions share KV only where theirs are equal. */
#define GR_KV_SALT_MAX 65

#endif
