/* Findings as text, JSON, SARIF and HTML, into a buffer: the program prints it. Test nb_buf_ok(out) afterwards. */
#ifndef NB_DOCTOR_REPORT_H
#define NB_DOCTOR_REPORT_H

#include "base/buf.h"
#include "doctor/check.h"

/* {"findings": […], "summary": {…}} as specs/interfaces.md has it. Test nb_buf_ok(out) afterwards. */
void nb_report_json(const nb_check_result *r, nb_buf *out);
/* One finding of the list as a JSON object, for other verbs' reports. */
void nb_report_json_finding(const nb_finding *f, nb_buf *out);
/* For people: findings of one cause are one paragraph, and names that differ in numbers only one line. */
void nb_report_text(const nb_check_result *r, nb_buf *out);
/* SARIF 2.1.0 (OASIS), for code scanning and editors: a result a finding, its bytes a region of the file, its tensors logical
 * locations; what else a finding says is in its properties. version: the program's. */
void nb_report_sarif(const nb_check_result *r, const char *version, nb_buf *out);
/* One self-contained page with the groups of the text report; light or dark as the reader's system is, no script, no network. */
void nb_report_html(const nb_check_result *r, nb_buf *out);
/* The table of rules (code NULL), or one rule with its explanation. */
void nb_report_rules(const char *code, bool json, nb_buf *out);

/* Names folded to classes: "layers.0-2,5.attn.wq_a.{weight,weight_scale}" stands for eight. Calls line(ctx, text, how many)
 * for each class in order. False: out of memory. */
bool nb_fold_names(const char *const *names, size_t n,
                   void (*line)(void *ctx, const char *text, size_t count), void *ctx);

#endif
