/* Sockets to listen on, with errors that say what to do, and names of who connects. */
#ifndef NB_SERVER_HTTP_LISTEN_H
#define NB_SERVER_HTTP_LISTEN_H

#include "base/error.h"

struct sockaddr;

/* A listening socket, not blocking. host NULL: every address, IPv4 and IPv6. *bound: the port that it got. NB_ERR_BUSY: in use. */
nb_status nb_http_bind(const char *host, uint16_t port, int *fd, uint16_t *bound, nb_error *err);
/* The same at a path; a socket that nobody listens on any more is replaced. */
nb_status nb_http_bind_unix(const char *path, int *fd, nb_error *err);
/* Removes a Unix socket. path may be NULL. */
void nb_http_unlink(const char *path);
/* "127.0.0.1:4711", "[::1]:4711", or "unix". */
void nb_http_peer_name(const struct sockaddr *a, int n, char *out, size_t cap);

#endif
