/* Where the ranks of a job meet: which addresses rank 0 listens at and the others try, and whose key they prove. */
#ifndef GR_ORCHESTRATOR_LAUNCH_WHERE_H
#define GR_ORCHESTRATOR_LAUNCH_WHERE_H

#include "common/options/options.h"
#include "orchestrator/launch/channel.h"
#include "orchestrator/launch/job_dir.h"
#include "orchestrator/launch/who.h"
#include "transport/net.h"

#define GR_WHERE_CONTROL_BYTES 300
#define GR_WHERE_PORTS 8 /* ports that are tried in turn where nobody can say which one is taken */

struct gr_where {
    enum gr_channel_by by; /* rank 0 says it over this channel */
    char dir[PATH_MAX]; /* rank 0 says it there; empty, and no channel: the addresses below are known from the start */
    bool one_host;      /* nobody comes from elsewhere: loopback is enough */
    bool named;         /* by --rendezvous: nobody else is to be found there */
    char address[GR_WHERE_PORTS][320];
    int n_address;
    uint16_t port_first, port_last; /* --ports; 0: not given */
    char ports[16];                 /* of listeners, as an address has them: "0", the system's choice, or a range */
};

/* The ports that the job's listeners take: the value of --ports, NULL: the system's choice. out: all zeroes. GR_EINVAL
 * (logged): it is no range. */
GR_NODISCARD enum gr_status gr_where_ports(const char *ports, struct gr_where *out);
/* After that. GR_EINVAL (logged): the ranks are on several hosts and have no place to meet, or no key. with_key:
 * GRAFT_KEY and its kin are set. env: for torchrun's master. GR_EUNSUPPORTED (logged): there is no such channel. */
GR_NODISCARD enum gr_status gr_where_choose(const struct gr_options *o, const struct gr_who *w, bool with_key,
                                            char *const *env, struct gr_where *out);
/* Does rank 0 say where it listens, in a folder or over a channel? */
bool gr_where_is_told(const struct gr_where *w);
/* The place, for people. */
const char *gr_where_text(const struct gr_where *w);
/* Rank 0: listens; where that is told, note->address has every address that others may reach. Errors are
 * logged. */
GR_NODISCARD enum gr_status gr_where_listen(const struct gr_where *w, const struct gr_who *who,
                                            struct gr_listening *out, struct gr_job_note *note);
/* Where rank 0's orchestrator listens: at --control (NULL: not given), whose port 0 is one of those that listeners
 * take; else where rank 0 does; or, with --interface, there, whichever way the ranks have met. */
void gr_where_control(const struct gr_where *w, const char *control, const struct gr_listening *met,
                      char out[GR_WHERE_CONTROL_BYTES]);
/* Likewise of a target: our end of a connection to rank 0 as an address to listen at, or the host left to --interface.
 */
void gr_where_own(const struct gr_where *w, int fd, char text_out[64]);
/* The host of the connection's other end, with this port: "10.0.0.1:5055", "[fd00::1]:5055". */
void gr_where_peer(int fd, int port, char text_out[64]);

#endif
