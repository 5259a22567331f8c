/* What the two files of this device share; verbs.c says what it is. */
#ifndef VERBS_DEVICE_H
#define VERBS_DEVICE_H
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CQES 65536 /* Of a completion queue: a power of two. */
#define STREAM_BYTES (1 << 20)

/* Receives, oldest first. */
struct receives {
	struct receive {
		uint64_t wr_id;
		int count;
		struct ibv_sge sges[4];
	} *all;
	unsigned depth, head, tail;
};

struct channel {
	struct rdma_event_channel channel; /* Its descriptor is an epoll instance. */
	int bell;
	struct event *first, **last;
};

struct event {
	struct rdma_cm_event event;
	uint8_t private_data[256];
	struct event *next;
};

struct id {
	struct rdma_cm_id id;
	int fd; /* Of the listener, or of the connection. */
	pid_t peer;
	int connecting;
};

struct comp_channel {
	struct ibv_comp_channel channel; /* Its descriptor is an epoll instance. */
	int bell;
};

struct cq {
	struct ibv_cq cq;
	struct comp_channel *channel;
	struct qp *qps;
	int armed;
	unsigned head, tail;
	struct ibv_wc wcs[CQES];
};

struct srq {
	struct ibv_srq srq;
	struct receives receives;
};

struct qp {
	struct ibv_qp qp;
	struct id *id;
	struct receives own, *receives;
	struct qp *next; /* Of the same completion queue for receives. */
	int fd; /* Of the connection; -1 before it and behind its end. */
	size_t start, end;
	char in[STREAM_BYTES];
	size_t out_bytes;
	char out[STREAM_BYTES];
};

/* Names of this device alone, and not of the program into which it is loaded. */
#pragma GCC visibility push(hidden)
/* Of every id. */
extern struct ibv_context context;
/* In verbs.c: the connection has ended. */
void end(struct qp *qp);
/* In cm.c: an event without private data. */
void tell(struct id *id, enum rdma_cm_event_type what);
#pragma GCC visibility pop

static inline void check(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "verbs_device: %s: %s\n", what, strerror(errno));
		abort();
	}
}

static inline void *make(size_t bytes)
{
	void *made = calloc(1, bytes);
	check(made != NULL, "memory");
	return made;
}

static inline void watch(int epoll, int fd, void *what)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = what };
	check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

/* A descriptor to be readable, in an epoll instance. */
static inline int bell(int epoll)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	check(fd >= 0, "eventfd");
	watch(epoll, fd, NULL);
	return fd;
}

static inline void ring(int fd)
{
	uint64_t one = 1;
	check(write(fd, &one, sizeof(one)) == sizeof(one), "eventfd");
}

static inline int is_rung(int fd)
{
	uint64_t count;
	return read(fd, &count, sizeof(count)) == sizeof(count);
}

#endif
