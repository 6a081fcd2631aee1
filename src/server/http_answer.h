/* Answers as bytes: the head of one, and the shape of errors. Pure functions. */
#ifndef NB_SERVER_HTTP_ANSWER_H
#define NB_SERVER_HTTP_ANSWER_H

#include <stdint.h>
#include <time.h>

#include "base/buf.h"

typedef struct nb_http_answer {
    int status;
    const char *server, *type; /* type NULL: there is no body */
    int64_t length;            /* of the body; < 0: it is not known */
    bool chunked, close;
    bool keep_alive; /* said to who speaks HTTP/1.0 and asked for it */
    time_t date;
    const char *more; /* further headers, each with its line's end; "" */
} nb_http_answer;

/* Appends status line, headers and the empty line. */
void nb_http_answer_head(const nb_http_answer *a, nb_buf *out);
/* Appends {"error":{"message","type","param":null,"code"}}: the shape of every error here. */
void nb_http_error_body(nb_buf *out, int status, const char *type, const char *message);
/* The phrase of a status ("Not Found"). Static storage. */
const char *nb_http_phrase(int status);

#endif
