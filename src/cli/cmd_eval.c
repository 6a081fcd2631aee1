/*
 * nibble eval: what a model computes, for comparison with others. Three forms: raw logits of given ids (the guard is off, non-finite
 * values are kept), perplexity of a text, exact match of samples.
 */
#include "cli/eval.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: nibble eval DIR --ids F --logits OUT [--hidden OUT2] [--chunk N] [--together]\n"
    "       nibble eval DIR --text F [--window N]\n"
    "       nibble eval DIR --samples F\n\n"
    "  --ids F         JSON array of non-empty arrays of token ids, used as given\n"
    "  --logits OUT    safetensors file to write: F32 logits.0, logits.1, … [T, V], row t after token t\n"
    "  --hidden OUT2   also write hidden.I.L [T, D], the output of each layer\n"
    "  --chunk N       feed N tokens at a time (default 512; changes no bit)\n"
    "  --together      feed all arrays as one batch (changes no bit)\n"
    "  --text F        perplexity of a text: no special tokens, windows of --window tokens (512), the rest "
    "dropped\n"
    "  --samples F     JSON lines {\"prompt\" or \"messages\", \"reply\"}: is every reply token, the end "
    "included, the argmax?\n\n";

static const char examples[] =
    "\nExit status: 0 evaluated (logits that are not finite are kept, a sample without an answer is a wrong "
    "one), 1 failed, or no\n"
    "perplexity because logits are not finite; 64 usage.\n"
    "\nexamples:\n"
    "  echo '[[0, 17, 42]]' > ids.json; nibble eval models/demo --ids ids.json --logits out.safetensors\n"
    "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"12 + 30 =\"}], \"reply\": \"42\"}' > "
    "s.jsonl\n"
    "  nibble eval models/demo --samples s.jsonl --arith w4a4 --format json\n";

enum { OPT_IDS = 1, OPT_LOGITS, OPT_HIDDEN, OPT_CHUNK, OPT_TOGETHER, OPT_TEXT, OPT_WINDOW, OPT_SAMPLES };

static const struct option options[] = {{"ids", required_argument, NULL, OPT_IDS},
                                        {"logits", required_argument, NULL, OPT_LOGITS},
                                        {"hidden", required_argument, NULL, OPT_HIDDEN},
                                        {"chunk", required_argument, NULL, OPT_CHUNK},
                                        {"together", no_argument, NULL, OPT_TOGETHER},
                                        {"text", required_argument, NULL, OPT_TEXT},
                                        {"window", required_argument, NULL, OPT_WINDOW},
                                        {"samples", required_argument, NULL, OPT_SAMPLES},
                                        NB_CLI_MODEL_OPTIONS,
                                        {0}};

static int check_form(const nb_eval *e)
{
    int forms = (e->ids_file != NULL) + (e->text_file != NULL) + (e->samples_file != NULL);
    if (forms != 1) return nb_cli_usage("eval", "give one of --ids, --text and --samples");
    if (e->ids_file && !e->logits_file) return nb_cli_usage("eval", "--ids needs --logits OUT");
    if (!e->ids_file && (e->logits_file || e->hidden_file || e->together))
        return nb_cli_usage("eval", "--logits, --hidden and --together go with --ids");
    if (e->window && !e->text_file) return nb_cli_usage("eval", "--window goes with --text");
    return NB_EXIT_OK;
}

int nb_cmd_eval(int argc, char **argv)
{
    nb_eval e = {0};
    nb_cli_model model = {0};
    nb_llm_options lo;
    nb_error err = {.offset = -1};
    int code, rc;
    uint64_t v;
    optind = 1;
    opterr = 0;
    while ((code = getopt_long(argc, argv, ":qh", options, NULL)) != -1) {
        switch (code) {
        case OPT_IDS: e.ids_file = optarg; break;
        case OPT_LOGITS: e.logits_file = optarg; break;
        case OPT_HIDDEN: e.hidden_file = optarg; break;
        case OPT_TOGETHER: e.together = true; break;
        case OPT_TEXT: e.text_file = optarg; break;
        case OPT_SAMPLES: e.samples_file = optarg; break;
        case OPT_CHUNK:
        case OPT_WINDOW:
            if (!nb_cli_number(optarg, code == OPT_WINDOW ? 2 : 1, 1 << 20, &v))
                return nb_cli_bad_value("eval", options, code,
                                        code == OPT_WINDOW ? "a number of tokens from 2 to 1048576"
                                                           : "a number of tokens from 1 to 1048576");
            if (code == OPT_CHUNK)
                e.chunk = v;
            else
                e.window = v;
            break;
        default:
            if ((rc = nb_cli_model_option("eval", code, argv, &model))) return rc;
        }
    }
    if (model.help) {
        printf("%s%s%s%s%s", usage, nb_cli_model_help, nb_cli_context_help, nb_cli_cache_help, examples);
        return NB_EXIT_OK;
    }
    if ((rc = nb_cli_model_finish("eval", argc, argv, "exact", &model, &lo)) || (rc = check_form(&e)))
        return rc;
    if (model.max_context && !e.samples_file)
        return nb_cli_usage("eval",
                            "--max-model-len goes with --samples: --ids and --text know their lengths");
    if (!e.chunk) e.chunk = 512;
    if (!e.window) e.window = 512;
    e.dir = model.dir;
    e.json = strcmp(model.format, "json") == 0;
    e.opt = &lo;
    nb_status s = e.ids_file    ? nb_eval_ids(&e, &err)
                  : e.text_file ? nb_eval_text(&e, &err)
                                : nb_eval_samples(&e, &err);
    if (s != NB_OK) return nb_cli_fail(&err);
    nb_cli_health(model.dir, model.quiet);
    if (!e.odd) return NB_EXIT_OK;
    fprintf(stderr,
            "nibble: %zu of %zu rows of logits are not finite: `nibble trace %s --arith %s` names the "
            "operator at fault, "
            "`nibble check %s` the tensor\n",
            e.odd, e.rows, model.dir, nb_arith_name(lo.arith), model.dir);
    /* The logits asked for are all there, and a sample without an answer is a wrong one; but there is no perplexity. */
    return e.text_file ? NB_EXIT_FAILED : NB_EXIT_OK;
}
