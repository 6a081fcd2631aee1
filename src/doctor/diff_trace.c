/* Two traces compared, of nibble or of a running stack that tools/torch_taps.py listened to. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_tree.h"
#include "base/map.h"
#include "doctor/diff.h"

#define MAX_TRACE ((size_t)1 << 30)

static const char *const measures[] = {"in_amax", "out_amax",  "nonfinite", "clipped",
                                       "flushed", "saturated", "cos_local", "cos_total"};

/* A number, or one of the strings that stand for what JSON has no number for. False: null or absent. */
static bool value(const json_t *row, const char *key, double *out)
{
    const json_t *v = json_object_get(row, key);
    const char *s = json_string_value(v);
    if (json_is_number(v))
        *out = json_number_value(v);
    else if (s && strcmp(s, "nan") == 0)
        *out = NAN;
    else if (s && (strcmp(s, "inf") == 0 || strcmp(s, "-inf") == 0))
        *out = *s == '-' ? -INFINITY : INFINITY;
    else
        return false;
    return true;
}

static const char *text(const json_t *row, const char *key)
{
    const char *s = json_string_value(json_object_get(row, key));
    return s ? s : "";
}

/* How far two rows are apart: the larger relative difference of what goes in and out; infinite when one alone is not finite. */
static double distance(const json_t *a, const json_t *b)
{
    double worst = 0, x, y;
    for (int i = 0; i < 2; i++) {
        if (!value(a, measures[i], &x) || !value(b, measures[i], &y)) continue;
        if (isfinite(x) != isfinite(y)) return INFINITY;
        const double top = fmax(fabs(x), fabs(y));
        if (isfinite(x) && top > 0) worst = fmax(worst, fabs(x - y) / top);
    }
    /* A count in one, a share in the other: only whether there are any can be compared. */
    if (value(a, "nonfinite", &x) && value(b, "nonfinite", &y) && (x > 0) != (y > 0)) return INFINITY;
    return worst;
}

static nb_status read_rows(const char *path, json_t **root, nb_error *err)
{
    nb_buf b = {0};
    nb_status s = nb_file_slurp(path, MAX_TRACE, &b, err);
    if (s == NB_OK) s = nb_json_tree(path, nb_buf_str(&b), b.len, root, err);
    nb_buf_free(&b);
    if (s == NB_OK && !json_is_array(json_object_get(*root, "rows"))) {
        s = nb_fail(err, NB_ERR_FORMAT, "no \"rows\": this is not a trace");
        nb_error_at(err, path, NULL, -1);
        nb_error_remedy(err, "make it with nibble trace --format json, or tools/torch_taps.py");
    }
    return s;
}

/* What makes a row the same in both: module, operator, expert, and the how-manieth of these. */
static bool key_of(nb_map *seen, char ***keys, size_t *n, const json_t *row, nb_buf *out)
{
    uint32_t times = 0;
    nb_buf b = {0};
    nb_buf_addf(&b, "%s|%s|%lld", text(row, "module"), text(row, "operator"),
                json_is_integer(json_object_get(row, "expert"))
                    ? (long long)json_integer_value(json_object_get(row, "expert"))
                    : -1LL);
    if (!nb_buf_ok(&b)) return false;
    nb_map_get(seen, b.data, b.len, &times);
    nb_buf_clear(out);
    nb_buf_addf(out, "%s|%u", b.data, times);
    char **p = realloc(*keys, (*n + 1) * sizeof *p);
    if (p) {
        *keys = p;
        p[(*n)++] = b.data;
    }
    if (!p) nb_buf_free(&b);
    return p && nb_buf_ok(out) && nb_map_put(seen, p[*n - 1], b.len, times + 1, NULL);
}

/* Names of rows, and the row each stands for. */
typedef struct names {
    nb_map seen, rows;
    char **keys;
    size_t n;
} names;

static void names_free(names *t)
{
    for (size_t i = 0; i < t->n; i++) free(t->keys[i]);
    free(t->keys);
    nb_map_free(&t->seen);
    nb_map_free(&t->rows);
}

/* Files all rows of b under their keys. */
static bool file_rows(names *t, const json_t *rows)
{
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        nb_buf key = {0};
        bool ok = key_of(&t->seen, &t->keys, &t->n, row, &key);
        char **p = ok ? realloc(t->keys, (t->n + 1) * sizeof *p) : NULL;
        if (p) {
            t->keys = p;
            p[t->n++] = key.data;
            ok = nb_map_put(&t->rows, p[t->n - 1], key.len, (uint32_t)i, NULL);
        } else {
            nb_buf_free(&key);
            ok = false;
        }
        if (!ok) return false;
    }
    return true;
}

static void number(double v, bool known, nb_buf *out)
{
    if (!known)
        nb_buf_adds(out, "null");
    else if (isfinite(v))
        nb_buf_addf(out, "%.9g", v);
    else
        nb_buf_adds(out, isnan(v) ? "\"nan\"" : v > 0 ? "\"inf\"" : "\"-inf\"");
}

static void json_row(const json_t *a, const json_t *b, double d, nb_buf *out)
{
    const json_t *layer = json_object_get(a, "layer");
    nb_buf_addf(out, "{\"layer\":%lld,\"module\":",
                json_is_integer(layer) ? (long long)json_integer_value(layer) : -1LL);
    nb_buf_add_json(out, text(a, "module"), strlen(text(a, "module")));
    nb_buf_adds(out, ",\"operator\":");
    nb_buf_add_json(out, text(a, "operator"), strlen(text(a, "operator")));
    for (size_t i = 0; i < sizeof measures / sizeof *measures; i++) {
        double x = 0, y = 0;
        const bool has_x = value(a, measures[i], &x), has_y = value(b, measures[i], &y);
        if (!has_x && !has_y) continue;
        nb_buf_addf(out, ",\"%s\":[", measures[i]);
        number(x, has_x, out);
        nb_buf_addc(out, ',');
        number(y, has_y, out);
        nb_buf_addc(out, ']');
    }
    nb_buf_adds(out, ",\"difference\":");
    number(d, true, out);
    nb_buf_addc(out, '}');
}

static void text_row(const json_t *a, const json_t *b, double d, nb_buf *out)
{
    double x = NAN, y = NAN;
    value(a, "out_amax", &x);
    value(b, "out_amax", &y);
    nb_buf_addf(out, "%10.4g  %11.4g  %11.4g  %s %s\n", d, x, y, text(a, "module"), text(a, "operator"));
}

/* Where the two leave each other first. */
typedef struct divergence {
    const json_t *a, *b; /* NULL: nowhere */
    double distance;
} divergence;

static void write_end(bool json, size_t pairs, size_t differ, size_t alone_a, size_t alone_b,
                      double tolerance, const divergence *first, nb_buf *out)
{
    if (json) {
        nb_buf_adds(out, "],\n\"first_difference\":");
        if (first->a)
            json_row(first->a, first->b, first->distance, out);
        else
            nb_buf_adds(out, "null");
        nb_buf_addf(out, ",\n\"unmatched\":[%zu,%zu]}\n", alone_a, alone_b);
        return;
    }
    nb_buf_addf(out, "%zu of %zu rows differ by more than %g", differ, pairs, tolerance);
    if (first->a)
        nb_buf_addf(out, "; the first is %s %s", text(first->a, "module"), text(first->a, "operator"));
    nb_buf_addf(out, "; %zu rows are in the first alone, %zu in the second\n", alone_a, alone_b);
}

nb_status nb_diff_traces(const char *a, const char *b, double tolerance, bool json, nb_buf *out,
                         nb_error *err)
{
    json_t *x = NULL, *y = NULL, *row;
    divergence first = {0};
    names of_b = {0}, of_a = {0};
    nb_buf key = {0};
    size_t i, pairs = 0, differ = 0, alone = 0;
    nb_status s = read_rows(a, &x, err);
    if (s == NB_OK) s = read_rows(b, &y, err);
    if (s != NB_OK) goto out;
    const json_t *rows_b = json_object_get(y, "rows");
    bool ok = file_rows(&of_b, rows_b);
    if (json)
        nb_buf_adds(out, "{\"rows\":[");
    else
        nb_buf_addf(out, "%10s  %11s  %11s  row\n", "difference", "out amax a", "out amax b");
    json_array_foreach(json_object_get(x, "rows"), i, row)
    {
        uint32_t at;
        ok = ok && key_of(&of_a.seen, &of_a.keys, &of_a.n, row, &key);
        if (!ok) break;
        if (!nb_map_get(&of_b.rows, key.data, key.len, &at)) {
            alone++;
            continue;
        }
        json_t *other = json_array_get(rows_b, at);
        const double d = distance(row, other);
        const bool far = d > tolerance;
        if (json) nb_buf_adds(out, pairs ? ",\n" : "\n");
        if (json)
            json_row(row, other, d, out);
        else if (far)
            text_row(row, other, d, out);
        pairs++;
        differ += far;
        /* a value that one side alone has not finite is the fault; rows before it may differ by rounding alone */
        if (far && (!first.a || (isinf(d) && isfinite(first.distance)))) first = (divergence){row, other, d};
    }
    if (!ok || !nb_buf_ok(&key)) {
        s = nb_fail_nomem(err, "the rows of a trace", 0);
        goto out;
    }
    if (!pairs) {
        s = nb_fail(err, NB_ERR_ARGUMENT, "the two traces have no row in common");
        nb_error_at(err, b, NULL, -1);
        nb_error_remedy(err, "trace the same model; module names must be the same in both");
        goto out;
    }
    write_end(json, pairs, differ, alone, json_array_size(rows_b) - pairs, tolerance, &first, out);
out:
    names_free(&of_a);
    names_free(&of_b);
    nb_buf_free(&key);
    json_decref(x);
    json_decref(y);
    return s;
}
