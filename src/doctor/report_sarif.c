/*
 * Findings as SARIF 2.1.0 (docs.oasis-open.org/sarif/sarif/v2.1.0), the format of code scanning services and editors. A model's
 * files are binary, so a region is a range of bytes (§3.30.10) and the tensors are logical locations (§3.33).
 */
#include <ctype.h>
#include <string.h>

#include "doctor/groups.h"
#include "doctor/report.h"

#define SCHEMA "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
#define NAMED 3 /* tensors in a message; all are in the locations */

static void text(const char *s, nb_buf *out)
{
    nb_buf_add_json(out, s, strlen(s));
}

static void member(const char *key, const char *s, nb_buf *out)
{
    nb_buf_addf(out, "\"%s\":", key);
    if (s)
        text(s, out);
    else
        nb_buf_adds(out, "null");
}

/* A path as a URI reference: what is not unreserved (RFC 3986) is escaped, slashes stay. */
static void uri(const char *path, const char *before, const char *after, nb_buf *out)
{
    nb_buf_addf(out, "\"uri\":\"%s", before);
    for (const unsigned char *p = (const unsigned char *)path; *p; p++) {
        if ((*p < 128 && isalnum(*p)) || strchr("-._~/", *p))
            nb_buf_addc(out, (char)*p);
        else
            nb_buf_addf(out, "%%%02X", *p);
    }
    nb_buf_addf(out, "%s\"", after);
}

static void rule(const nb_rule *r, nb_buf *out)
{
    nb_buf_adds(out, "{");
    member("id", r->code, out);
    nb_buf_adds(out, ",\"shortDescription\":{");
    member("text", r->title, out);
    nb_buf_adds(out, "},\"fullDescription\":{");
    member("text", r->explain, out);
    nb_buf_adds(out, "},\"help\":{");
    member("text", r->explain, out);
    nb_buf_addf(out, "},\"defaultConfiguration\":{\"level\":\"%s\"}}", nb_severity_name(r->severity));
}

/* The message says all that a person needs, since viewers show little else. */
static void message(const nb_finding *f, nb_buf *out)
{
    nb_buf b = {0};
    nb_buf_adds(&b, f->message);
    for (size_t i = 0; i < f->n_tensors && i < NAMED; i++)
        nb_buf_addf(&b, "%s%s", i ? ", " : ": ", f->tensors[i]);
    if (f->n_tensors > NAMED) nb_buf_addf(&b, " and %zu more", f->n_tensors - NAMED);
    if (f->measured) nb_buf_addf(&b, ". Found: %s", f->measured);
    if (f->expected) nb_buf_addf(&b, ". Expected: %s", f->expected);
    if (f->remedy) nb_buf_addf(&b, ". Remedy: %s", f->remedy);
    nb_buf_adds(out, "\"message\":{");
    member("text", nb_buf_str(&b), out);
    nb_buf_adds(out, "}");
    out->bad = out->bad || b.bad;
    nb_buf_free(&b);
}

static void location(const nb_finding *f, nb_buf *out)
{
    nb_buf_adds(out, "\"locations\":[");
    if (f->file || f->n_tensors) nb_buf_adds(out, "{");
    if (f->file) {
        nb_buf_adds(out, "\"physicalLocation\":{\"artifactLocation\":{");
        uri(f->file, "", "", out);
        nb_buf_adds(out, ",\"uriBaseId\":\"MODEL\"}");
        if (f->has_bytes)
            nb_buf_addf(out, ",\"region\":{\"byteOffset\":%llu,\"byteLength\":%llu}",
                        (unsigned long long)f->begin, (unsigned long long)(f->end - f->begin));
        nb_buf_adds(out, "}");
    }
    if (f->file && f->n_tensors) nb_buf_adds(out, ",");
    if (f->n_tensors) nb_buf_adds(out, "\"logicalLocations\":[");
    for (size_t i = 0; i < f->n_tensors; i++) {
        nb_buf_adds(out, i ? ",{" : "{");
        member("fullyQualifiedName", f->tensors[i], out);
        nb_buf_adds(out, ",\"kind\":\"tensor\"}");
    }
    if (f->n_tensors) nb_buf_adds(out, "]");
    if (f->file || f->n_tensors) nb_buf_adds(out, "}");
    nb_buf_adds(out, "]");
}

static void properties(const nb_finding *f, nb_buf *out)
{
    bool first = true;
    nb_buf_adds(out, "\"properties\":{");
    member("measured", f->measured, out);
    nb_buf_adds(out, ",");
    member("expected", f->expected, out);
    nb_buf_adds(out, ",");
    member("remedy", f->remedy, out);
    nb_buf_addf(out, ",\"repairable\":%s,\"consequences\":{", f->repairable ? "true" : "false");
    for (int i = 0; i < NB_FAMILY_COUNT; i++) {
        if (!f->effect_text[i]) continue;
        nb_buf_addf(out, "%s\"%s\":{\"class\":\"%s\",", first ? "" : ",", nb_family_name((nb_family)i),
                    nb_effect_class_name(f->effect[i]));
        member("text", f->effect_text[i], out);
        nb_buf_adds(out, "}");
        first = false;
    }
    nb_buf_adds(out, "}}");
}

static void result(const nb_finding *f, nb_buf *out)
{
    const nb_rule *r = nb_rule_find(f->rule);
    nb_buf_adds(out, "{");
    member("ruleId", f->rule, out);
    if (r) nb_buf_addf(out, ",\"ruleIndex\":%zu", (size_t)(r - nb_rules));
    nb_buf_addf(out, ",\"level\":\"%s\",", nb_severity_name(f->severity));
    message(f, out);
    nb_buf_adds(out, ",");
    location(f, out);
    nb_buf_adds(out, ",");
    properties(f, out);
    nb_buf_adds(out, "}");
}

void nb_report_sarif(const nb_check_result *r, const char *version, nb_buf *out)
{
    nb_buf_adds(out,
                "{\"$schema\":\"" SCHEMA "\",\"version\":\"2.1.0\",\"runs\":[{\"tool\":{\"driver\":{\"name\":"
                "\"nibble\",");
    member("semanticVersion", version, out);
    nb_buf_adds(out, ",\"rules\":[");
    for (size_t i = 0; i < nb_rules_count; i++) {
        nb_buf_adds(out, i ? ",\n" : "\n");
        rule(&nb_rules[i], out);
    }
    nb_buf_adds(out,
                "]}},\n\"invocations\":[{\"executionSuccessful\":true}],\"originalUriBaseIds\":{\"MODEL\":{");
    /* A relative folder has no URI of its own: the base is then left open, as §3.14.14 allows. */
    if (r->dir[0] == '/')
        uri(r->dir, "file://", r->dir[strlen(r->dir) - 1] == '/' ? "" : "/", out);
    else
        nb_buf_adds(out, "\"description\":{\"text\":\"the model's folder\"}");
    nb_buf_adds(out, "}},\n\"results\":[");
    for (size_t i = 0; i < r->findings.count; i++) {
        nb_buf_adds(out, i ? ",\n" : "\n");
        result(&r->findings.items[i], out);
    }
    nb_buf_adds(out, "]}]}\n");
}
