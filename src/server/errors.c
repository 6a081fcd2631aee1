/* Errors in vLLM's shape (errors.h, api.h). */
#include "server/errors.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/api_json.h"

#define MOST_FIELD_ERRORS 8
#define INPUT_LIMIT 400 /* bytes of a client's value that a message repeats */

static void vset(nb_api_error *e, int status, const char *type, const char *param, const char *fmt,
                 va_list ap)
{
    char small[512];
    va_list again;
    e->status = status;
    snprintf(e->type, sizeof e->type, "%s", type);
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    nb_buf_clear(&e->message);
    va_copy(again, ap);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    if (n > 0 && (size_t)n < sizeof small) {
        nb_buf_add(&e->message, small, (size_t)n);
    } else if (n > 0 && nb_buf_reserve(&e->message, (size_t)n)) {
        vsnprintf(e->message.data, (size_t)n + 1, fmt, again);
        e->message.len = (size_t)n;
    }
    va_end(again);
}

void nb_api_error_set(nb_api_error *e, int status, const char *type, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vset(e, status, type, param, fmt, ap);
    va_end(ap);
}

bool nb_api_bad(nb_api_error *e, const char *param, const char *value, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vset(e, 400, "BadRequestError", param, fmt, ap);
    va_end(ap);
    nb_buf_adds(&e->message, " (parameter=");
    nb_buf_adds(&e->message, param);
    if (value) nb_buf_adds(&e->message, ", value=");
    if (value) nb_buf_adds(&e->message, value);
    nb_buf_addc(&e->message, ')');
    return false;
}

bool nb_api_bad_text(nb_api_error *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vset(e, 400, "BadRequestError", NULL, fmt, ap);
    va_end(ap);
    return false;
}

bool nb_api_nomem(nb_api_error *e)
{
    nb_api_error_set(e, 500, "InternalServerError", NULL, "Internal server error: out of memory");
    return false;
}

bool nb_api_bad_status(nb_api_error *e, const nb_error *err)
{
    switch (err->status) {
    case NB_ERR_BUSY:
        nb_api_error_set(e, 503, "ServiceUnavailableError", NULL, "%s", err->cause);
        return false;
    case NB_ERR_ARGUMENT:
    case NB_ERR_LIMIT:
    case NB_ERR_FORMAT:
    case NB_ERR_UNSUPPORTED:
    case NB_ERR_MISSING:
        return nb_api_bad_text(e, "%s%s%s", err->cause, err->remedy[0] ? "; " : "", err->remedy);
    case NB_ERR_NOMEM: return nb_api_nomem(e);
    default:
        nb_api_error_set(e, 500, "InternalServerError", NULL, "Internal server error: %s", err->cause);
        return false;
    }
}

/* The length of an absolute path of at least two parts at s, or of an address; 0: neither. *seen: bytes that no path begins in, as
 * a rest of what is no path has no more parts. */
static size_t private_length(const char *s, size_t n, size_t *seen)
{
    size_t i = 0, slashes = 0;
    if (s[0] == '/') {
        for (; i < n && (isalnum((unsigned char)s[i]) || strchr("/._-+@", s[i])) && s[i]; i++)
            slashes += s[i] == '/' && i + 1 < n && isalnum((unsigned char)s[i + 1]);
        *seen = i;
        return slashes >= 2 ? i : 0;
    }
    if (n > 2 && s[0] == '0' && s[1] == 'x')
        for (i = 2; i < n && isxdigit((unsigned char)s[i]);) i++;
    return i >= 8 ? i : 0;
}

void nb_api_error_body(const nb_api_error *e, nb_buf *out)
{
    const char *s = e->message.data;
    size_t n = e->message.len, run = 0, looked = 0; /* no path begins before looked */
    nb_buf_adds(out, "{\"error\":{\"message\":\"");
    if (!n || e->message.bad) {
        s = "Internal server error: out of memory";
        n = strlen(s);
    }
    for (size_t i = 0; i < n;) {
        bool begins = i == 0 || !(isalnum((unsigned char)s[i - 1]) || strchr("._-/<:}", s[i - 1]));
        size_t seen = 0, hidden = 0;
        if (begins && (s[i] != '/' || i >= looked)) hidden = private_length(s + i, n - i, &seen);
        if (seen) looked = i + seen;
        if (!hidden) {
            i++;
            continue;
        }
        nb_out_inside(out, s + run, i - run);
        nb_buf_adds(out, "<path>");
        run = i += hidden;
    }
    nb_out_inside(out, s + run, n - run);
    nb_buf_adds(out, "\",\"type\":");
    nb_out_string(out, e->type);
    nb_buf_adds(out, ",\"param\":");
    nb_out_string(out, e->param[0] ? e->param : NULL);
    nb_buf_adds(out, ",\"code\":");
    nb_out_int(out, e->status);
    nb_buf_adds(out, "}}");
}

static const char *keep(nb_buf *b, char buf[NB_VALUE_TEXT])
{
    snprintf(buf, NB_VALUE_TEXT, "%s", nb_buf_str(b));
    nb_buf_free(b);
    return buf;
}

const char *nb_value_text(const json_t *v, char buf[NB_VALUE_TEXT])
{
    nb_buf b = {0};
    if (json_is_string(v)) /* str(), not repr() */
        nb_buf_add(&b, json_string_value(v), json_string_length(v));
    else
        nb_out_python(&b, v, NB_VALUE_TEXT / 2);
    return keep(&b, buf);
}

const char *nb_value_real(double v, char buf[NB_VALUE_TEXT])
{
    nb_buf b = {0};
    nb_out_repr(&b, v);
    return keep(&b, buf);
}

const char *nb_value_int(int64_t v, char buf[NB_VALUE_TEXT])
{
    snprintf(buf, NB_VALUE_TEXT, "%" PRId64, v);
    return buf;
}

/* "stop.list[str].0" as "('body', 'stop', 'list[str]', 0)". */
static void python_loc(nb_buf *out, const char *loc)
{
    nb_buf_adds(out, "('body',");
    for (const char *p = loc; *p;) {
        size_t n = strcspn(p, ".");
        bool number = n > 0 && strspn(p, "0123456789") >= n;
        nb_buf_adds(out, number ? " " : " '");
        nb_buf_add(out, p, n);
        nb_buf_adds(out, number ? "" : "'");
        p += n;
        if (*p == '.') p++;
        nb_buf_adds(out, *p ? "," : "");
    }
    nb_buf_addc(out, ')');
}

void nb_field_error(nb_field_errors *f, const char *loc, const char *type, const char *msg,
                    const json_t *input, const char *ctx)
{
    if (f->count >= MOST_FIELD_ERRORS) return;
    if (f->count == 0) snprintf(f->param, sizeof f->param, "body%s%s", loc[0] ? "." : "", loc);
    f->count++;
    nb_buf_addf(&f->text, "\n  {'type': '%s', 'loc': ", type);
    python_loc(&f->text, loc);
    nb_buf_addf(&f->text, ", 'msg': %s%s%s, 'input': ", strchr(msg, '\'') ? "\"" : "'", msg,
                strchr(msg, '\'') ? "\"" : "'");
    if (input)
        nb_out_python(&f->text, input, INPUT_LIMIT);
    else
        nb_buf_adds(&f->text, "{}");
    if (ctx) nb_buf_addf(&f->text, ", 'ctx': {%s}", ctx);
    nb_buf_addc(&f->text, '}');
}

void nb_field_errors_add(nb_field_errors *f, const nb_field_errors *from)
{
    if (f->count >= MOST_FIELD_ERRORS) return;
    if (f->count == 0) memcpy(f->param, from->param, sizeof f->param);
    f->count += from->count;
    f->text.bad |= from->text.bad;
    nb_buf_add(&f->text, from->text.data, from->text.len);
}

bool nb_field_errors_none(nb_field_errors *f, nb_api_error *e)
{
    if (!f->count) return true;
    nb_api_error_set(e, 400, "Bad Request", f->param, "%zu validation error%s:%s", f->count,
                     f->count == 1 ? "" : "s", nb_buf_str(&f->text));
    if (f->text.bad) return nb_api_nomem(e);
    return false;
}

void nb_field_errors_free(nb_field_errors *f)
{
    nb_buf_free(&f->text);
    f->count = 0;
}
