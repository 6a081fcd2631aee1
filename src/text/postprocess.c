/* What add_special puts around a text: BOS in front, for the families that have it there. Of a TemplateProcessing only
 * `single` counts, since a prompt is one text; ByteLevel as a post-processor trims offsets, which nothing here uses. */
#include <stdlib.h>
#include <string.h>

#include "text/internal.h"

#define STAGE "post_processor"

/* Appends the ids that the template's special_tokens gives for name. */
static nb_status add_special(const json_t *spec, const json_t *piece, nb_ids *out, nb_error *err)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *entry = name ? json_object_get(json_object_get(spec, "special_tokens"), name) : NULL, *each;
    const json_t *ids = json_object_get(entry, "ids");
    size_t i;
    if (!json_is_array(ids))
        return nb_fail(err, NB_ERR_FORMAT, STAGE " TemplateProcessing: special_tokens has no ids for '%.60s'",
                       name ? name : "");
    json_array_foreach(ids, i, each)
    {
        json_int_t id = json_integer_value(each);
        if (!json_is_integer(each) || id < 0 || id >= NB_TOK_MAX_IDS)
            return nb_fail(err, NB_ERR_FORMAT,
                           STAGE " TemplateProcessing: an id of '%.60s' is not a token id", name);
        if (!nb_ids_add(out, (uint32_t)id))
            return nb_fail_nomem(err, "the post-processor", sizeof *out->data);
    }
    return NB_OK;
}

static nb_status load_template(nb_template *t, const json_t *spec, nb_error *err)
{
    const json_t *single = json_object_get(spec, "single"), *piece;
    size_t i;
    bool seen = false;
    if (!json_is_array(single))
        return nb_fail(err, NB_ERR_FORMAT, STAGE " TemplateProcessing: 'single' is not an array");
    json_array_foreach(single, i, piece)
    {
        const json_t *special = json_object_get(piece, "SpecialToken"),
                     *text = json_object_get(piece, "Sequence");
        if (special) {
            nb_status s = add_special(spec, special, seen ? &t->after : &t->before, err);
            if (s) return s;
        } else if (text && !seen) {
            const char *id = json_string_value(json_object_get(text, "id"));
            if (!id || strcmp(id, "A") != 0)
                return nb_tok_unsupported(err, STAGE,
                                          "TemplateProcessing whose single is not about sequence A");
            seen = true;
        } else {
            return nb_tok_unsupported(
                err, STAGE, "TemplateProcessing with another piece than special tokens and one text");
        }
    }
    return seen ? NB_OK : nb_tok_unsupported(err, STAGE, "TemplateProcessing without the text");
}

static nb_status load_component(nb_template *t, const json_t *spec, bool *have, nb_error *err)
{
    const char *type;
    nb_status s = nb_component_type(spec, STAGE, &type, err);
    if (s) return s;
    if (strcmp(type, "ByteLevel") == 0) return NB_OK;
    if (strcmp(type, "TemplateProcessing") == 0) {
        if (*have) return nb_tok_unsupported(err, STAGE, "Sequence of two TemplateProcessing");
        *have = true;
        return load_template(t, spec, err);
    }
    if (strcmp(type, "Sequence") != 0) return nb_tok_unsupported(err, STAGE, type);
    const json_t *list = json_object_get(spec, "processors"), *each;
    if (!json_is_array(list))
        return nb_fail(err, NB_ERR_FORMAT, STAGE " Sequence: 'processors' is not an array");
    size_t i;
    json_array_foreach(list, i, each) if ((s = load_component(t, each, have, err))) return s;
    return NB_OK;
}

nb_status nb_template_load(nb_template *t, const json_t *spec, nb_error *err)
{
    bool have = false;
    return spec && !json_is_null(spec) ? load_component(t, spec, &have, err) : NB_OK;
}

void nb_template_free(nb_template *t)
{
    free(t->before.data);
    free(t->after.data);
    *t = (nb_template){0};
}
