/* Writing the log. Neighbouring pieces are joined, so that a shard in which one byte changed has three of them. */
#include "doctor/repair_log.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define STRIDE                                                                                               \
    4096 /* bytes compared at a time: what lies between two changed bytes of one stride is kept as changed */

nb_status nb_relog_open(nb_relog *l, const char *dir, nb_error *err)
{
    char *path = nb_path_join(dir, NB_REPAIR_OLD);
    l->hash = XXH3_createState();
    if (!path || !l->hash) {
        free(path);
        return nb_fail_nomem(err, "the repair's log", 0);
    }
    nb_status s = nb_writer_open(path, &l->old, err);
    free(path);
    return s;
}

void nb_relog_free(nb_relog *l)
{
    nb_writer_abort(l->old);
    XXH3_freeState(l->hash);
    nb_buf_free(&l->files);
    *l = (nb_relog){0};
}

static void name_file(nb_relog *l, const char *name)
{
    if (l->n_files++) nb_buf_addc(&l->files, ',');
    nb_buf_adds(&l->files, "\n  {\"name\":");
    nb_buf_add_json(&l->files, name, strlen(name));
}

void nb_relog_created(nb_relog *l, const char *name)
{
    name_file(l, name);
    nb_buf_adds(&l->files, ",\"created\":true}");
}

void nb_relog_begin(nb_relog *l, const char *name)
{
    name_file(l, name);
    nb_buf_adds(&l->files, ",\"pieces\":[");
    l->pending = false;
    l->n_pieces = 0;
    l->size = 0;
    XXH3_64bits_reset(l->hash);
}

static void flush(nb_relog *l)
{
    if (!l->pending) return;
    nb_buf_addf(&l->files, "%s[\"%s\",%llu,%llu]", l->n_pieces++ ? "," : "", l->pending_new ? "new" : "old",
                (unsigned long long)l->begin, (unsigned long long)l->end);
    l->pending = false;
}

static void piece(nb_relog *l, bool is_new, uint64_t at, size_t n)
{
    if (!n) return;
    if (l->pending && l->pending_new == is_new && l->end == at) {
        l->end += n;
        return;
    }
    flush(l);
    l->pending = true;
    l->pending_new = is_new;
    l->begin = at;
    l->end = at + n;
}

static void count(nb_relog *l, const void *bytes, size_t n)
{
    if (n) XXH3_64bits_update(l->hash, bytes, n);
    l->size += n;
}

void nb_relog_keep(nb_relog *l, const void *bytes, size_t n, uint64_t at)
{
    count(l, bytes, n);
    piece(l, true, at, n);
}

nb_status nb_relog_lost(nb_relog *l, const void *bytes, size_t n, nb_error *err)
{
    count(l, bytes, n);
    piece(l, false, l->old_size, n);
    l->old_size += n;
    return nb_writer_put(l->old, bytes, n, err);
}

nb_status nb_relog_changed(nb_relog *l, const void *old, const void *now, size_t n, uint64_t at,
                           nb_error *err)
{
    const unsigned char *a = old, *b = now;
    nb_status s = NB_OK;
    for (size_t i = 0; i < n && s == NB_OK; i += STRIDE) {
        const size_t end = n - i < STRIDE ? n : i + STRIDE;
        size_t first = i, last = end;
        while (first < end && a[first] == b[first]) first++;
        while (last > first && a[last - 1] == b[last - 1]) last--;
        nb_relog_keep(l, a + i, first - i, at + i);
        s = nb_relog_lost(l, a + first, last - first, err);
        nb_relog_keep(l, a + last, end - last, at + last);
    }
    return s;
}

void nb_relog_end(nb_relog *l)
{
    flush(l);
    nb_buf_addf(&l->files, "],\"size\":%llu,\"xxh3\":\"%016llx\"}", (unsigned long long)l->size,
                (unsigned long long)XXH3_64bits_digest(l->hash));
}

static void items(const char *key, const char *text, const nb_repair_list *l, nb_buf *out)
{
    nb_buf_addf(out, ",\n \"%s\":[", key);
    for (size_t i = 0; i < l->count; i++) {
        const nb_repair_item *it = &l->items[i];
        nb_buf_addf(out, "%s\n  {\"rule\":\"%s\",\"tensors\":[", i ? "," : "", it->rule);
        for (size_t k = 0; k < it->n; k++) {
            if (k) nb_buf_addc(out, ',');
            nb_buf_add_json(out, it->tensors[k], strlen(it->tensors[k]));
        }
        nb_buf_addf(out, "],\"%s\":", text);
        nb_buf_add_json(out, it->text, strlen(it->text));
        if (it->has_error) nb_buf_addf(out, ",\"error\":%.9g", it->error);
        nb_buf_addc(out, '}');
    }
    nb_buf_adds(out, "]");
}

nb_status nb_relog_close(nb_relog *l, const char *dir, const nb_plan *p, nb_error *err)
{
    nb_buf b = {0};
    nb_writer *w = NULL;
    char *path = nb_path_join(dir, NB_REPAIR_LOG);
    nb_buf_addf(&b, "{\"nibble_repair\":1,\n \"source\":");
    nb_buf_add_json(&b, p->dir, strlen(p->dir));
    items("applied", "action", &p->applied, &b);
    items("refused", "why", &p->refused, &b);
    nb_buf_addf(&b, ",\n \"old_bytes\":%llu,\n \"files\":[", (unsigned long long)l->old_size);
    nb_buf_add(&b, l->files.data, l->files.len);
    nb_buf_adds(&b, "]}\n");
    nb_status s = path && nb_buf_ok(&b) && nb_buf_ok(&l->files)
                      ? nb_writer_commit(l->old, err)
                      : nb_fail_nomem(err, "the repair's log", b.len);
    if (path && nb_buf_ok(&b) && nb_buf_ok(&l->files)) l->old = NULL;
    if (s == NB_OK) s = nb_writer_open(path, &w, err);
    if (s == NB_OK) {
        s = nb_writer_put(w, b.data, b.len, err);
        if (s == NB_OK)
            s = nb_writer_commit(w, err);
        else
            nb_writer_abort(w);
    }
    nb_buf_free(&b);
    free(path);
    return s;
}
