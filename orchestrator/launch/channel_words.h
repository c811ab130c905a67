/* What graft-pmix and graft-mpi, the helpers of `graft launch` (channel.h), say to it and hear of it: packets over the
 * SOCK_SEQPACKET socket that they are started with. A packet is a letter and a text without a 0 at its end. No other
 * header of graft is included by a helper, which links the launcher's library and nothing of graft. */
#ifndef GR_ORCHESTRATOR_LAUNCH_CHANNEL_WORDS_H
#define GR_ORCHESTRATOR_LAUNCH_CHANNEL_WORDS_H

#define GR_CHANNEL_FD 3           /* a helper's end of the socket */
#define GR_CHANNEL_BYTES_MAX 8192 /* of a packet */
#define GR_CHANNEL_KEY "graft.rendezvous"

enum gr_channel_word {
    GR_CHANNEL_LIBRARY = 'l', /* the library's name and version, before the first call that could hang */
    GR_CHANNEL_CALL = 'c',    /* the call that comes next */
    GR_CHANNEL_NOTE = 'n',    /* to the helper of rank 0: what it is to publish; from another one: what it has got */
    GR_CHANNEL_ERROR = 'e',   /* why it cannot; it ends */
};

#endif
