/*
 * Where clients connect: sockets at an address, a name's addresses or a path, with errors that say what to do. Runs on the thread of
 * the event_base, as http.c does, which gets each connection from here.
 */
#ifndef NB_SERVER_HTTP_LISTEN_H
#define NB_SERVER_HTTP_LISTEN_H

#include "base/error.h"

struct event_base;

typedef struct nb_listener nb_listener;

typedef struct nb_listener_events {
    /* Somebody connected: fd is the callee's. peer is "127.0.0.1:4711", "[::1]:4711" or "unix". */
    void (*accepted)(void *ctx, int fd, const char *peer);
    /* Out of file descriptors, most likely: room is wanted. Nobody is accepted for up to half a second. */
    void (*starved)(void *ctx);
    void *ctx;
} nb_listener_events;

/* Listens at every address that host has, as uvicorn does; those that this machine cannot have (IPv6 where there is none) are left
 * out while another is there. host NULL: every address, IPv4 and IPv6. port 0: one that is free, the same for all. NB_ERR_BUSY: in
 * use at one of them, NB_ERR_IO or NB_ERR_ARGUMENT for the rest; nothing is listened to then. */
nb_status nb_listener_open(struct event_base *base, const nb_listener_events *events, const char *host,
                           uint16_t port, nb_listener **out, nb_error *err);
/* The same at a path; a socket that nobody listens on any more is replaced. */
nb_status nb_listener_open_unix(struct event_base *base, const nb_listener_events *events, const char *path,
                                nb_listener **out, nb_error *err);
uint16_t nb_listener_port(const nb_listener *l); /* 0 at a path */
/* A Unix socket is removed. l may be NULL. */
void nb_listener_free(nb_listener *l);

#endif
