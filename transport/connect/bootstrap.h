/* What happens on a socket before frames flow: HELLO both ways, the proof of the shared key, the
 * choice of the transport. Blocking with a deadline; run it off the I/O loop or with short
 * time-outs.
 *
 * Wire: each record is u32 little-endian length (<= GR_HELLO_BYTES_MAX) + one msgpack map.
 *
 *   1. both: HELLO (below) with a 32-byte random nonce.
 *
 *   2. both: PROOF {role, mac}, mac = crypto_auth (HMAC-SHA512-256) keyed by the shared key over
 *      "graft-hello-1" | role | own HELLO record | peer's HELLO record, each with its u32 length.
 *
 *   3. both check: a HELLO equal to our own (a reflection) or a wrong mac gives GR_EAUTH before
 *      the peer's HELLO is parsed or anything is answered.
 *
 * Then the HELLOs are compared and the first common transport of the order is taken. The proof
 * covers the opening. A control link is then encrypted with keys of that opening (seal.h), unless one side says off;
 * what follows on any other socket is neither encrypted nor authenticated. */
#ifndef GR_TRANSPORT_CONNECT_BOOTSTRAP_H
#define GR_TRANSPORT_CONNECT_BOOTSTRAP_H

#include "transport/connect/seal.h"
#include "transport/transport.h"

#define GR_HELLO_BYTES_MAX 16384 /* bytes of a HELLO or a proof, at most */
#define GR_PROTOCOL_VERSION 3    /* another one is refused */
#define GR_KEY_BYTES 32          /* of the shared key */
#define GR_CLUSTER_BYTES 64      /* of a cluster's name, its NUL included */

/* A client asks an orchestrator for text; it talks to nobody else. LEAD and RANK are the two ends of the rendezvous of
 * `graft launch', which is no orchestrator: they talk to each other alone. So do HOST and MEMBER, of a tensor-parallel
 * group: a process that listens for others of the group, and one that comes. */
enum gr_role {
    GR_ROLE_ORCHESTRATOR = 1,
    GR_ROLE_TARGET = 2,
    GR_ROLE_DRAFT = 3,
    GR_ROLE_CLIENT = 4,
    GR_ROLE_LEAD = 5,
    GR_ROLE_RANK = 6,
    GR_ROLE_HOST = 7,
    GR_ROLE_MEMBER = 8,
};
enum gr_dtype { GR_DTYPE_F32 = 0, GR_DTYPE_F16 = 1, GR_DTYPE_BF16 = 2 };

struct gr_hello {
    uint32_t version;               /* GR_PROTOCOL_VERSION; must be equal */
    uint32_t role;                  /* enum gr_role */
    uint64_t incarnation;           /* random per process start */
    uint64_t wanted;                /* incarnation of the peer that is looked for, 0: anybody's */
    uint64_t tokenizer_fingerprint; /* 0: has none; two non-zero ones must be equal */
    uint64_t model_fingerprint;     /* of the model this worker runs */
    uint64_t fc_fingerprint;        /* of the EAGLE-3 fc, 0: none; two non-zero must be equal */
    char numerics_id[96];           /* kernel set, tiles, dtypes, layout */
    uint32_t n_vocab;               /* real vocabulary; draft and target: two non-zero ones must be equal */
    uint32_t transport_mask;        /* bits 1 << enum gr_transport_kind it is willing to use */
    uint32_t feature_dtype;         /* enum gr_dtype of FEATURES it sends or expects */
    uint32_t feature_width;         /* 0: none */
    uint32_t feature_raw;           /* 1: raw states, 0: fused */
    char captures[32];              /* layers whose inputs they are made of, as 2,4,7; empty: none */
    char host_id[48];               /* of gr_host_id(); empty: cannot share memory */
    char cluster[GR_CLUSTER_BYTES]; /* of gr_cluster_name(); two that are not empty must be equal */
    char seat[64];                  /* of a worker (JOIN); empty: none */
    uint64_t number;                /* of its process (JOINED); 0: none yet */
    struct gr_conn_limits limits;
    uint32_t secrecy;                       /* enum gr_secrecy: of its control links */
    uint8_t exchange[GR_SEAL_PUBLIC_BYTES]; /* filled by gr_hello_exchange; zeros with secrecy off */
    uint8_t nonce[32];                      /* the same */
    /* Not on the wire. Of the peer that gr_hello_exchange gives: the keys of the control link to it, on if one side is
     * an orchestrator and neither says off. Whoever has begun the link wipes them. */
    struct gr_seal_keys keys;
};

/* Exchanges HELLO and proofs on fd. key: GR_KEY_BYTES. Logs one line that says what to do on every
 * failure: GR_EAUTH, GR_EMISMATCH (versions, clusters, incarnations, roles, tokenizers, vocabularies, features: names
 * the field and both values), GR_ETIMEDOUT, GR_ECLOSED, GR_EPROTO, GR_EUNSUPPORTED (the peer speaks HTTP). fd stays the
 * caller's. */
GR_NODISCARD enum gr_status gr_hello_exchange(int fd, const struct gr_hello *self, const uint8_t *key, int timeout_ms,
                                              struct gr_hello *peer_out);

/* The same for who has connected fd, with the address of the other end in the line. */
GR_NODISCARD enum gr_status gr_hello_call(int fd, const struct gr_hello *self, const uint8_t *key, int timeout_ms,
                                          struct gr_hello *peer_out);

/* First kind of the order shm, verbs, tcp that both offer and that can connect (shm: equal
 * host_id). forced >= 0: only that one. GR_EMISMATCH with a logged line when there is none. */
GR_NODISCARD enum gr_status gr_transport_choose(const struct gr_hello *self, const struct gr_hello *peer, int forced,
                                                enum gr_transport_kind *kind_out);

/* How a socket becomes a connection. */
struct gr_bootstrap_options {
    bool initiator;      /* this side connected; it creates the memory of shm. The other one takes a peer that hangs up
                          * without a byte for a check of its health: no error */
    int forced;          /* the only enum gr_transport_kind that may be used; -1: any */
    uint32_t generation; /* of the slot that the connection stands in */
    int timeout_ms;
    const uint8_t *key; /* GR_KEY_BYTES; gr_bootstrap_open() does not look at it */
};

/* Hello + choose + open. Takes fd on success. Only built transports (with forced: only that one) are announced, so both
 * sides choose alike. When shm cannot be opened and was not forced, both go on to the next common one: one warning of
 * the initiator, counted in the connection's n_fallback. */
GR_NODISCARD enum gr_status gr_bootstrap(int fd, const struct gr_hello *self, const struct gr_bootstrap_options *o,
                                         struct gr_hello *peer_out, struct gr_conn **conn_out);

/* Its two halves. own_out: what was offered. */
GR_NODISCARD enum gr_status gr_bootstrap_greet(int fd, const struct gr_hello *self,
                                               const struct gr_bootstrap_options *o, struct gr_hello *own_out,
                                               struct gr_hello *peer_out);
GR_NODISCARD enum gr_status gr_bootstrap_open(int fd, const struct gr_hello *own, const struct gr_hello *peer,
                                              const struct gr_bootstrap_options *o, struct gr_conn **conn_out);

/* host_id of this process: a hash of the kernel's boot id, /dev/shm and the user, equal where memory can be shared.
 * False: there is no /dev/shm, or no boot id. out is drawn then, and equals nobody's. */
bool gr_host_id(char out[48]);
/* What a process says of itself on a link that carries messages and no frames: version, role, host_id, the limits of
 * such a link, and an incarnation that is drawn. */
void gr_hello_for_messages(uint32_t role, struct gr_hello *out);
/* A hash of the kernel's boot id: equal for all processes of a machine, whoever they are and whatever they see of it.
 */
void gr_machine_id(char out[48]);

/* Shared key, 64 hexadecimal digits, from the file that GRAFT_KEY_FILE names, else from the
 * variable GRAFT_KEY. GR_ENOTFOUND (not logged): neither is set. GR_EFORMAT, GR_EIO: set but not
 * usable; GR_EINVAL: others may read the file. */
GR_NODISCARD enum gr_status gr_key_from_env(uint8_t key_out[GR_KEY_BYTES]);
GR_NODISCARD enum gr_status gr_key_from_file(const char *path, uint8_t key_out[GR_KEY_BYTES]);
/* Writes a new key into a file that must not exist yet, mode 0600. */
GR_NODISCARD enum gr_status gr_key_make_file(const char *path);
GR_NODISCARD enum gr_status gr_key_random(uint8_t key_out[GR_KEY_BYTES], char hex_out[2 * GR_KEY_BYTES + 1]);

#endif
