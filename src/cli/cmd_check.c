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

static const char *const formats[] = {"text", "json", "sarif", "html"};

typedef struct request {
    const char *dir; /* NULL: the rules are asked about */
    nb_check_options opt;
    format how;
    const char **ignored; /* codes of rules; one place for each word of the command line */
    size_t n_ignored;
    const char *explain; /* this rule's code; NULL: all of them */
    bool quiet, rules, help;
} request;

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

/* One option. NB_EXIT_OK, or the exit code after having printed what it takes. */
static int take_option(int code, char **argv, request *r)
{
    const nb_rule *rule = NULL;
    uint64_t tp;
    switch (code) {
    case OPT_FORMAT:
        for (int i = 0; i < 4; i++) {
            if (strcmp(optarg, formats[i]) != 0) continue;
            r->how = (format)i;
            return NB_EXIT_OK;
        }
        return nb_cli_bad_value("check", options, code, "text, json, sarif or html");
    case OPT_EXPLAIN:
    case OPT_IGNORE:
        if (!(rule = nb_rule_find(optarg)))
            return nb_cli_bad_value("check", options, code, "a rule (--rules lists them)");
        if (code == OPT_IGNORE)
            r->ignored[r->n_ignored++] = rule->code;
        else
            r->explain = rule->code;
        return NB_EXIT_OK;
    case OPT_TP:
        if (!nb_cli_number(optarg, 1, 65536, &tp))
            return nb_cli_bad_value("check", options, code, "a number of GPUs from 1 to 65536");
        r->opt.tp = (uint32_t)tp;
        return NB_EXIT_OK;
    case OPT_RULES: r->rules = true; return NB_EXIT_OK;
    case OPT_DATA: r->opt.data = optarg; return NB_EXIT_OK;
    case OPT_WARMUP: r->opt.run = true; return NB_EXIT_OK;
    case 'q': r->quiet = true; return NB_EXIT_OK;
    case 'h': r->help = true; return NB_EXIT_OK;
    default: return nb_cli_bad_option("check", code, argv);
    }
}

/* The command line. NB_EXIT_OK, or the exit code after having printed what is wrong with it. */
static int parse(int argc, char **argv, request *r)
{
    int rc = NB_EXIT_OK;
    optind = 1;
    opterr = 0;
    for (int o; rc == NB_EXIT_OK && !r->help && (o = getopt_long(argc, argv, ":qh", options, NULL)) != -1;)
        rc = take_option(o, argv, r);
    if (rc != NB_EXIT_OK || r->help) return rc;
    if (r->rules || r->explain) {
        if (optind < argc)
            return nb_cli_usage("check", "--rules and --explain take no folder; what is '%s'?", argv[optind]);
        if (r->how == FORMAT_SARIF || r->how == FORMAT_HTML)
            return nb_cli_usage("check", "the list of rules is text or json");
        return NB_EXIT_OK;
    }
    if (r->opt.data && r->opt.run)
        return nb_cli_usage("check", "--data and --warmup both say which texts to run: give one");
    r->opt.run = r->opt.run || r->opt.data;
    if (optind >= argc) return nb_cli_usage("check", "which model? Give its folder");
    if (optind + 1 < argc)
        return nb_cli_usage("check", "one folder at a time; what is '%s'?", argv[optind + 1]);
    r->dir = argv[optind];
    return NB_EXIT_OK;
}

static int print_rules(const request *r)
{
    nb_buf out = {0};
    nb_report_rules(r->explain, r->how == FORMAT_JSON, &out);
    return nb_cli_print(&out, EXIT_CLEAN, EXIT_ERRORS);
}

static int check(const request *r)
{
    nb_check_result c = {0};
    nb_buf out = {0};
    nb_error err;
    nb_sink sink;
    nb_cli_sink(&sink, r->quiet);
    nb_status s = nb_check_folder_with(r->dir, &r->opt, &sink, &c, &err);
    if (s == NB_OK) s = nb_repair_foresee(&c, &err);
    if (s != NB_OK) {
        nb_cli_fail(&err);
        nb_check_result_free(&c);
        return EXIT_ERRORS;
    }
    for (size_t i = 0; i < r->n_ignored; i++) nb_findings_drop(&c.findings, r->ignored[i]);
    int code = nb_findings_of(&c.findings, NB_SEVERITY_ERROR)     ? EXIT_ERRORS
               : nb_findings_of(&c.findings, NB_SEVERITY_WARNING) ? EXIT_WARNINGS
                                                                  : EXIT_CLEAN;
    switch (r->how) {
    case FORMAT_TEXT: nb_report_text(&c, &out); break;
    case FORMAT_JSON: nb_report_json(&c, &out); break;
    case FORMAT_SARIF: nb_report_sarif(&c, NB_VERSION, &out); break;
    case FORMAT_HTML: nb_report_html(&c, &out); break;
    }
    nb_check_result_free(&c);
    return nb_cli_print(&out, code, EXIT_ERRORS);
}

int nb_cmd_check(int argc, char **argv)
{
    request r = {.ignored = calloc((size_t)argc, sizeof *r.ignored)};
    if (!r.ignored) {
        fputs("nibble: no memory for the options\n", stderr);
        return EXIT_ERRORS;
    }
    int code = parse(argc, argv, &r);
    if (code == NB_EXIT_OK) {
        if (r.help)
            fputs(help, stdout);
        else
            code = r.dir ? check(&r) : print_rules(&r);
    }
    free(r.ignored);
    return code;
}
