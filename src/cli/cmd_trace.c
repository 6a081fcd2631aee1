/* nibble trace: where a model goes wrong in an arithmetic or a serving stack, and by which byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "doctor/repair.h"
#include "doctor/trace.h"

static const char usage[] =
    "usage: nibble trace DIR [-p TEXT]... [--ids F] [--arith A | --as STACK] [options]\n"
    "       nibble trace DIR --module PATTERN --amax X [--rows N] [--seed S] [--arith A | --as STACK]\n\n"
    "Runs prompts twice, exactly and as asked, layer by layer, and compares every operator. Names the first "
    "that goes\n"
    "wrong, why, and the tensor and byte at fault. Weights are streamed: the model may be larger than "
    "memory.\n\n"
    "  -p, --prompt TEXT   a message of the user, in the model's chat format (repeatable; default: built-in "
    "prompts)\n"
    "      --raw           TEXT is the whole prompt, special tokens spelled out\n"
    "      --ids F         JSON array of non-empty arrays of token ids, used as given\n"
    "      --as STACK      what a stack makes of the file when it loads and runs it: vllm-cutlass, "
    "vllm-flashinfer,\n"
    "                      vllm-marlin, vllm-emulation, llama.cpp (activations are bf16)\n"
    "      --cast C        the quantiser's cast to E4M3: sat (default), or nosat, which makes NaN of what is "
    "above 464\n"
    "      --module PAT    no forward pass: feed each linear whose stored name matches the glob with random "
    "rows\n"
    "      --amax X        their largest magnitude\n"
    "      --rows N        how many rows (default 16)\n"
    "      --seed S        which (default 0)\n"
    "      --format html   one self-contained page: layers by operators, the worst, the verdict\n\n";

static const char examples[] =
    "\nExit status: 0 traced (whatever came out: the verdict says it), 1 failed, 64 usage.\n"
    "\nexamples:\n"
    "  nibble trace models/demo -p 'What is 12 + 30?' --as vllm-cutlass\n"
    "  nibble trace models/demo --arith w4a4 --format html > trace.html\n"
    "  nibble trace models/demo --module '*attn*' --amax 8 --as vllm-flashinfer\n";

enum { OPT_RAW = 1, OPT_IDS, OPT_AS, OPT_CAST, OPT_MODULE, OPT_AMAX, OPT_ROWS, OPT_SEED };

static const struct option options[] = {{"prompt", required_argument, NULL, 'p'},
                                        {"raw", no_argument, NULL, OPT_RAW},
                                        {"ids", required_argument, NULL, OPT_IDS},
                                        {"as", required_argument, NULL, OPT_AS},
                                        {"cast", required_argument, NULL, OPT_CAST},
                                        {"module", required_argument, NULL, OPT_MODULE},
                                        {"amax", required_argument, NULL, OPT_AMAX},
                                        {"rows", required_argument, NULL, OPT_ROWS},
                                        {"seed", required_argument, NULL, OPT_SEED},
                                        NB_CLI_MODEL_OPTIONS,
                                        {0}};

typedef struct trace {
    const char **prompts, *ids;
    size_t n_prompts;
    bool raw, html, rows_given;
    nb_trace_options o;
    nb_trace_probe_options probe;
    nb_cli_model model;
} trace;

/* One of trace's own options. */
static int own_option(trace *t, int code, char **argv)
{
    uint64_t v;
    switch (code) {
    case 'p':
        if (!*optarg) return nb_cli_usage("trace", "-p is empty: give a message, or leave -p out");
        t->prompts[t->n_prompts++] = optarg;
        return NB_EXIT_OK;
    case OPT_RAW: t->raw = true; return NB_EXIT_OK;
    case OPT_IDS: t->ids = optarg; return NB_EXIT_OK;
    case OPT_AS:
        if (nb_stack_find(optarg, &t->o.stack)) return NB_EXIT_OK;
        return nb_cli_bad_value("trace", options, code,
                                "vllm-cutlass, vllm-flashinfer, vllm-marlin, vllm-emulation or llama.cpp");
    case OPT_CAST:
        t->o.cast_nosat = strcmp(optarg, "nosat") == 0;
        if (t->o.cast_nosat || strcmp(optarg, "sat") == 0) return NB_EXIT_OK;
        return nb_cli_bad_value("trace", options, code, "sat or nosat");
    case OPT_MODULE: t->probe.pattern = optarg; return NB_EXIT_OK;
    case OPT_AMAX:
        if (nb_cli_real(optarg, &t->probe.amax) && t->probe.amax > 0 && t->probe.amax < 1e38)
            return NB_EXIT_OK;
        return nb_cli_bad_value("trace", options, code, "a number above 0");
    case OPT_ROWS:
        if (!nb_cli_number(optarg, 1, 1 << 16, &v))
            return nb_cli_bad_value("trace", options, code, "a number from 1 to 65536");
        t->probe.rows = v;
        t->rows_given = true;
        return NB_EXIT_OK;
    case OPT_SEED:
        if (nb_cli_number(optarg, 0, UINT64_MAX, &t->probe.seed)) return NB_EXIT_OK;
        return nb_cli_bad_value("trace", options, code, "a number");
    case NB_OPT_FORMAT: /* one form more than the other verbs have */
        t->html = strcmp(optarg, "html") == 0;
        t->model.format = t->html ? "text" : optarg;
        if (t->html || strcmp(optarg, "text") == 0 || strcmp(optarg, "json") == 0) return NB_EXIT_OK;
        return nb_cli_bad_value("trace", options, code, "text, json or html");
    default: return nb_cli_model_option("trace", code, argv, &t->model);
    }
}

static int check_form(const trace *t)
{
    bool probe = t->probe.pattern != NULL;
    if (probe && (t->n_prompts || t->ids))
        return nb_cli_usage("trace", "--module runs no prompt; leave out -p and --ids");
    if (probe != (t->probe.amax > 0)) return nb_cli_usage("trace", "--module and --amax go together");
    if (!probe && t->rows_given) return nb_cli_usage("trace", "--rows goes with --module");
    if (t->n_prompts && t->ids) return nb_cli_usage("trace", "give -p or --ids, not both");
    if (t->raw && !t->n_prompts) return nb_cli_usage("trace", "--raw goes with -p");
    if (t->o.stack && (t->model.arith || t->model.act_dtype || t->model.quant_input))
        return nb_cli_usage("trace", "--as says how the stack computes; leave out --arith, --act-dtype and "
                                     "--quant-input");
    if (probe && (t->model.scales || t->model.n_dequant))
        return nb_cli_usage("trace", "--scales and --dequant go with prompts");
    if (t->model.max_context || t->model.packed_cache)
        return nb_cli_usage("trace", "--max-model-len and --packed-cache have no meaning for this verb");
    return NB_EXIT_OK;
}

static int print(const trace *t, const nb_trace *r)
{
    nb_buf out = {0};
    if (t->html)
        nb_trace_html(r, t->model.dir, &out);
    else if (strcmp(t->model.format, "json") == 0)
        nb_trace_json(r, &out);
    else
        nb_trace_text(r, &out);
    return nb_cli_print(&out, NB_EXIT_OK, NB_EXIT_FAILED);
}

/* What check says of the folder joins the report; that it cannot be checked is no reason not to trace it. */
static void add_findings(const char *dir, nb_trace *r)
{
    nb_check_result c = {0};
    nb_error err;
    if (nb_check_folder(dir, NULL, &c, &err) != NB_OK) return;
    if (nb_repair_foresee(&c, &err) != NB_OK) {
        nb_check_result_free(&c);
        return; /* no memory: the trace itself is made */
    }
    r->findings = c.findings;
    c.findings = (nb_findings){0};
    nb_check_result_free(&c);
    size_t errors = nb_findings_of(&r->findings, NB_SEVERITY_ERROR), len = strlen(r->verdict);
    if (!r->fault.cause && errors)
        snprintf(r->verdict + len, sizeof r->verdict - len,
                 "; and `nibble check` finds %zu error%s in the folder", errors, errors == 1 ? "" : "s");
}

static int run(trace *t, const nb_llm_options *lo)
{
    nb_error err = {.offset = -1};
    nb_trace r = {0};
    nb_prompts prompts = {0};
    nb_policy *policy = NULL;
    nb_status s = NB_OK;
    t->o.arith = lo->arith;
    t->o.act_bf16 = lo->act_bf16;
    t->o.quant_bf16 = lo->quant_bf16;
    t->o.threads = lo->threads;
    t->o.kernels = lo->kernels;
    if (t->model.scales || t->model.n_dequant) {
        s = nb_policy_new(t->model.scales, t->model.dequant, t->model.n_dequant, &policy, &err);
        if (s == NB_OK && nb_policy_scales(policy) == NB_SCALES_DYNAMIC && t->o.arith == NB_ARITH_W4A4)
            t->o.arith = NB_ARITH_W4A4_DYNAMIC;
        t->o.policy = policy;
    }
    if (s == NB_OK && t->probe.pattern) {
        s = nb_trace_probe(t->model.dir, &t->o, &t->probe, &lo->sink, &r, &err);
    } else if (s == NB_OK) {
        s = t->ids ? nb_trace_ids(t->ids, &prompts, &err)
                   : nb_trace_texts(t->model.dir, t->prompts, t->n_prompts, t->raw, &prompts, &err);
        if (s == NB_OK) s = nb_trace_run(t->model.dir, &t->o, &prompts, &lo->sink, &r, &err);
    }
    if (s == NB_OK) add_findings(t->model.dir, &r);
    int rc = s == NB_OK ? print(t, &r) : nb_cli_fail(&err);
    nb_trace_free(&r);
    nb_prompts_free(&prompts);
    nb_policy_free(policy);
    return rc;
}

int nb_cmd_trace(int argc, char **argv)
{
    trace t = {.probe = {.rows = 16}};
    nb_llm_options lo;
    int code, rc = NB_EXIT_OK;
    t.prompts = calloc((size_t)argc, sizeof *t.prompts);
    if (!t.prompts) {
        fputs("nibble: no memory for the options\n", stderr);
        return NB_EXIT_FAILED;
    }
    optind = 1;
    opterr = 0;
    while (rc == NB_EXIT_OK && (code = getopt_long(argc, argv, ":p:qh", options, NULL)) != -1)
        rc = own_option(&t, code, argv);
    if (rc != NB_EXIT_OK) goto out;
    if (t.model.help) {
        printf("%s%s%s", usage, nb_cli_model_help, examples);
        goto out;
    }
    if ((rc = nb_cli_model_finish("trace", argc, argv, "exact", &t.model, &lo)) || (rc = check_form(&t)))
        goto out;
    rc = run(&t, &lo);
out:
    free((void *)t.prompts);
    return rc;
}
