/*
 * An RDMA device in software, in place of libibverbs and librdmacm (LD_PRELOAD), so that what
 * programs do above these libraries can be counted where there is no device. It is for two
 * processes on one machine that trust each other: an RDMA WRITE or READ is process_vm_writev(2) or
 * process_vm_readv(2) of the peer's memory, a Send goes through the TCP socket that connects the
 * two, and keys are not looked at. Work requests complete at once; a Send waits for a receive. It
 * has no memory windows, as Soft-RoCE has none that protect.
 *
 * One thread uses each object, as the programs do. What cannot be had ends the process: a count of
 * half a run is none.
 */
#define _GNU_SOURCE
#include "device.h"
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#undef ibv_query_port
#undef ibv_reg_mr_iova2

/* Before each message. */
struct header {
	uint32_t bytes, has_key, key;
};

static int post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static int post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
static int post_srq_recv(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
static int poll_cq(struct ibv_cq *, int, struct ibv_wc *);
static int req_notify_cq(struct ibv_cq *, int);

static struct ibv_device device = {
	.node_type = IBV_NODE_CA,
	.transport_type = IBV_TRANSPORT_IB,
	.name = "counted0",
	.dev_name = "uverbs0",
};
struct ibv_context context = {
	.device = &device,
	.ops = {
		.poll_cq = poll_cq,
		.req_notify_cq = req_notify_cq,
		.post_srq_recv = post_srq_recv,
		.post_send = post_send,
		.post_recv = post_recv,
	},
};

/* Numbers of queue pairs and keys. */
static uint32_t next_number(void)
{
	static uint32_t number;
	return __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED);
}

__attribute__((constructor)) static void begin(void)
{
	context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	context.cmd_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	check(context.async_fd >= 0 && context.cmd_fd >= 0, "eventfd");
	/* The peer may reach this memory, where only a parent may otherwise (Yama). */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

/* The kernel's side, which the programs look for, is there. */
int statx(int folder, const char *restrict path, int flags, unsigned mask,
	  struct statx *restrict out)
{
	if (strcmp(path, "/dev/infiniband/rdma_cm") == 0) {
		memset(out, 0, sizeof(*out));
		out->stx_mask = STATX_TYPE;
		out->stx_mode = S_IFCHR | 0600;
		return 0;
	}
	return (int)syscall(SYS_statx, folder, path, flags, mask, out);
}

int inotify_add_watch(int fd, const char *path, uint32_t mask)
{
	if (strcmp(path, "/dev/infiniband") == 0)
		path = "/";
	return (int)syscall(SYS_inotify_add_watch, fd, path, mask);
}

/* Devices */

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = make(2 * sizeof(*list));
	list[0] = &device;
	if (count != NULL)
		*count = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *of)
{
	return of->name;
}

struct ibv_context *ibv_open_device(struct ibv_device *of)
{
	(void)of;
	return &context;
}

int ibv_close_device(struct ibv_context *of)
{
	(void)of;
	return 0;
}

int ibv_query_device(struct ibv_context *of, struct ibv_device_attr *attr)
{
	(void)of;
	*attr = (struct ibv_device_attr){
		.max_qp_wr = 16384,
		.max_sge = 4,
		.max_sge_rd = 4,
		.max_cqe = CQES - 1,
		.max_srq = 1,
		.max_srq_wr = 16384,
		.max_qp_rd_atom = 16,
		.max_qp_init_rd_atom = 16,
		.phys_port_cnt = 1,
		.device_cap_flags = IBV_DEVICE_MEM_MGT_EXTENSIONS,
	};
	return 0;
}

int ibv_query_port(struct ibv_context *of, uint8_t port, struct _compat_ibv_port_attr *out)
{
	struct ibv_port_attr *attr = (struct ibv_port_attr *)out;
	(void)of, (void)port;
	attr->state = IBV_PORT_ACTIVE;
	attr->max_msg_sz = 1u << 30;
	return 0;
}

int ibv_get_async_event(struct ibv_context *of, struct ibv_async_event *event)
{
	(void)of, (void)event;
	errno = EAGAIN;
	return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *of)
{
	struct ibv_pd *pd = make(sizeof(*pd));
	pd->context = of;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *at, size_t bytes, uint64_t iova,
				unsigned access)
{
	struct ibv_mr *mr = make(sizeof(*mr));
	(void)iova, (void)access;
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = at;
	mr->length = bytes;
	mr->lkey = mr->rkey = next_number() << 8;
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

/* As memcpy(3), whose instructions would be counted as the program's. */
static void copy(void *to, const void *from, size_t bytes)
{
	for (size_t at = 0; at < bytes; at++)
		((char *)to)[at] = ((const char *)from)[at];
}

/* Receives */

static void make_receives(struct receives *receives, unsigned depth)
{
	receives->depth = depth;
	receives->all = make((depth + 1) * sizeof(*receives->all));
}

static int put_receive(struct receives *receives, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	for (; wr != NULL; wr = wr->next) {
		struct receive *receive = &receives->all[receives->tail % receives->depth];
		if (receives->tail - receives->head == receives->depth || wr->num_sge > 4) {
			*bad = wr;
			return ENOMEM;
		}
		receive->wr_id = wr->wr_id;
		receive->count = wr->num_sge;
		for (int at = 0; at < wr->num_sge; at++)
			receive->sges[at] = wr->sg_list[at];
		receives->tail++;
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return put_receive(&((struct qp *)qp)->own, wr, bad);
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return put_receive(&((struct srq *)srq)->receives, wr, bad);
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct srq *srq = make(sizeof(*srq));
	srq->srq.context = pd->context;
	srq->srq.pd = pd;
	make_receives(&srq->receives, attr->attr.max_wr);
	return &srq->srq;
}

int ibv_destroy_srq(struct ibv_srq *of)
{
	struct srq *srq = (struct srq *)of;
	free(srq->receives.all);
	free(srq);
	return 0;
}

/* Completions */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *of)
{
	struct comp_channel *channel = make(sizeof(*channel));
	channel->channel.context = of;
	channel->channel.fd = epoll_create1(EPOLL_CLOEXEC);
	check(channel->channel.fd >= 0, "epoll_create1");
	channel->bell = bell(channel->channel.fd);
	return &channel->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *of)
{
	struct comp_channel *channel = (struct comp_channel *)of;
	close(channel->bell);
	close(channel->channel.fd);
	free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *of, int depth, void *own,
			     struct ibv_comp_channel *channel, int vector)
{
	struct cq *cq = make(sizeof(*cq));
	(void)vector;
	cq->cq.context = of;
	cq->cq.channel = channel;
	cq->cq.cq_context = own;
	cq->cq.cqe = depth;
	cq->channel = (struct comp_channel *)channel;
	return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **own)
{
	(void)cq, (void)own;
	return is_rung(((struct comp_channel *)channel)->bell) ? 0 : -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count)
{
	(void)cq, (void)count;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	(void)solicited;
	((struct cq *)cq)->armed = 1;
	return 0;
}

static struct ibv_wc *put_wc(struct cq *cq)
{
	check(cq->tail - cq->head < CQES, "a completion queue is full");
	if (cq->armed) {
		cq->armed = 0;
		ring(cq->channel->bell);
	}
	struct ibv_wc *wc = &cq->wcs[cq->tail++ % CQES];
	wc->status = IBV_WC_SUCCESS;
	wc->wc_flags = 0;
	wc->byte_len = 0;
	return wc;
}

void end(struct qp *qp)
{
	if (qp->fd < 0)
		return;
	struct cq *cq = (struct cq *)qp->qp.recv_cq;
	epoll_ctl(cq->channel->channel.fd, EPOLL_CTL_DEL, qp->fd, NULL);
	shutdown(qp->fd, SHUT_RDWR);
	qp->fd = -1;
	tell(qp->id, RDMA_CM_EVENT_DISCONNECTED);
}

/* Puts messages that are there into receives, while the queue has fewer than `most`. */
static void take_messages(struct cq *cq, struct qp *qp, unsigned most)
{
	struct receives *receives = qp->receives;
	while (cq->tail - cq->head < most && receives->head != receives->tail) {
		struct header header;
		if (qp->end - qp->start < sizeof(header))
			return;
		copy(&header, qp->in + qp->start, sizeof(header));
		if (qp->end - qp->start < sizeof(header) + header.bytes)
			return;
		struct receive *receive = &receives->all[receives->head++ % receives->depth];
		const char *from = qp->in + qp->start + sizeof(header);
		uint32_t left = header.bytes;
		for (int at = 0; at < receive->count; at++) {
			struct ibv_sge *sge = &receive->sges[at];
			uint32_t bytes = left < sge->length ? left : sge->length;
			copy((void *)(uintptr_t)sge->addr, from, bytes);
			from += bytes;
			left -= bytes;
		}
		check(left == 0, "a message is longer than its receive");
		qp->start += sizeof(header) + header.bytes;
		struct ibv_wc *wc = put_wc(cq);
		wc->wr_id = receive->wr_id;
		wc->opcode = IBV_WC_RECV;
		wc->byte_len = header.bytes;
		wc->qp_num = qp->qp.qp_num;
		if (header.has_key) {
			wc->wc_flags = IBV_WC_WITH_INV;
			wc->invalidated_rkey = header.key;
		}
	}
}

static void receive(struct cq *cq, struct qp *qp, unsigned most)
{
	take_messages(cq, qp, most);
	if (qp->fd < 0 || cq->tail - cq->head >= most)
		return;
	copy(qp->in, qp->in + qp->start, qp->end - qp->start);
	qp->end -= qp->start;
	qp->start = 0;
	ssize_t came = recv(qp->fd, qp->in + qp->end, STREAM_BYTES - qp->end, MSG_DONTWAIT);
	if (came > 0) {
		qp->end += (size_t)came;
		take_messages(cq, qp, most);
	} else if (came == 0 || (errno != EAGAIN && errno != EINTR)) {
		end(qp);
	}
}

static int poll_cq(struct ibv_cq *of, int most, struct ibv_wc *out)
{
	struct cq *cq = (struct cq *)of;
	int count = 0;
	for (struct qp *qp = cq->qps; qp != NULL && cq->tail - cq->head < (unsigned)most; qp = qp->next)
		receive(cq, qp, (unsigned)most);
	for (; count < most && cq->head != cq->tail; count++)
		out[count] = cq->wcs[cq->head++ % CQES];
	return count;
}

/* Queue pairs */

int rdma_create_qp(struct rdma_cm_id *of, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct qp *qp = make(sizeof(*qp));
	struct cq *cq = (struct cq *)attr->recv_cq;
	qp->id = (struct id *)of;
	qp->fd = -1;
	qp->qp.context = &context;
	qp->qp.pd = pd;
	qp->qp.send_cq = attr->send_cq;
	qp->qp.recv_cq = attr->recv_cq;
	qp->qp.srq = attr->srq;
	qp->qp.qp_type = attr->qp_type;
	qp->qp.qp_num = next_number();
	if (attr->srq != NULL) {
		qp->receives = &((struct srq *)attr->srq)->receives;
	} else {
		make_receives(&qp->own, attr->cap.max_recv_wr);
		qp->receives = &qp->own;
	}
	qp->next = cq->qps;
	cq->qps = qp;
	of->qp = &qp->qp;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *of)
{
	struct qp *qp = (struct qp *)of;
	struct qp **at = &((struct cq *)of->recv_cq)->qps;
	while (*at != qp)
		at = &(*at)->next;
	*at = qp->next;
	if (qp->fd >= 0)
		end(qp);
	free(qp->own.all);
	free(qp);
	return 0;
}

int ibv_modify_qp(struct ibv_qp *of, struct ibv_qp_attr *attr, int mask)
{
	struct qp *qp = (struct qp *)of;
	struct receives *own = &qp->own;
	if (!(mask & IBV_QP_STATE) || attr->qp_state != IBV_QPS_ERR)
		return EINVAL;
	for (; own->head != own->tail; own->head++) {
		struct ibv_wc *wc = put_wc((struct cq *)of->recv_cq);
		wc->wr_id = own->all[own->head % own->depth].wr_id;
		wc->status = IBV_WC_WR_FLUSH_ERR;
		wc->qp_num = of->qp_num;
	}
	return 0;
}

int ibv_query_qp(struct ibv_qp *of, struct ibv_qp_attr *attr, int mask,
		 struct ibv_qp_init_attr *init)
{
	(void)of, (void)mask;
	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	return 0;
}

/* Sends what has been gathered. */
static void send_out(struct qp *qp)
{
	for (size_t sent = 0; sent < qp->out_bytes && qp->fd >= 0;) {
		ssize_t now = send(qp->fd, qp->out + sent, qp->out_bytes - sent, MSG_NOSIGNAL);
		if (now > 0)
			sent += (size_t)now;
		else if (errno != EINTR)
			end(qp);
	}
	qp->out_bytes = 0;
}

static void gather_send(struct qp *qp, const struct ibv_send_wr *wr)
{
	struct header header = {
		.has_key = wr->opcode == IBV_WR_SEND_WITH_INV,
		.key = wr->invalidate_rkey,
	};
	for (int at = 0; at < wr->num_sge; at++)
		header.bytes += wr->sg_list[at].length;
	check(sizeof(header) + header.bytes <= STREAM_BYTES, "a message is too long");
	if (STREAM_BYTES - qp->out_bytes < sizeof(header) + header.bytes)
		send_out(qp);
	copy(qp->out + qp->out_bytes, &header, sizeof(header));
	qp->out_bytes += sizeof(header);
	for (int at = 0; at < wr->num_sge; at++) {
		struct ibv_sge *sge = &wr->sg_list[at];
		copy(qp->out + qp->out_bytes, (void *)(uintptr_t)sge->addr, sge->length);
		qp->out_bytes += sge->length;
	}
}

/* An RDMA WRITE or READ. */
static void move(struct qp *qp, const struct ibv_send_wr *wr)
{
	struct iovec here[4], there = { .iov_base = (void *)(uintptr_t)wr->wr.rdma.remote_addr };
	ssize_t moved = 0;
	for (int at = 0; at < wr->num_sge; at++) {
		here[at].iov_base = (void *)(uintptr_t)wr->sg_list[at].addr;
		here[at].iov_len = wr->sg_list[at].length;
		there.iov_len += wr->sg_list[at].length;
	}
	if (there.iov_len == 0)
		return;
	unsigned long count = (unsigned long)wr->num_sge;
	if (wr->opcode == IBV_WR_RDMA_READ)
		moved = process_vm_readv(qp->id->peer, here, count, &there, 1, 0);
	else
		moved = process_vm_writev(qp->id->peer, here, count, &there, 1, 0);
	check((size_t)moved == there.iov_len, "an RDMA WRITE or READ");
}

static int post_send(struct ibv_qp *of, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct qp *qp = (struct qp *)of;
	(void)bad;
	for (; wr != NULL; wr = wr->next) {
		enum ibv_wc_opcode opcode = IBV_WC_SEND;
		switch (wr->opcode) {
		case IBV_WR_SEND:
		case IBV_WR_SEND_WITH_INV:
			gather_send(qp, wr);
			break;
		case IBV_WR_RDMA_WRITE:
			opcode = IBV_WC_RDMA_WRITE;
			move(qp, wr);
			break;
		case IBV_WR_RDMA_READ:
			opcode = IBV_WC_RDMA_READ;
			move(qp, wr);
			break;
		default:
			check(0, "an opcode that this device does not have");
		}
		if (wr->send_flags & IBV_SEND_SIGNALED) {
			struct ibv_wc *wc = put_wc((struct cq *)of->send_cq);
			wc->wr_id = wr->wr_id;
			wc->opcode = opcode;
			wc->qp_num = of->qp_num;
		}
	}
	send_out(qp);
	return 0;
}
