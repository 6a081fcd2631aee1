/* Binding the sockets that clients connect to. */
#include "server/http_listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 1024

static nb_status failed(nb_error *err, const char *what, int code)
{
    bool busy = code == EADDRINUSE;
    nb_status s =
        nb_fail(err, busy ? NB_ERR_BUSY : NB_ERR_IO, "cannot listen on %s: %s", what, strerror(code));
    if (busy)
        nb_error_remedy(err, "another program listens there: stop it, or choose another with --port");
    else if (code == EACCES)
        nb_error_remedy(err, "ports under 1024 are root's: choose another with --port");
    return s;
}

/* Opens, binds, listens. Returns 0 or an errno. */
static int open_at(int family, const struct sockaddr *a, socklen_t n, int *fd)
{
    int one = 1, zero = 0, code = 0;
    *fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0) return errno;
    if (family != AF_UNIX) setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (family == AF_INET6) setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(*fd, a, n) != 0 || listen(*fd, BACKLOG) != 0) {
        code = errno;
        close(*fd);
        *fd = -1;
    }
    return code;
}

static uint16_t port_of(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a = {.v6 = {0}};
    socklen_t n = sizeof a;
    if (getsockname(fd, &a.any, &n) != 0) return 0;
    return ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
}

nb_status nb_http_bind(const char *host, uint16_t port, int *fd, uint16_t *bound, nb_error *err)
{
    char what[300], service[8];
    *fd = -1;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE},
                    *list = NULL;
    snprintf(what, sizeof what, "%.250s port %u", host ? host : "every address", port);
    snprintf(service, sizeof service, "%u", port);
    int code = getaddrinfo(host ? host : "::", service, &hints, &list);
    if (code == 0) {
        code = open_at(list->ai_family, list->ai_addr, list->ai_addrlen, fd);
        freeaddrinfo(list);
        /* A machine without IPv6. */
        if (code && code != EADDRINUSE && code != EACCES && !host)
            return nb_http_bind("0.0.0.0", port, fd, bound, err);
    } else {
        nb_status s = nb_fail(err, NB_ERR_ARGUMENT, "there is no address '%s': %s",
                              host ? host : "::", gai_strerror(code));
        nb_error_remedy(err, "--host takes an address of this machine: 127.0.0.1, 0.0.0.0, ::");
        return s;
    }
    if (code) return failed(err, what, code);
    *bound = port_of(*fd);
    return NB_OK;
}

nb_status nb_http_bind_unix(const char *path, int *fd, nb_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char what[300];
    if (strlen(path) >= sizeof a.sun_path)
        return nb_fail(err, NB_ERR_ARGUMENT, "the path of a Unix socket has at most %zu bytes",
                       sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    snprintf(what, sizeof what, "%.280s", path);
    int code = open_at(AF_UNIX, (struct sockaddr *)&a, sizeof a, fd);
    if (code == EADDRINUSE) {
        struct stat st;
        int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool stale = stat(path, &st) == 0 && S_ISSOCK(st.st_mode) && probe >= 0 &&
                     connect(probe, (struct sockaddr *)&a, sizeof a) != 0 && errno == ECONNREFUSED;
        if (probe >= 0) close(probe);
        if (stale && unlink(path) == 0) code = open_at(AF_UNIX, (struct sockaddr *)&a, sizeof a, fd);
    }
    return code ? failed(err, what, code) : NB_OK;
}

void nb_http_unlink(const char *path)
{
    if (path) unlink(path);
}

void nb_http_peer_name(const struct sockaddr *a, int n, char *out, size_t cap)
{
    char host[48], port[8];
    if (a->sa_family == AF_UNIX || getnameinfo(a, (socklen_t)n, host, sizeof host, port, sizeof port,
                                               NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(out, cap, "unix");
        return;
    }
    const char *v4 =
        strncmp(host, "::ffff:", 7) == 0 ? host + 7 : host; /* an IPv4 client of an IPv6 socket */
    snprintf(out, cap, strchr(v4, ':') ? "[%s]:%s" : "%s:%s", v4, port);
}
