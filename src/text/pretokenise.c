/* Cutting text into pieces, within which merging takes place. Byte-level families differ in their regular expressions alone;
 * Digits and ByteLevel are such expressions under other names, so a pre-tokenizer is a list of cuts, each made within
 * the pieces of the one before. tokenizers, tokenizer/pattern.rs and normalizer.rs (split). SentencePiece's families cut nothing, or at
 * spaces; where they have a Metaspace it stands alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/internal.h"

/* ByteLevel with use_regex: tokenizers, pre_tokenizers/byte_level.rs, after OpenAI's GPT-2. */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#define STAGE "pre_tokenizer"
#define MAX_SPLITS 32 /* each is a level of recursion while cutting */

/* ---- loading ---- */

static nb_status add_split(nb_pretokeniser *p, const char *pattern, size_t n, bool literal, nb_split kind,
                           nb_error *err)
{
    if (p->n == MAX_SPLITS) return nb_fail(err, NB_ERR_LIMIT, STAGE ": more than %d splits", MAX_SPLITS);
    nb_split *splits = realloc(p->splits, (p->n + 1) * sizeof *splits);
    if (!splits) return nb_fail_nomem(err, "a pre-tokenizer", (p->n + 1) * sizeof *splits);
    p->splits = splits;
    nb_split *split = &splits[p->n];
    *split = kind;
    nb_status s = nb_regex_compile(pattern, n, literal, &split->code, &split->jit, err);
    if (!s) p->n++;
    return s;
}

static nb_status load_split(nb_pretokeniser *p, const json_t *spec, nb_error *err)
{
    const json_t *pattern = json_object_get(spec, "pattern"), *invert = json_object_get(spec, "invert");
    const json_t *regex = json_object_get(pattern, "Regex"), *literal = json_object_get(pattern, "String");
    const json_t *text = regex ? regex : literal;
    const char *behavior = json_string_value(json_object_get(spec, "behavior"));
    if (!json_is_string(text) || (regex && literal) || !behavior || !json_is_boolean(invert))
        return nb_fail(err, NB_ERR_FORMAT,
                       STAGE " Split: expected pattern {Regex or String}, behavior and invert");
    nb_split kind = {.removed = strcmp(behavior, "Removed") == 0,
                     .previous = strcmp(behavior, "MergedWithPrevious") == 0,
                     .invert = json_is_true(invert)};
    if (!kind.removed && !kind.previous && strcmp(behavior, "Isolated") != 0) {
        char what[96];
        snprintf(what, sizeof what, "Split with behavior %.60s", behavior);
        return nb_tok_unsupported(err, STAGE, what);
    }
    if (!json_string_length(text)) return nb_tok_unsupported(err, STAGE, "Split at nothing");
    return add_split(p, json_string_value(text), json_string_length(text), !regex, kind, err);
}

static nb_status load_byte_level(nb_pretokeniser *p, const json_t *spec, nb_error *err)
{
    const json_t *use_regex = json_object_get(spec, "use_regex"),
                 *prefix = json_object_get(spec, "add_prefix_space");
    if (!json_is_boolean(prefix) || (use_regex && !json_is_boolean(use_regex)))
        return nb_fail(err, NB_ERR_FORMAT,
                       STAGE " ByteLevel: expected true or false for add_prefix_space and use_regex");
    if (json_is_true(prefix)) return nb_tok_unsupported(err, STAGE, "ByteLevel with add_prefix_space");
    if (json_is_false(use_regex)) return NB_OK;
    return add_split(p, gpt2_pattern, sizeof gpt2_pattern - 1, false, (nb_split){0}, err);
}

/* tokenizers, pre_tokenizers/metaspace.rs; add_prefix_space is the older spelling of prepend_scheme. */
static nb_status load_metaspace(nb_pretokeniser *p, const json_t *spec, nb_error *err)
{
    nb_metaspace *m = &p->metaspace;
    const json_t *mark = json_object_get(spec, "replacement"), *split = json_object_get(spec, "split"),
                 *prefix = json_object_get(spec, "add_prefix_space"),
                 *scheme = json_object_get(spec, "prepend_scheme");
    const char *when = scheme ? json_string_value(scheme) : "always";
    size_t n = json_string_length(mark);
    uint32_t c;
    if (!n || nb_utf8_decode(json_string_value(mark), n, &c) != n || !when ||
        (split && !json_is_boolean(split)))
        return nb_fail(err, NB_ERR_FORMAT,
                       STAGE " Metaspace: expected replacement (one character), prepend_scheme and split");
    m->always = strcmp(when, "always") == 0;
    m->first = strcmp(when, "first") == 0;
    m->split = !json_is_false(split);
    if (!m->always && !m->first && strcmp(when, "never") != 0) {
        char what[96];
        snprintf(what, sizeof what, "Metaspace with prepend_scheme %.60s", when);
        return nb_tok_unsupported(err, STAGE, what);
    }
    if (json_is_false(prefix) && (m->always || m->first)) {
        if (scheme)
            return nb_fail(err, NB_ERR_FORMAT,
                           STAGE " Metaspace: add_prefix_space and prepend_scheme differ");
        m->always = false;
    }
    m->space = (nb_replacement){.from = malloc(2), .to = malloc(n + 1), .from_n = 1, .to_n = n};
    if (!m->space.from || !m->space.to) return nb_fail_nomem(err, "a pre-tokenizer", n);
    memcpy(m->space.from, " ", 2);
    memcpy(m->space.to, json_string_value(mark), n + 1);
    return NB_OK;
}

/* One component. What follows ByteLevel would see the byte alphabet. */
static nb_status load_component(nb_pretokeniser *p, const json_t *spec, nb_error *err)
{
    const char *type;
    nb_status s = nb_component_type(spec, STAGE, &type, err);
    if (s) return s;
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(spec, "pretokenizers"), *each;
        if (!json_is_array(list))
            return nb_fail(err, NB_ERR_FORMAT, STAGE " Sequence: 'pretokenizers' is not an array");
        size_t i;
        json_array_foreach(list, i, each) if ((s = load_component(p, each, err))) return s;
        return NB_OK;
    }
    bool metaspace = strcmp(type, "Metaspace") == 0;
    if (p->metaspace.space.from || (metaspace && (p->n || p->byte_level)))
        return nb_tok_unsupported(err, STAGE, "Metaspace beside another component");
    if (metaspace) return load_metaspace(p, spec, err);
    bool digits = strcmp(type, "Digits") == 0, byte_level = strcmp(type, "ByteLevel") == 0;
    if (!digits && !byte_level && strcmp(type, "Split") != 0) return nb_tok_unsupported(err, STAGE, type);
    if (p->byte_level) return nb_tok_unsupported(err, STAGE, "component after ByteLevel");
    if (byte_level) {
        p->byte_level = true;
        return load_byte_level(p, spec, err);
    }
    if (!digits) return load_split(p, spec, err);
    const json_t *individual = json_object_get(spec, "individual_digits");
    if (!json_is_boolean(individual))
        return nb_fail(err, NB_ERR_FORMAT, STAGE " Digits: individual_digits is not true or false");
    /* Rust's char::is_numeric is the category N. */
    const char *pattern = json_is_true(individual) ? "\\p{N}" : "\\p{N}+";
    return add_split(p, pattern, strlen(pattern), false, (nb_split){0}, err);
}

nb_status nb_pretokeniser_load(nb_pretokeniser *p, const json_t *spec, nb_error *err)
{
    return spec && !json_is_null(spec) ? load_component(p, spec, err) : NB_OK;
}

void nb_pretokeniser_free(nb_pretokeniser *p)
{
    for (size_t i = 0; i < p->n; i++) pcre2_code_free(p->splits[i].code);
    free(p->splits);
    nb_replacement_free(&p->metaspace.space);
    *p = (nb_pretokeniser){0};
}

/* ---- running ---- */

bool nb_match_scratch_init(nb_match_scratch *m)
{
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create((size_t)32 << 10, (size_t)1 << 20, NULL);
    if (m->context) pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return m->data && m->context && m->stack;
}

void nb_match_scratch_free(nb_match_scratch *m)
{
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    *m = (nb_match_scratch){0};
}

typedef struct run {
    const nb_pretokeniser *p;
    nb_match_scratch *m;
    nb_part_fn piece;
    void *ctx;
    nb_error *err;
} run;

/* The first match at or after byte at: *b … *e. *found false: none. */
static nb_status find(const run *r, const nb_split *split, const char *s, size_t n, size_t at, size_t *b,
                      size_t *e, bool *found)
{
    /* The text was checked once as a whole; without NO_UTF_CHECK each call would check it again from the start. */
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    PCRE2_SPTR text = (PCRE2_SPTR)s;
    if (split->jit)
        rc = pcre2_jit_match(split->code, text, n, at, PCRE2_NO_UTF_CHECK, r->m->data, r->m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(split->code, text, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r->m->data,
                         r->m->context);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH) return NB_OK;
    if (rc == PCRE2_ERROR_NOMEMORY) return nb_fail_nomem(r->err, "matching a pattern", n);
    if (rc < 0) {
        nb_fail(r->err, NB_ERR_LIMIT, "the pre-tokenizer's pattern gives up on this text (PCRE2 error %d)",
                rc);
        nb_error_remedy(r->err, "shorten the text, or report the pattern");
        return NB_ERR_LIMIT;
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(r->m->data);
    *b = range[0];
    *e = range[1];
    return NB_OK;
}

static nb_status cut(const run *r, size_t stage, const char *s, size_t n);

/* MergedWithPrevious: a delimiter goes with the piece before it, unless that is one. */
typedef struct joined {
    const run *r;
    size_t stage;
    const char *s;
    size_t n;
    bool delimiter; /* the last one was */
} joined;

static nb_status join(joined *j, const char *s, size_t n, bool delimiter)
{
    nb_status status = NB_OK;
    if (delimiter && !j->delimiter && j->s) {
        j->n += n;
    } else {
        if (j->s) status = cut(j->r, j->stage, j->s, j->n);
        j->s = s;
        j->n = n;
    }
    j->delimiter = delimiter;
    return status;
}

static nb_status cut(const run *r, size_t stage, const char *s, size_t n)
{
    if (!n) return NB_OK;
    if (stage == r->p->n) return r->piece(r->ctx, s, n, -1);
    const nb_split *split = &r->p->splits[stage];
    joined j = {.r = r, .stage = stage + 1};
    size_t at = 0, done = 0;
    for (bool first = true; at <= n; first = false) {
        size_t b, e;
        bool found;
        nb_status status = find(r, split, s, n, at, &b, &e, &found);
        if (status) return status;
        if (!found) break;
        /* An empty match where the last one ended is not accepted; Oniguruma's iterator then moves on by a character. */
        if (b == e && !first && e == done) {
            uint32_t c;
            size_t w = nb_utf8_decode(s + at, n - at, &c);
            at += w ? w : 1;
            continue;
        }
        bool keep_between = !(split->removed && split->invert),
             keep_match = !(split->removed && !split->invert);
        if (split->previous) {
            if (done < b && (status = join(&j, s + done, b - done, split->invert))) return status;
            if ((status = join(&j, s + b, e - b, !split->invert))) return status;
            at = done = e;
            continue;
        }
        if (keep_between && (status = cut(r, stage + 1, s + done, b - done))) return status;
        if (keep_match && (status = cut(r, stage + 1, s + b, e - b))) return status;
        at = done = e;
    }
    if (split->removed && split->invert) return NB_OK;
    if (split->previous) {
        nb_status status = done < n ? join(&j, s + done, n - done, split->invert) : NB_OK;
        return status ? status : cut(r, stage + 1, j.s, j.n);
    }
    return cut(r, stage + 1, s + done, n - done);
}

static bool starts(const char *s, size_t n, const nb_replacement *space)
{
    return n >= space->to_n && memcmp(s, space->to, space->to_n) == 0;
}

static nb_status metaspace(const run *r, const char *s, size_t n, bool first)
{
    const nb_metaspace *m = &r->p->metaspace;
    const nb_replacement *space = &m->space;
    nb_buf text = {0};
    nb_status status = NB_OK;
    bool marked = starts(s, n, space) || s[0] == ' ';
    if (!marked && (m->always || (m->first && first))) nb_buf_add(&text, space->to, space->to_n);
    nb_replace(space, s, n, &text);
    if (!nb_buf_ok(&text)) status = nb_fail_nomem(r->err, "a text", n);
    const char *p = nb_buf_str(&text);
    for (size_t at = 0, end; !status && at < text.len; at = end) {
        const char *next = m->split ? memmem(p + at + 1, text.len - at - 1, space->to, space->to_n) : NULL;
        end = next ? (size_t)(next - p) : text.len;
        status = r->piece(r->ctx, p + at, end - at, -1);
    }
    nb_buf_free(&text);
    return status;
}

nb_status nb_pretokenise(const nb_pretokeniser *p, nb_match_scratch *m, const char *s, size_t n, bool first,
                         nb_part_fn piece, void *ctx, nb_error *err)
{
    run r = {.p = p, .m = m, .piece = piece, .ctx = ctx, .err = err};
    if (p->metaspace.space.from) return metaspace(&r, s, n, first);
    return cut(&r, 0, s, n);
}
