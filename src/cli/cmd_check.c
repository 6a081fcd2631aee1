/* nibble check: what is wrong with a model folder. Runs no model unless it is given texts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "doctor/repair.h"
#include "doctor/report.h"

enum { EXIT_CLEAN = 0, EXIT_WARNINGS = 1, EXIT_ERRORS = 2 };
enum { OPT_FORMAT = 1, OPT_RULES, OPT_EXPLAIN, OPT_IGNORE, OPT_TP, OPT_DATA, OPT_WARMUP };

static const char help[] =
    "usage: nibble check DIR [options]\n"
    "\n"
    "Reads the headers, configs and weights of a model folder (or a Hugging Face id in the local hub cache) "
    "and says what is\n"
    "wrong: which tensor, what was found and expected, what each family of kernels makes of it, and what to "
    "do. Runs no model\n"
    "unless texts are given.\n"
    "\n"
    "  --format F      text (default); json; sarif: SARIF 2.1.0 for code scanning; html: one page. That "
    "alone "
    "goes to stdout\n"
    "  --ignore CODE   leave out this rule's findings (repeatable)\n"
    "  --data F        run these texts through the model, too, and judge its input scales by what they see "
    "(NB111):\n"
    "                  JSON lines {\"text\": …} (special tokens spelled out) or {\"messages\": […]}\n"
    "  --warmup        the same on built-in prompts\n"
    "  --tp N          judge shapes for this tensor-parallel size, too (NB206)\n"
    "  --rules         list the rules\n"
    "  --explain CODE  what a rule looks for, and why\n"
    "  -q, --quiet     no progress and notes on stderr\n"
    "\n"
    "Exit status: 0 nothing above a note, 1 warnings, 2 errors or the folder cannot be read, 64 usage.\n"
    "\n"
    "  nibble check models/demo\n"
    "  nibble check nvidia/DeepSeek-V4-Flash-NVFP4 --format json | jq '.findings[].tensors'\n"
    "  nibble check --explain NB003\n";

typedef enum format { FORMAT_TEXT, FORMAT_JSON, FORMAT_SARIF, FORMAT_HTML } format;

static bool format_find(const char *name, format *out)
{
    static const char *const names[] = {"text", "json", "sarif", "html"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (format)i;
            return true;
        }
    }
    return false;
}

/* Writes a finished report to stdout. Returns code, or an error when memory or stdout failed. */
static int print(nb_buf *b, int code)
{
    if (!nb_buf_ok(b)) {
        fputs("error: no memory for the report\n", stderr);
        code = EXIT_ERRORS;
    } else if (fwrite(nb_buf_str(b), 1, b->len, stdout) != b->len || fflush(stdout) != 0) {
        fputs("error: cannot write to stdout\n", stderr);
        code = EXIT_ERRORS;
    }
    nb_buf_free(b);
    return code;
}

static int check(const char *dir, const nb_check_options *options, format how, bool quiet,
                 const char *const *ignored, size_t n_ignored)
{
    nb_check_result r = {0};
    nb_buf out = {0};
    nb_error err;
    nb_sink sink;
    nb_cli_sink(&sink, quiet);
    if (nb_check_folder_with(dir, options, &sink, &r, &err) != NB_OK) {
        nb_cli_fail(&err);
        return EXIT_ERRORS;
    }
    if (nb_repair_foresee(&r, &err) != NB_OK) {
        nb_cli_fail(&err);
        nb_check_result_free(&r);
        return EXIT_ERRORS;
    }
    for (size_t i = 0; i < n_ignored; i++) nb_findings_drop(&r.findings, ignored[i]);
    int code = nb_findings_of(&r.findings, NB_SEVERITY_ERROR)     ? EXIT_ERRORS
               : nb_findings_of(&r.findings, NB_SEVERITY_WARNING) ? EXIT_WARNINGS
                                                                  : EXIT_CLEAN;
    switch (how) {
    case FORMAT_TEXT: nb_report_text(&r, &out); break;
    case FORMAT_JSON: nb_report_json(&r, &out); break;
    case FORMAT_SARIF: nb_report_sarif(&r, NB_VERSION, &out); break;
    case FORMAT_HTML: nb_report_html(&r, &out); break;
    }
    nb_check_result_free(&r);
    return print(&out, code);
}

int nb_cmd_check(int argc, char **argv)
{
    static const struct option options[] = {{"format", required_argument, NULL, OPT_FORMAT},
                                            {"rules", no_argument, NULL, OPT_RULES},
                                            {"explain", required_argument, NULL, OPT_EXPLAIN},
                                            {"ignore", required_argument, NULL, OPT_IGNORE},
                                            {"tp", required_argument, NULL, OPT_TP},
                                            {"data", required_argument, NULL, OPT_DATA},
                                            {"warmup", no_argument, NULL, OPT_WARMUP},
                                            {"quiet", no_argument, NULL, 'q'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    format how = FORMAT_TEXT;
    bool quiet = false, rules = false;
    const char *explain = NULL;
    nb_check_options wanted = {0};
    size_t n_ignored = 0;
    int code = EXIT_CLEAN;
    nb_buf out = {0};
    const char **ignored = calloc((size_t)argc, sizeof *ignored);
    if (!ignored) {
        fputs("error: no memory for the options\n", stderr);
        return EXIT_ERRORS;
    }
    optind = 1;
    opterr = 0;
    for (int o; (o = getopt_long(argc, argv, ":qh", options, NULL)) != -1;) {
        switch (o) {
        case OPT_FORMAT:
            if (!format_find(optarg, &how)) {
                code = nb_cli_bad_value("check", options, o, "text, json, sarif or html");
                goto out;
            }
            break;
        case OPT_RULES: rules = true; break;
        case OPT_EXPLAIN:
        case OPT_IGNORE:
            if (!nb_rule_find(optarg)) {
                code = nb_cli_bad_value("check", options, o, "a rule (--rules lists them)");
                goto out;
            }
            if (o == OPT_EXPLAIN)
                explain = nb_rule_find(optarg)->code;
            else
                ignored[n_ignored++] = nb_rule_find(optarg)->code;
            break;
        case OPT_TP: {
            uint64_t tp;
            if (!nb_cli_number(optarg, 1, 65536, &tp)) {
                code = nb_cli_bad_value("check", options, o, "a number of GPUs from 1 to 65536");
                goto out;
            }
            wanted.tp = (uint32_t)tp;
            break;
        }
        case OPT_DATA: wanted.data = optarg; break;
        case OPT_WARMUP: wanted.run = true; break;
        case 'q': quiet = true; break;
        case 'h': fputs(help, stdout); goto out;
        default: code = nb_cli_bad_option("check", o, argv); goto out;
        }
    }
    if (rules || explain) {
        if (optind < argc) {
            code = nb_cli_usage("check", "--rules and --explain take no folder; what is '%s'?", argv[optind]);
            goto out;
        }
        if (how == FORMAT_SARIF || how == FORMAT_HTML) {
            code = nb_cli_usage("check", "the list of rules is text or json");
            goto out;
        }
        nb_report_rules(explain, how == FORMAT_JSON, &out);
        code = print(&out, EXIT_CLEAN);
        goto out;
    }
    if (wanted.data && wanted.run) {
        code = nb_cli_usage("check", "--data and --warmup both say which texts to run: give one");
        goto out;
    }
    wanted.run = wanted.run || wanted.data;
    if (optind >= argc)
        code = nb_cli_usage("check", "which model? Give its folder");
    else if (optind + 1 < argc)
        code = nb_cli_usage("check", "one folder at a time; what is '%s'?", argv[optind + 1]);
    else
        code = check(argv[optind], &wanted, how, quiet, ignored, n_ignored);
out:
    free(ignored);
    return code;
}
