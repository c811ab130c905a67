/* Result codes of every function that can fail. 0 is success, positive is "not finished, call again",
 * negative is a failure that has already been logged once by whoever detected it.
 * Common subset of C and CUDA C++. */
#ifndef GR_COMMON_BASE_STATUS_H
#define GR_COMMON_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/*  name, value, text */
#define GR_STATUS_LIST(X)                                            \
    X(GR_OK, 0, "ok")                                                \
    X(GR_AGAIN, 1, "not finished, call again")                       \
    X(GR_EINVAL, -1, "invalid argument")                             \
    X(GR_ENOMEM, -2, "out of memory")                                \
    X(GR_EIO, -3, "input/output error")                              \
    X(GR_EFORMAT, -4, "malformed data")                              \
    X(GR_ELIMIT, -5, "a limit was exceeded")                         \
    X(GR_ENOTFOUND, -6, "not found")                                 \
    X(GR_ECLOSED, -7, "the peer closed the connection")              \
    X(GR_EPROTO, -8, "the peer broke the protocol")                  \
    X(GR_EAUTH, -9, "the peer does not hold the shared key")         \
    X(GR_EMISMATCH, -10, "the peers do not fit together")            \
    X(GR_EUNSUPPORTED, -11, "not supported by this build or device") \
    X(GR_ECUDA, -12, "CUDA error")                                   \
    X(GR_ECANCELED, -13, "canceled")                                 \
    X(GR_ETIMEDOUT, -14, "timed out")                                \
    X(GR_EDRAINING, -15, "it is to end: go elsewhere")

enum gr_status {
#define X(name, value, text) name = value,
    GR_STATUS_LIST(X)
#undef X
};

#define GR_NODISCARD __attribute__((warn_unused_result))

/* Static text of a status; never NULL. */
const char *gr_status_text(enum gr_status st);

/* Returns from the calling function on anything but GR_OK. */
#define GR_TRY(expr)                        \
    do {                                    \
        enum gr_status gr_try_st_ = (expr); \
        if (gr_try_st_ != GR_OK) {          \
            return gr_try_st_;              \
        }                                   \
    } while (0)

/* A programmer's error: always on, ends the process. Never used for what comes from outside. */
#define GR_ASSERT(cond)                                  \
    do {                                                 \
        if (!(cond)) {                                   \
            gr_assert_failed(#cond, __FILE__, __LINE__); \
        }                                                \
    } while (0)
void gr_assert_failed(const char *cond, const char *file, int line) __attribute__((noreturn));

#define GR_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define GR_MIN(a, b) ((a) < (b) ? (a) : (b))
#define GR_MAX(a, b) ((a) > (b) ? (a) : (b))
#define GR_CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#ifdef __cplusplus
}
#endif
#endif
