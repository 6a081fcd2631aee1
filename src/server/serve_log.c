/* Formatting log lines. */
#include "server/serve_log.h"

#include <string.h>
#include <time.h>

#include "base/buf.h"

/* A value that needs no quotes to stay one word. */
static bool is_word(const char *s)
{
    if (!*s) return false;
    for (; *s; s++)
        if ((unsigned char)*s <= ' ' || (unsigned char)*s >= 0x7f || *s == '"' || *s == '=' || *s == '\\')
            return false;
    return true;
}

static void value(nb_buf *out, const nb_log_field *f, bool json)
{
    if (!f->text)
        nb_buf_addf(out, "%.15g", f->number);
    else if (!json && is_word(f->text))
        nb_buf_adds(out, f->text);
    else
        nb_buf_add_json(out, f->text, strlen(f->text));
}

void nb_serve_log_line(const nb_serve_log *l, nb_log_level level, const char *message,
                       const nb_log_field *field, size_t n)
{
    static const char *const names[] = {[NB_LOG_DEBUG] = "DEBUG",
                                        [NB_LOG_INFO] = "INFO",
                                        [NB_LOG_WARN] = "WARNING",
                                        [NB_LOG_ERROR] = "ERROR"};
    if (level < l->least || !l->write) return;
    nb_buf out = {0};
    struct timespec t;
    struct tm tm;
    char stamp[32];
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
    if (l->json) {
        nb_buf_addf(&out, "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"message\":", stamp, t.tv_nsec / 1000000,
                    names[level]);
        nb_buf_add_json(&out, message, strlen(message));
    } else {
        nb_buf_addf(&out, "%s.%03ldZ %s ", stamp, t.tv_nsec / 1000000, names[level]);
        for (const char *c = message; *c; c++)
            nb_buf_addc(&out, (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c);
    }
    for (size_t i = 0; i < n; i++) {
        nb_buf_addf(&out, l->json ? ",\"%s\":" : " %s=", field[i].name);
        value(&out, &field[i], l->json);
    }
    nb_buf_adds(&out, l->json ? "}\n" : "\n");
    if (nb_buf_ok(&out)) l->write(l->ctx, out.data, out.len);
    nb_buf_free(&out);
}
