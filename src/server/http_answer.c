/* Heads and errors of answers: http_answer.h. */
#include "server/http_answer.h"

#include <string.h>

void nb_http_answer_head(const nb_http_answer *a, nb_buf *out)
{
    char date[64];
    struct tm tm;
    gmtime_r(&a->date, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    nb_buf_addf(out, "HTTP/1.1 %d %s\r\ndate: %s\r\nserver: %s\r\n", a->status, nb_http_phrase(a->status),
                date, a->server);
    if (a->type) nb_buf_addf(out, "content-type: %s\r\n", a->type);
    if (a->length >= 0) nb_buf_addf(out, "content-length: %lld\r\n", (long long)a->length);
    if (a->chunked) nb_buf_adds(out, "transfer-encoding: chunked\r\n");
    if (a->close) nb_buf_adds(out, "connection: close\r\n");
    if (a->keep_alive) nb_buf_adds(out, "connection: keep-alive\r\n");
    nb_buf_adds(out, a->more);
    nb_buf_adds(out, "\r\n");
}

const char *nb_http_phrase(int status)
{
    static const struct {
        int status;
        const char *phrase;
    } phrases[] = {{200, "OK"},
                   {204, "No Content"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {413, "Content Too Large"},
                   {414, "URI Too Long"},
                   {417, "Expectation Failed"},
                   {422, "Unprocessable Content"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"},
                   {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (phrases[i].status == status) return phrases[i].phrase;
    return status < 500 ? "Bad Request" : "Internal Server Error";
}

void nb_http_error_body(nb_buf *out, int status, const char *type, const char *message)
{
    nb_buf_adds(out, "{\"error\":{\"message\":");
    nb_buf_add_json(out, message, strlen(message));
    nb_buf_adds(out, ",\"type\":");
    nb_buf_add_json(out, type, strlen(type));
    nb_buf_addf(out, ",\"param\":null,\"code\":%d}}", status);
}
