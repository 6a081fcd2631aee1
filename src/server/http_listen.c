/* Binding the sockets that clients connect to, and accepting who does. */
#include "server/http_listen.h"

#include <errno.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <event2/util.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 1024
#define MOST_ADDRESSES 16 /* of one name */
#define MOST_TRIES 16     /* for a port that is free at every address */
#define REST_MS                                                                                              \
    500 /* that nobody is accepted without file descriptors: at most, a timer that always runs ends it */

struct nb_listener {
    nb_listener_events events;
    struct evconnlistener *at[MOST_ADDRESSES];
    size_t n;
    uint16_t port;
    struct event *rested; /* always pending: when it is needed there may be no memory to add it */
    bool resting;
    char *path; /* of the Unix socket; NULL: not one, or not ours */
};

/* Sockets that are bound and have no listener yet. */
typedef struct sockets {
    int fd[MOST_ADDRESSES];
    size_t n;
} sockets;

static void close_all(sockets *s)
{
    while (s->n > 0) close(s->fd[--s->n]);
}

static nb_status failed(nb_error *err, const char *what, int code)
{
    bool busy = code == EADDRINUSE;
    nb_status s =
        nb_fail(err, busy ? NB_ERR_BUSY : NB_ERR_IO, "cannot listen on %s: %s", what, strerror(code));
    if (busy)
        nb_error_remedy(err, "another program listens there: stop it, or choose another with --port");
    else if (code == EACCES)
        nb_error_remedy(err, "ports under 1024 are root's: choose another with --port");
    else if (code == EADDRNOTAVAIL)
        nb_error_remedy(err, "--host takes an address of this machine: 127.0.0.1, 0.0.0.0, ::");
    else if (code == E2BIG)
        nb_error_remedy(err, "the name has more than 16 addresses: give one of them as --host");
    return s;
}

/* ---- Sockets ---- */

/* Opens, binds, listens. only_v6: IPv4 has a socket of its own. Returns 0 or an errno. */
static int open_at(const struct sockaddr *a, socklen_t n, bool only_v6, sockets *to)
{
    int one = 1, v6 = only_v6, code = 0;
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    if (a->sa_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6, sizeof v6);
    if (bind(fd, a, n) == 0 && listen(fd, BACKLOG) == 0)
        to->fd[to->n++] = fd;
    else {
        code = errno;
        close(fd);
    }
    return code;
}

typedef union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} address;

static uint16_t port_of(int fd)
{
    address a = {.v6 = {0}};
    socklen_t n = sizeof a;
    if (getsockname(fd, &a.any, &n) != 0) return 0;
    return ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
}

static void set_port(struct sockaddr *a, uint16_t port)
{
    address *to = (address *)(void *)a;
    *(a->sa_family == AF_INET ? &to->v4.sin_port : &to->v6.sin6_port) = htons(port);
}

/* Names in /etc/hosts may lead to the same address twice. */
static bool is_repeated(const struct addrinfo *list, const struct addrinfo *a)
{
    for (; list != a; list = list->ai_next)
        if (list->ai_addrlen == a->ai_addrlen && memcmp(list->ai_addr, a->ai_addr, a->ai_addrlen) == 0)
            return true;
    return false;
}

static bool is_absent(int code)
{
    return code == EADDRNOTAVAIL || code == EAFNOSUPPORT || code == EPROTONOSUPPORT;
}

/* Every address of the list at one port; *port 0 becomes the first's. Returns 0, or the errno of *at, with nothing left open. */
static int open_list(struct addrinfo *list, uint16_t *port, sockets *to, const struct addrinfo **at)
{
    bool v4 = false;
    int code = 0, absent = 0;
    for (const struct addrinfo *a = list; a; a = a->ai_next) v4 |= a->ai_family == AF_INET;
    *at = list;
    for (struct addrinfo *a = list; a && !code; a = a->ai_next) {
        if (is_repeated(list, a)) continue;
        set_port(a->ai_addr, *port);
        *at = a;
        code = to->n < MOST_ADDRESSES ? open_at(a->ai_addr, a->ai_addrlen, v4, to) : E2BIG;
        if (!is_absent(code)) {
            if (!code && !*port) *port = port_of(to->fd[0]);
            continue;
        }
        absent = code;
        code = 0;
    }
    if (!code && !to->n) code = absent;
    if (code) close_all(to);
    return code;
}

static void name_peer(const struct sockaddr *a, socklen_t n, char *out, size_t cap)
{
    char host[48], port[8];
    if (a->sa_family == AF_UNIX ||
        getnameinfo(a, n, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(out, cap, "unix");
        return;
    }
    const char *v4 =
        strncmp(host, "::ffff:", 7) == 0 ? host + 7 : host; /* an IPv4 client of an IPv6 socket */
    snprintf(out, cap, strchr(v4, ':') ? "[%s]:%s" : "%s:%s", v4, port);
}

static nb_status bind_host(const char *host, uint16_t port, sockets *to, uint16_t *bound, nb_error *err)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    const struct addrinfo *at;
    struct addrinfo *list = NULL;
    char service[8], name[64], what[400];
    snprintf(service, sizeof service, "%u", port);
    int code = getaddrinfo(host ? host : "::", service, &hints, &list);
    if (code != 0) {
        nb_fail(err, NB_ERR_ARGUMENT, "there is no address '%s': %s", host ? host : "::", gai_strerror(code));
        nb_error_remedy(err, "--host takes an address of this machine: 127.0.0.1, 0.0.0.0, ::");
        return NB_ERR_ARGUMENT;
    }
    int tries = 0;
    do {
        *bound = port;
        code = open_list(list, bound, to, &at);
    } while (!port && code == EADDRINUSE && ++tries < MOST_TRIES);
    name_peer(at->ai_addr, at->ai_addrlen, name, sizeof name);
    snprintf(what, sizeof what, "%.250s port %u (%s)", host ? host : "every address", *bound, name);
    freeaddrinfo(list);
    if (code && code != EADDRINUSE && code != EACCES && !host) /* a machine without IPv6 */
        return bind_host("0.0.0.0", port, to, bound, err);
    return code ? failed(err, what, code) : NB_OK;
}

static nb_status bind_path(const char *path, sockets *to, nb_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char what[300];
    if (strlen(path) >= sizeof a.sun_path)
        return nb_fail(err, NB_ERR_ARGUMENT, "the path of a Unix socket has at most %zu bytes",
                       sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    snprintf(what, sizeof what, "%.280s", path);
    int code = open_at((struct sockaddr *)&a, sizeof a, false, to);
    if (code == EADDRINUSE) {
        struct stat st;
        int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool stale = stat(path, &st) == 0 && S_ISSOCK(st.st_mode) && probe >= 0 &&
                     connect(probe, (struct sockaddr *)&a, sizeof a) != 0 && errno == ECONNREFUSED;
        if (probe >= 0) close(probe);
        if (stale && unlink(path) == 0) code = open_at((struct sockaddr *)&a, sizeof a, false, to);
    }
    return code ? failed(err, what, code) : NB_OK;
}

/* ---- Accepting ---- */

static void on_accept(struct evconnlistener *at, evutil_socket_t fd, struct sockaddr *a, int n, void *ctx)
{
    nb_listener *l = ctx;
    char peer[64];
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one,
               sizeof one); /* fails on a Unix socket, where it means nothing */
    name_peer(a, (socklen_t)n, peer, sizeof peer);
    l->events.accepted(l->events.ctx, fd, peer);
}

static void on_error(struct evconnlistener *at, void *ctx)
{
    nb_listener *l = ctx;
    l->resting = true;
    for (size_t i = 0; i < l->n; i++) evconnlistener_disable(l->at[i]);
    l->events.starved(l->events.ctx);
}

static void on_rested(evutil_socket_t fd, short what, void *ctx)
{
    nb_listener *l = ctx;
    bool all = true;
    if (!l->resting) return;
    for (size_t i = 0; i < l->n; i++) all = evconnlistener_enable(l->at[i]) == 0 && all;
    l->resting = !all;
}

/* A listener of sockets, which become its own or are closed. */
static nb_status listen_on(struct event_base *base, const nb_listener_events *events, sockets *s,
                           nb_listener **out, nb_error *err)
{
    const struct timeval rest = {.tv_usec = REST_MS * 1000};
    nb_listener *l = calloc(1, sizeof *l);
    if (l) {
        l->events = *events;
        l->rested = event_new(base, -1, EV_PERSIST, on_rested, l);
    }
    bool timed = l && l->rested && event_add(l->rested, &rest) == 0;
    while (timed && s->n > 0) {
        struct evconnlistener *at = evconnlistener_new(
            base, on_accept, l, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, s->fd[s->n - 1]);
        if (!at) break;
        s->n--;
        evconnlistener_set_error_cb(at, on_error);
        l->at[l->n++] = at;
    }
    if (timed && !s->n) {
        *out = l;
        return NB_OK;
    }
    close_all(s);
    nb_listener_free(l);
    return nb_fail_nomem(err, "the listener", sizeof *l);
}

nb_status nb_listener_open(struct event_base *base, const nb_listener_events *events, const char *host,
                           uint16_t port, nb_listener **out, nb_error *err)
{
    sockets s = {.n = 0};
    uint16_t bound;
    nb_status st = bind_host(host, port, &s, &bound, err);
    if (st == NB_OK) st = listen_on(base, events, &s, out, err);
    if (st == NB_OK) (*out)->port = bound;
    return st;
}

nb_status nb_listener_open_unix(struct event_base *base, const nb_listener_events *events, const char *path,
                                nb_listener **out, nb_error *err)
{
    sockets s = {.n = 0};
    char *own = strdup(path);
    if (!own) return nb_fail_nomem(err, "a path", strlen(path));
    nb_status st = bind_path(path, &s, err);
    if (st == NB_OK) {
        if ((st = listen_on(base, events, &s, out, err)) == NB_OK) {
            (*out)->path = own;
            return NB_OK;
        }
        unlink(path);
    }
    free(own);
    return st;
}

uint16_t nb_listener_port(const nb_listener *l)
{
    return l->port;
}

void nb_listener_free(nb_listener *l)
{
    if (!l) return;
    for (size_t i = 0; i < l->n; i++) evconnlistener_free(l->at[i]);
    if (l->rested) event_free(l->rested);
    if (l->path) unlink(l->path);
    free(l->path);
    free(l);
}
