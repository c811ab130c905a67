/* The two classes of frames. A frame of the small class is sent before any queued one of the bulk class; within a class
 * the order is kept (transport/transport.h). FEATURES are bulk, all other frames are small. */
#ifndef GR_COMMON_PROTOCOL_FRAME_CLASS_H
#define GR_COMMON_PROTOCOL_FRAME_CLASS_H

/* Of a bulk frame, what comes before its rows: they may lie in other memory (gr_frame.body). */
#define GR_BULK_HEAD_BYTES 52u

enum gr_frame_class { GR_FRAME_SMALL, GR_FRAME_BULK, GR_N_FRAME_CLASS };

#endif
