/* NB006 and NB002: names that loaders drop, put as loaders spell them, and the index that names what the shards hold. */
#include <stdlib.h>
#include <string.h>

#include "doctor/repair_plan.h"

/* What stands before "layers.N." in most names of the folder. */
static void main_prefix(const nb_plan *p, nb_buf *out)
{
    const char *best = NULL;
    size_t best_len = 0, best_count = 0;
    for (size_t i = 0, tried = 0; i < nb_ckpt_count(p->ckpt) && tried < 8; i++) {
        const char *name = nb_ckpt_at(p->ckpt, i)->name, *at = strstr(name, "layers.");
        const size_t len = at ? (size_t)(at - name) : 0;
        if (!at || (best && best_len == len && memcmp(best, name, len) == 0)) continue;
        size_t count = 0;
        for (size_t k = 0; k < nb_ckpt_count(p->ckpt); k++) {
            const char *other = nb_ckpt_at(p->ckpt, k)->name;
            count += strncmp(other, name, len + 7) == 0;
        }
        tried++;
        if (count <= best_count) continue;
        best = name;
        best_len = len;
        best_count = count;
    }
    if (best) nb_buf_add(out, best, best_len);
}

/* "experts.gate_proj.3.weight" -> "experts.3.gate_proj.weight". */
static bool number_first(const char *name, nb_buf *out)
{
    for (const char *p = strstr(name, "experts."); p; p = strstr(p + 1, "experts.")) {
        const char *part = p + 8;
        size_t n = strcspn(part, "."), digits = part[n] ? strspn(part + n + 1, "0123456789") : 0;
        if (!n || strspn(part, "0123456789") == n || !digits || part[n + 1 + digits] != '.') continue;
        nb_buf_add(out, name, (size_t)(part - name));
        nb_buf_add(out, part + n + 1, digits);
        nb_buf_addc(out, '.');
        nb_buf_add(out, part, n);
        nb_buf_adds(out, part + n + 1 + digits);
        return true;
    }
    return false;
}

/* The loader's spelling of a name that check calls repairable; false: none is known. */
static bool respell(const nb_plan *p, const nb_tensor_info *t, nb_buf *out)
{
    size_t len;
    if (nb_member_of(t->name, &len) == NB_MEMBER_DOT_SCALE && t->dtype == NB_DT_F8_E4M3) {
        nb_buf_add(out, t->name, len);
        nb_buf_adds(out, ".weight_scale");
        return true;
    }
    if (number_first(t->name, out)) return true;
    const char *layers = strstr(t->name, "layers.");
    if (!layers) return false;
    main_prefix(p, out);
    const size_t had = (size_t)(layers - t->name);
    if (out->len <= had || (had && memcmp(out->data + out->len - had, t->name, had) != 0)) return false;
    nb_buf_adds(out, layers);
    return true;
}

nb_status nb_fix_names(nb_plan *p, const nb_finding *f, nb_error *err)
{
    for (size_t i = 0; i < f->n_tensors; i++) {
        const nb_tensor_info *t = nb_ckpt_find(p->ckpt, f->tensors[i]);
        nb_buf name = {0};
        const bool known = t && f->repairable && respell(p, t, &name);
        if (!nb_buf_ok(&name)) {
            nb_buf_free(&name);
            return nb_fail_nomem(err, "a tensor's name", strlen(f->tensors[i]));
        }
        if (!known) {
            nb_buf_free(&name);
            nb_repair_note(&p->refused, f->rule, f->tensors[i], -1, "%s",
                           f->remedy ? f->remedy : "no loader's spelling of it is known");
            continue;
        }
        if (nb_ckpt_find(p->ckpt, nb_buf_str(&name))) {
            nb_repair_note(&p->refused, f->rule, t->name, -1, "a tensor of the right name is there already");
            nb_buf_free(&name);
            continue;
        }
        nb_edit *e = nb_plan_edit(p, t);
        if (!e) {
            nb_buf_free(&name);
            return nb_fail_nomem(err, "a plan", sizeof *e);
        }
        free(e->name);
        e->name = name.data;
        nb_repair_note(&p->applied, f->rule, t->name, 0, "renamed to the loaders' spelling");
    }
    return NB_OK;
}

/* True when f says that the index itself cannot be used, and nothing else is in doubt: the architecture knows every tensor that there
 * must be, each is in exactly one shard, and there are as many shards as their names say. */
static bool can_index(const nb_plan *p, const nb_finding *f)
{
    static const char *const doubts[] = {"NB001", "NB002", "NB003", "NB005",
                                         "NB007", "NB008", "NB200", "NB212"};
    const nb_findings *l = &p->check->findings;
    if (f->severity != NB_SEVERITY_ERROR || !f->file || strcmp(f->file, NB_INDEX_NAME) != 0 ||
        !p->check->architecture)
        return false;
    for (size_t i = 0; i < l->count; i++) {
        const nb_finding *other = &l->items[i];
        for (size_t k = 0; k < sizeof doubts / sizeof *doubts && other != f; k++) {
            if (other->severity == NB_SEVERITY_ERROR && strcmp(other->rule, doubts[k]) == 0) return false;
        }
    }
    for (uint32_t i = 0; i < nb_ckpt_files(p->ckpt); i++) {
        const char *of = strstr(nb_ckpt_file_name(p->ckpt, i), "-of-");
        if (of && strtoul(of + 4, NULL, 10) != nb_ckpt_files(p->ckpt)) return false;
    }
    return true;
}

nb_status nb_fix_index(nb_plan *p, const nb_finding *f, nb_error *err)
{
    (void)err;
    const bool anew = can_index(p, f);
    if (!anew && (f->severity != NB_SEVERITY_WARNING || !f->repairable || p->blind || f->file == NULL)) {
        nb_repair_note(&p->refused, f->rule, f->n_tensors ? f->tensors[0] : NULL, -1, "%s",
                       f->remedy ? f->remedy : "download the files again");
        return NB_OK;
    }
    p->index = true;
    p->no_index = p->no_index || anew;
    nb_repair_note(&p->applied, f->rule, f->n_tensors ? f->tensors[0] : NULL, 0,
                   "index written anew from the shards' headers");
    for (size_t i = 1; i < f->n_tensors; i++)
        nb_repair_note(&p->applied, f->rule, f->tensors[i], 0, "index written anew from the shards' headers");
    return NB_OK;
}
