/* The connection manager of the device (verbs.c says what it is): librdmacm over TCP sockets. */
#define _GNU_SOURCE
#include "device.h"
#include <netinet/in.h>
#include <sys/socket.h>

/* What the peer asks for and answers while a connection is made. */
struct hello {
	pid_t pid;
	uint8_t accepted, responder_resources, initiator_depth, rnr_retry_count, private_bytes;
	uint8_t private_data[255];
};

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct channel *channel = make(sizeof(*channel));
	channel->channel.fd = epoll_create1(EPOLL_CLOEXEC);
	check(channel->channel.fd >= 0, "epoll_create1");
	channel->bell = bell(channel->channel.fd);
	channel->last = &channel->first;
	return &channel->channel;
}

void rdma_destroy_event_channel(struct rdma_event_channel *of)
{
	struct channel *channel = (struct channel *)of;
	close(channel->bell);
	close(channel->channel.fd);
	free(channel);
}

static void put_event(struct rdma_cm_id *id, struct rdma_cm_id *listener,
		      enum rdma_cm_event_type what, const struct hello *hello)
{
	struct channel *channel = (struct channel *)id->channel;
	struct event *event = make(sizeof(*event));
	event->event.id = id;
	event->event.listen_id = listener;
	event->event.event = what;
	if (hello != NULL) {
		struct rdma_conn_param *conn = &event->event.param.conn;
		memcpy(event->private_data, hello->private_data, hello->private_bytes);
		conn->private_data = event->private_data;
		conn->private_data_len = hello->private_bytes;
		/* Each side has its own depths in these fields, whichever said them. */
		conn->responder_resources = hello->initiator_depth;
		conn->initiator_depth = hello->responder_resources;
		conn->rnr_retry_count = hello->rnr_retry_count;
	}
	*channel->last = event;
	channel->last = &event->next;
	ring(channel->bell);
}

void tell(struct id *id, enum rdma_cm_event_type what)
{
	put_event(&id->id, NULL, what, NULL);
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *own,
		   enum rdma_port_space space)
{
	struct id *id = make(sizeof(*id));
	id->id.channel = channel;
	id->id.context = own;
	id->id.ps = space;
	id->fd = -1;
	*out = &id->id;
	return 0;
}

int rdma_destroy_id(struct rdma_cm_id *of)
{
	struct channel *channel = (struct channel *)of->channel;
	struct event **at = &channel->first;
	while (*at != NULL) {
		struct event *event = *at;
		if (event->event.id == of) {
			*at = event->next;
			free(event);
		} else {
			at = &event->next;
		}
	}
	channel->last = at;
	if (((struct id *)of)->fd >= 0)
		close(((struct id *)of)->fd);
	free(of);
	return 0;
}

int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	id->channel = channel;
	return 0;
}

static socklen_t address_bytes(const struct sockaddr *address)
{
	return address->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address)
{
	memcpy(&id->route.addr.src_storage, address, address_bytes(address));
	id->verbs = &context;
	id->port_num = 1;
	return 0;
}

static int new_socket(const struct sockaddr *address)
{
	int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	check(fd >= 0, "socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	return fd;
}

int rdma_listen(struct rdma_cm_id *of, int backlog)
{
	struct id *id = (struct id *)of;
	struct sockaddr *address = &of->route.addr.src_addr;
	id->fd = new_socket(address);
	if (bind(id->fd, address, address_bytes(address)) != 0 || listen(id->fd, backlog) != 0)
		return -1;
	watch(of->channel->fd, id->fd, id);
	return 0;
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *source, struct sockaddr *to,
		      int timeout_ms)
{
	(void)timeout_ms;
	memcpy(&id->route.addr.dst_storage, to, address_bytes(to));
	if (source != NULL) {
		memcpy(&id->route.addr.src_storage, source, address_bytes(source));
	} else {
		int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		socklen_t bytes = sizeof(id->route.addr.src_storage);
		check(fd >= 0 && connect(fd, to, address_bytes(to)) == 0, "a route");
		check(getsockname(fd, &id->route.addr.src_addr, &bytes) == 0, "getsockname");
		close(fd);
	}
	id->verbs = &context;
	id->port_num = 1;
	tell((struct id *)id, RDMA_CM_EVENT_ADDR_RESOLVED);
	return 0;
}

int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	(void)timeout_ms;
	tell((struct id *)id, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return 0;
}

static void say_hello(struct id *id, const struct rdma_conn_param *param, int accepted)
{
	struct hello hello = {
		.pid = getpid(),
		.accepted = (uint8_t)accepted,
		.responder_resources = param->responder_resources,
		.initiator_depth = param->initiator_depth,
		.rnr_retry_count = param->rnr_retry_count,
		.private_bytes = param->private_data_len,
	};
	if (param->private_data_len > 0)
		memcpy(hello.private_data, param->private_data, param->private_data_len);
	check(send(id->fd, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello), "a hello");
}

/* From here on its socket is the queue pair's. */
static void join(struct id *id)
{
	struct qp *qp = (struct qp *)id->id.qp;
	qp->fd = id->fd;
	qp->qp.state = IBV_QPS_RTS;
	watch(((struct cq *)qp->qp.recv_cq)->channel->channel.fd, qp->fd, qp);
}

int rdma_connect(struct rdma_cm_id *of, struct rdma_conn_param *param)
{
	struct id *id = (struct id *)of;
	struct sockaddr *to = &of->route.addr.dst_addr;
	id->fd = new_socket(to);
	if (connect(id->fd, to, address_bytes(to)) != 0)
		return -1;
	say_hello(id, param, 0);
	id->connecting = 1;
	watch(of->channel->fd, id->fd, id);
	return 0;
}

int rdma_accept(struct rdma_cm_id *of, struct rdma_conn_param *param)
{
	struct id *id = (struct id *)of;
	say_hello(id, param, 1);
	join(id);
	tell(id, RDMA_CM_EVENT_ESTABLISHED);
	return 0;
}

int rdma_reject(struct rdma_cm_id *of, const void *private_data, uint8_t bytes)
{
	struct rdma_conn_param param = { .private_data = private_data, .private_data_len = bytes };
	say_hello((struct id *)of, &param, 0);
	return 0;
}

int rdma_disconnect(struct rdma_cm_id *of)
{
	if (of->qp != NULL)
		end((struct qp *)of->qp);
	return 0;
}

int rdma_notify(struct rdma_cm_id *of, enum ibv_event_type event)
{
	(void)of, (void)event;
	return 0;
}

/* Something has come on the socket of an id: a request, or the answer to one. */
static void look_at(struct id *id)
{
	struct hello hello;
	if (id->connecting) {
		id->connecting = 0;
		epoll_ctl(id->id.channel->fd, EPOLL_CTL_DEL, id->fd, NULL);
		if (recv(id->fd, &hello, sizeof(hello), MSG_WAITALL) != sizeof(hello)) {
			tell(id, RDMA_CM_EVENT_UNREACHABLE);
			return;
		}
		id->peer = hello.pid;
		if (hello.accepted)
			join(id);
		put_event(&id->id, NULL, hello.accepted ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_REJECTED,
			  &hello);
		return;
	}
	struct rdma_cm_id *made;
	int fd = accept4(id->fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		return;
	if (recv(fd, &hello, sizeof(hello), MSG_WAITALL) != sizeof(hello)) {
		close(fd);
		return;
	}
	rdma_create_id(id->id.channel, &made, NULL, id->id.ps);
	socklen_t bytes = sizeof(made->route.addr.src_storage);
	getsockname(fd, &made->route.addr.src_addr, &bytes);
	bytes = sizeof(made->route.addr.dst_storage);
	getpeername(fd, &made->route.addr.dst_addr, &bytes);
	made->verbs = &context;
	made->port_num = 1;
	((struct id *)made)->fd = fd;
	((struct id *)made)->peer = hello.pid;
	put_event(made, &id->id, RDMA_CM_EVENT_CONNECT_REQUEST, &hello);
}

int rdma_get_cm_event(struct rdma_event_channel *of, struct rdma_cm_event **out)
{
	struct channel *channel = (struct channel *)of;
	if (channel->first == NULL) {
		struct epoll_event ready[8];
		int count = epoll_wait(of->fd, ready, 8, 0);
		is_rung(channel->bell);
		for (int at = 0; at < count; at++)
			if (ready[at].data.ptr != NULL)
				look_at(ready[at].data.ptr);
	}
	struct event *event = channel->first;
	if (event == NULL) {
		errno = EAGAIN;
		return -1;
	}
	channel->first = event->next;
	if (channel->first == NULL)
		channel->last = &channel->first;
	*out = &event->event;
	return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	free(event);
	return 0;
}
