/* The reports: JSON by its schema, text that folds what belongs together, and the table of rules. */
#include "doctor.h"

#include <jansson.h>

#include "doctor/report.h"

static model m;

static char lines[1024];
static size_t counted;

static void collect(void *ctx, const char *text, size_t count)
{
    size_t at = strlen(lines);
    snprintf(lines + at, sizeof lines - at, "%s\n", text);
    counted += count;
}

static void fold(const char *const *names, size_t n, const char *expected)
{
    lines[0] = '\0';
    counted = 0;
    assert_true(nb_fold_names(names, n, collect, NULL));
    assert_string_equal(lines, expected);
}

static void names_fold_to_classes(void **state)
{
    static const char *const grid[] = {"l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w",
                                       "l.1.e.1.w", "l.3.e.0.w", "l.3.e.1.w"};
    fold(grid, 6, "l.0-1,3.e.0-1.w\n");
    assert_int_equal(counted, 6);
    /* l.1.e.2 is not there: one line for all four would claim it */
    static const char *const ragged[] = {"l.0.e.0.w", "l.0.e.2.w", "l.1.e.0.w"};
    fold(ragged, 3, "l.0.e.0,2.w\nl.1.e.0.w\n");
    static const char *const parts[] = {"l.0.a.scale", "l.1.a.scale", "l.0.a.weight", "l.1.a.weight",
                                        "l.0.b.weight"};
    fold(parts, 5, "l.0-1.a.{scale,weight}\nl.0.b.weight\n");
    assert_int_equal(counted, 5);
    static const char *const odd[] = {"w1.x2", "#.1", "2.1", "07.1", "2.1", ""};
    fold(odd, 6, "\n#.1\n2.1\n07.1\nw1.x2\n");
    fold(NULL, 0, "");
}

static void json_has_every_key(void **state)
{
    static const char *const keys[] = {"rule",   "severity",   "tensors",  "file",
                                       "bytes",  "measured",   "expected", "consequences",
                                       "remedy", "repairable", "message"};
    nb_buf b = {0};
    model_llama(&m, true);
    model_remove(&m, "model.layers.1.mlp.up_proj.weight_scale");
    model_reshape(&m, "model.layers.0.mlp.up_proj.weight_scale", NB_DT_U8, 2, 64, 2);
    model_check(&m, LLAMA_CONFIG);
    nb_report_json(&m.r, &b);
    assert_true(nb_buf_ok(&b));
    json_t *root = json_loads(nb_buf_str(&b), JSON_REJECT_DUPLICATES, NULL), *f;
    size_t i;
    assert_non_null(root);
    assert_int_equal(json_array_size(json_object_get(root, "findings")), 2);
    json_array_foreach(json_object_get(root, "findings"), i, f)
    {
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) assert_non_null(json_object_get(f, keys[k]));
        json_t *w4a4 = json_object_get(json_object_get(f, "consequences"), "w4a4");
        assert_string_equal(json_string_value(json_object_get(w4a4, "class")), i ? "refused" : "undefined");
        assert_non_null(json_object_get(json_object_get(f, "consequences"), "llama.cpp"));
        assert_string_equal(json_string_value(json_object_get(f, "severity")), "error");
        assert_int_equal(json_is_array(json_object_get(f, "bytes")),
                         i); /* none for a tensor that is not there */
    }
    json_t *summary = json_object_get(root, "summary");
    assert_int_equal(json_integer_value(json_object_get(summary, "errors")), 2);
    assert_int_equal(json_integer_value(json_object_get(summary, "tensors")), (json_int_t)m.n);
    json_decref(root);
    nb_buf_free(&b);
    model_free(&m);
}

static void text_is_one_paragraph_a_cause(void **state)
{
    nb_buf b = {0};
    model_llama(&m, true);
    model_remove(&m, "model.layers.0.mlp.up_proj.weight_scale");
    model_remove(&m, "model.layers.1.mlp.up_proj.weight_scale");
    model_check(&m, LLAMA_CONFIG);
    nb_report_text(&m.r, &b);
    assert_true(nb_buf_ok(&b));
    const char *text = nb_buf_str(&b), *first = strstr(text, "error NB003");
    assert_non_null(first);
    assert_null(strstr(first + 1, "error NB003"));
    assert_non_null(strstr(text, "model.layers.0-1.mlp.up_proj.weight_scale  (2 tensors)"));
    assert_non_null(strstr(text, "w4a4, marlin: "));
    assert_non_null(strstr(text, "2 errors in "));
    nb_buf_free(&b);
    model_free(&m);
}

static void a_clean_folder_says_so(void **state)
{
    nb_buf b = {0};
    model_llama(&m, false);
    model_check(&m, LLAMA_CONFIG);
    nb_report_text(&m.r, &b);
    assert_ptr_equal(strstr(nb_buf_str(&b), "no fault found"), nb_buf_str(&b));
    nb_buf_free(&b);
    model_free(&m);
}

static void findings_are_sorted_and_can_be_left_out(void **state)
{
    nb_findings l = {0};
    nb_findings_add(&l, "NB200", NB_SEVERITY_NOTE, "a");
    nb_findings_add(&l, "NB007", NB_SEVERITY_ERROR, "b");
    nb_findings_add(&l, "NB006", NB_SEVERITY_WARNING, "c");
    nb_findings_add(&l, "NB003", NB_SEVERITY_ERROR, "d");
    nb_findings_add(&l, "NB007", NB_SEVERITY_ERROR, "e");
    nb_findings_sort(&l);
    for (size_t i = 0; i < l.count; i++) assert_string_equal(l.items[i].message, &"d\0b\0e\0c\0a"[2 * i]);
    assert_int_equal(nb_findings_drop(&l, "NB007"), 2);
    assert_int_equal(l.count, 3);
    assert_string_equal(l.items[1].message, "c");
    assert_int_equal(nb_findings_of(&l, NB_SEVERITY_ERROR), 1);
    nb_findings_free(&l);
}

static void texts_of_any_length(void **state)
{
    nb_findings l = {0};
    size_t i = nb_findings_add(&l, "NB001", NB_SEVERITY_ERROR, "%*d", 2047, 7);
    assert_int_equal(strlen(l.items[i].message), 2047);
    assert_int_equal(l.items[i].message[2046], '7');
    i = nb_findings_add(&l, "NB001", NB_SEVERITY_ERROR, "%*d", 2048, 7);
    assert_string_equal(l.items[i].message + 2043, " ...");
    nb_findings_measured(&l, i, "first");
    nb_findings_measured(&l, i, "%s", "second"); /* replaces it */
    assert_string_equal(l.items[i].measured, "second");
    assert_false(l.bad);
    nb_findings_free(&l);
}

static void every_rule_explains_itself(void **state)
{
    for (size_t i = 0; i < nb_rules_count; i++) {
        nb_buf b = {0};
        const nb_rule *r = &nb_rules[i];
        assert_ptr_equal(nb_rule_find(r->code), r);
        assert_true(i == 0 || strcmp(nb_rules[i - 1].code, r->code) < 0);
        assert_non_null(strstr(r->explain, "\nRemedy: "));
        nb_report_rules(r->code, true, &b);
        json_t *root = json_loads(nb_buf_str(&b), 0, NULL);
        assert_int_equal(json_array_size(json_object_get(root, "rules")), 1);
        json_decref(root);
        nb_buf_clear(&b);
        nb_report_rules(r->code, false, &b);
        for (const char *line = nb_buf_str(&b); *line; line += strcspn(line, "\n") + 1)
            assert_true(strcspn(line, "\n") <= 100);
        nb_buf_free(&b);
    }
    assert_null(nb_rule_find("NB999"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_fold_to_classes),
        cmocka_unit_test(json_has_every_key),
        cmocka_unit_test(text_is_one_paragraph_a_cause),
        cmocka_unit_test(a_clean_folder_says_so),
        cmocka_unit_test(findings_are_sorted_and_can_be_left_out),
        cmocka_unit_test(texts_of_any_length),
        cmocka_unit_test(every_rule_explains_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
