#include "transport/verbs/verbs_lib.h"

#include <unistd.h>

/* Macros and inline functions have no address. */
static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    return ibv_query_port(context, port, attr);
}

static ssize_t query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t n_max)
{
    return ibv_query_gid_table(context, entries, n_max, 0);
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
    return ibv_reg_mr(pd, addr, bytes, (unsigned)access);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    return ibv_post_send(qp, wr, bad);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return ibv_post_recv(qp, wr, bad);
}

static int poll_cq(struct ibv_cq *cq, int n_max, struct ibv_wc *wc)
{
    return ibv_poll_cq(cq, n_max, wc);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    return ibv_req_notify_cq(cq, solicited_only);
}

static bool has_peer_memory(void)
{
    return access("/sys/module/nvidia_peermem", F_OK) == 0 || access("/sys/kernel/mm/memory_peers/nv_mem", F_OK) == 0;
}

static void forget_removed_devices(void)
{
    int n = 0;
    struct ibv_context **list = rdma_get_devices(&n);
    if (list != NULL) {
        rdma_free_devices(list);
    }
}

const struct gr_verbs_lib gr_verbs_real = {
    .get_device_list = ibv_get_device_list,
    .free_device_list = ibv_free_device_list,
    .get_device_name = ibv_get_device_name,
    .open_device = ibv_open_device,
    .close_device = ibv_close_device,
    .query_device = ibv_query_device,
    .query_port = query_port,
    .query_gid_table = query_gid_table,
    .has_peer_memory = has_peer_memory,
    .alloc_pd = ibv_alloc_pd,
    .dealloc_pd = ibv_dealloc_pd,
    .reg_mr = reg_mr,
    .reg_dmabuf_mr = ibv_reg_dmabuf_mr,
    .dereg_mr = ibv_dereg_mr,
    .create_comp_channel = ibv_create_comp_channel,
    .destroy_comp_channel = ibv_destroy_comp_channel,
    .create_cq = ibv_create_cq,
    .destroy_cq = ibv_destroy_cq,
    .modify_qp = ibv_modify_qp,
    .get_async_event = ibv_get_async_event,
    .ack_async_event = ibv_ack_async_event,
    .post_send = post_send,
    .post_recv = post_recv,
    .poll_cq = poll_cq,
    .req_notify_cq = req_notify_cq,
    .get_cq_event = ibv_get_cq_event,
    .ack_cq_events = ibv_ack_cq_events,
    .create_event_channel = rdma_create_event_channel,
    .destroy_event_channel = rdma_destroy_event_channel,
    .create_id = rdma_create_id,
    .destroy_id = rdma_destroy_id,
    .bind_addr = rdma_bind_addr,
    .resolve_addr = rdma_resolve_addr,
    .resolve_route = rdma_resolve_route,
    .set_option = rdma_set_option,
    .create_qp = rdma_create_qp,
    .destroy_qp = rdma_destroy_qp,
    .connect = rdma_connect,
    .listen = rdma_listen,
    .accept = rdma_accept,
    .reject = rdma_reject,
    .disconnect = rdma_disconnect,
    .get_cm_event = rdma_get_cm_event,
    .ack_cm_event = rdma_ack_cm_event,
    .get_src_port = rdma_get_src_port,
    .forget_removed_devices = forget_removed_devices,
};
